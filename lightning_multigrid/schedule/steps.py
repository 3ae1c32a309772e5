"""What a schedule consists of: phases, and the mini-batches of an epoch."""

from dataclasses import dataclass
from fractions import Fraction

from lightning_multigrid.schedule.grid import BatchShape


@dataclass(frozen=True)
class Phase:
    """A part of the training with one base shape in one LR stage.

    Args:
        stage: LR stage, from 0.
        shape: Base shape.
        start_epoch: Start, in epochs.
        end_epoch: End, in epochs; not included.
        lr_scale: Factor of the baseline's LR (Sec. 3.2, Learning Rate Scaling).
    """

    stage: int
    shape: BatchShape
    start_epoch: Fraction
    end_epoch: Fraction
    lr_scale: float


@dataclass(frozen=True)
class Step:
    """One mini-batch of the plan.

    Args:
        shape: Shape; the last mini-batch of an epoch may have fewer clips than the schedule asks for.
        phase: Index of the phase.
        offset: Clips of this rank in the epoch before this mini-batch.
        lr_scale: Factor of the baseline's LR.
        sub_batch: Clips that share BN statistics (Sec. 3.2, Batch Normalization).
        baseline_batches: Mini-batches of the baseline for which this one counts: the clips of its phase's base shape
            over the baseline's. A tail of an epoch counts by its clips, but at least for one, as in the baseline.
    """

    shape: BatchShape
    phase: int
    offset: int
    lr_scale: float
    sub_batch: int
    baseline_batches: float = 1.0
