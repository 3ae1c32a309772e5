"""What a user chooses: the baseline and the cycles (Sec. 3.2). What becomes of it: phases and mini-batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from lightning_multigrid.schedule.grid import BatchShape
from lightning_multigrid.schedule.kinds import check_kinds

Epochs = int | float | Fraction


def exact(number: Epochs) -> Fraction:
    """The number as a person wrote it: 1.1 is 11/10, not the nearest binary fraction."""
    return Fraction(number) if isinstance(number, (int, Fraction)) else Fraction(str(number))


@dataclass(frozen=True)
class Baseline:
    """The recipe to accelerate.

    Args:
        shape: The mini-batch of one device.
        epochs: Length of the training, in epochs. Fractions are allowed.
        milestones: Starts of the LR stages after the first, in epochs. Without milestones there is one LR stage.
        stride: Temporal stride of a clip, in source frames.
        warmup_epochs: Length of the LR warm-up, in epochs, within the first LR stage.

    Raises:
        ValueError: If `epochs` is below 1, the milestones do not increase within (0, epochs), `stride` is below 1, or
            the warm-up is negative or outlasts the first LR stage.
    """

    shape: BatchShape
    epochs: Epochs
    milestones: tuple[Epochs, ...] = ()
    stride: int = 1
    warmup_epochs: Epochs = 0

    def __post_init__(self) -> None:
        check_kinds(self)
        object.__setattr__(self, "milestones", tuple(self.milestones))
        if self.epochs < 1:
            raise ValueError(f"`epochs` must be at least 1, got {float(self.epochs):g}. Train longer, or on less data.")
        if any(not a < b for a, b in pairwise((0, *self.milestones, self.epochs))):
            raise ValueError(
                f"`milestones` must increase and lie between 0 and `epochs={float(self.epochs):g}`, got "
                f"{tuple(float(m) for m in self.milestones)}. Give the starts of the LR stages after the first."
            )
        if self.stride < 1:
            raise ValueError(f"`stride` must be at least 1 source frame, got {self.stride}.")
        first_stage = self.milestones[0] if self.milestones else self.epochs
        if not 0 <= self.warmup_epochs < first_stage:
            raise ValueError(
                f"`warmup_epochs` must be at least 0 and end before the first LR stage does, at epoch "
                f"{float(first_stage):g}; got {float(self.warmup_epochs):g}."
            )


def _check_factors(name: str, factors: Sequence[float]) -> None:
    if not factors:
        raise ValueError(f"`{name}` must have at least one entry. To turn a cycle off, give the factor 1 alone.")
    for factor in factors:
        if not 0 < factor <= 1:
            raise ValueError(f"The factors of `{name}` must be above 0 and at most 1, got {factor:g}.")


@dataclass(frozen=True)
class LongCycle:
    """Base shapes of an LR stage, coarse to fine, as factors of the baseline's frames and size (Sec. 3.2, Long Cycle).

    Args:
        factors: A pair (frames, size) per base shape. `((1, 1),)` turns the long cycle off.

    Raises:
        ValueError: If there is no pair, or a factor is outside (0, 1].
    """

    factors: tuple[tuple[float, float], ...] = ((0.25, 0.5**0.5), (0.5, 0.5**0.5), (0.5, 1), (1, 1))

    def __post_init__(self) -> None:
        check_kinds(self)
        object.__setattr__(self, "factors", tuple((frames, size) for frames, size in self.factors))
        _check_factors("long_cycle", [factor for pair in self.factors for factor in pair])


@dataclass(frozen=True)
class ShortCycle:
    """Spatial sizes of successive iterations (Sec. 3.2, Short Cycle).

    Args:
        factors: Factors of the baseline's size, one per iteration. The factor 1 means the size of the current base
            shape, and larger sizes are clamped to it. `(1,)` turns the short cycle off.

    Raises:
        ValueError: If there is no factor, or one is outside (0, 1].
    """

    factors: tuple[float, ...] = (0.5, 0.5**0.5, 1)

    def __post_init__(self) -> None:
        check_kinds(self)
        object.__setattr__(self, "factors", tuple(self.factors))
        _check_factors("short_cycle", self.factors)


@dataclass(frozen=True)
class Phase:
    """A part of the training with one base shape in one LR stage.

    Args:
        stage: LR stage, from 0.
        shape: Base shape.
        start_epoch: Start, in epochs of the script.
        end_epoch: End, in epochs; not included.
        lr_scale: Factor of the baseline's LR (Sec. 3.2, Learning Rate Scaling).
    """

    stage: int
    shape: BatchShape
    start_epoch: Fraction
    end_epoch: Fraction
    lr_scale: float

    @property
    def interval(self) -> str:
        """Its start and end in text, in epochs."""
        return f"{round(float(self.start_epoch), 2):g} - {round(float(self.end_epoch), 2):g}"


class Place(NamedTuple):
    """A mini-batch of a training: its epoch, and its number in the epoch, both from 0."""

    epoch: int
    batch: int


@dataclass(frozen=True)
class Step:
    """A mini-batch of the plan (not an optimizer step), and all that is known of it. `Plan.epoch` makes it.

    Args:
        place: Which mini-batch it is.
        shape: Shape.
        phase: Index of the phase.
        offset: Samples of all ranks in the stream of passes before those of this mini-batch.
        sub_batch: Clips that share BN statistics (Sec. 3.2, Batch Normalization).
        baseline_batches: Mini-batches of the baseline for which this one counts: the clips of its phase's base shape
            over the baseline's.
        starts_update: Whether it is the first mini-batch of its optimizer step. The fields below are equal in all
            mini-batches of an optimizer step.
        baseline_epoch: The epoch of the baseline, from 0, whose LR it has, before the scale.
        lr_scale: Factor of the baseline's LR (Sec. 3.2, Learning Rate Scaling).
    """

    place: Place
    shape: BatchShape
    phase: int
    offset: int
    sub_batch: int
    baseline_batches: float = 1.0
    starts_update: bool = True
    baseline_epoch: Fraction = Fraction(0)
    lr_scale: float = 1.0
