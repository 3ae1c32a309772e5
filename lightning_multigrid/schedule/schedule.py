"""The schedule of Sec. 3.2: the phases of a training, their mini-batches' shapes, LR scales and BN sub-mini-batches.

Everything here is a pure function of the recipe, so every rank and every restart computes the same answer; `plan.py`
cuts it into steps. Epochs are the script's: each has the same number of steps, so an epoch is a share of the steps.
They count from 0, and intervals are half open: [start, end). Epochs are exact fractions, because 5.9999999 instead of
6 would be in the wrong phase.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Literal

from lightning_multigrid.schedule.cycles import Baseline, Epochs, LongCycle, Phase, ShortCycle, exact
from lightning_multigrid.schedule.grid import BatchShape
from lightning_multigrid.schedule.kinds import check_kinds
from lightning_multigrid.schedule.tables import counted, text_table

LRScaling = Literal["linear", "sqrt", "none"]
# The power of the clips with which the LR grows: Goyal et al. 2017, and Malladi et al. 2022 for Adam.
LR_POWERS = {"linear": 1.0, "sqrt": 0.5, "none": 0.0}
_MOMENT = Fraction(1, 10**9)  # less than a step, in epochs


@dataclass(frozen=True)
class MultigridSchedule:
    """The phases of a multigrid training (Sec. 3.2). A `Plan` cuts them into steps.

    An LR stage has the share of the steps that it has of the baseline's epochs. Each stage but the last goes through
    the long cycle once, with the same number of steps on each base shape. The last stage becomes the fine-tuning phase:
    the baseline's shape, with the short cycle. The whole makes `epoch_factor` passes over the data for each epoch.

    Args:
        baseline: The recipe to accelerate.
        long_cycle: Base shapes of a stage.
        short_cycle: Spatial sizes of successive iterations.
        epoch_factor: Passes over the data for each epoch.
        sub_batch: Clips that share BN statistics on a base shape; in the short cycle, in proportion to the clips.
        size_divisor: Sizes other than the baseline's are rounded to a multiple of this many pixels.
        stepwise: Whether the baseline's LR is constant within a stage. If so, the first half of the fine-tuning phase
            keeps the LR of the stage before, and the warm-up takes as many passes over the data as the baseline's.
            Otherwise the LR of an epoch is the baseline's.
        lr_scaling: How the LR grows with the clips of the base shape: `linear` (the paper), `sqrt` or `none`.
        frames_divisor: Frames other than the baseline's are rounded to a multiple of this number.
        fine_tuning: Whether the last LR stage becomes the fine-tuning phase. If not, it also takes the long cycle.

    Raises:
        ValueError: If `epoch_factor` is not positive, `sub_batch` or a divisor below 1, or `lr_scaling` something else.

    >>> schedule = MultigridSchedule(Baseline(BatchShape(8, 32, 224), epochs=239, milestones=(94, 154, 196)))
    >>> [(float(phase.end_epoch), round(schedule.passes(phase.end_epoch))) for phase in schedule.phases[:4]]
    [(23.5, 73), (47.0, 110), (70.5, 142), (94.0, 158)]
    """

    baseline: Baseline
    long_cycle: LongCycle = field(default_factory=LongCycle)
    short_cycle: ShortCycle = field(default_factory=ShortCycle)
    epoch_factor: Epochs = 1.5
    sub_batch: int = 8
    size_divisor: int = 1
    stepwise: bool = True
    lr_scaling: LRScaling = "linear"
    frames_divisor: int = 1
    fine_tuning: bool = True

    def __post_init__(self) -> None:
        check_kinds(self)
        if self.epoch_factor <= 0:
            raise ValueError(f"`epoch_factor` must be positive, got {float(self.epoch_factor):g}.")
        for name in ("sub_batch", "size_divisor", "frames_divisor"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, got {getattr(self, name)}.")
        if self.lr_scaling not in LR_POWERS:
            raise ValueError(f"`lr_scaling` must be one of {', '.join(LR_POWERS)}, got {self.lr_scaling!r}.")

    def __str__(self) -> str:
        return self.table()

    # --- Shapes ---

    def _scaled_size(self, factor: float) -> int:
        return _scaled(self.baseline.shape.size, factor, self.size_divisor)

    def _base_shapes(self) -> list[BatchShape]:
        shape = self.baseline.shape
        return [
            shape.rescaled(_scaled(shape.frames, in_time, self.frames_divisor), self._scaled_size(in_space))
            for in_time, in_space in self.long_cycle.factors
        ]

    def cycle(self, base: BatchShape) -> list[BatchShape]:
        """The shapes of successive iterations on a base shape (Sec. 3.2, Short Cycle)."""
        sizes = [base.size if factor == 1 else self._scaled_size(factor) for factor in self.short_cycle.factors]
        return [self.baseline.shape.rescaled(base.frames, min(size, base.size)) for size in sizes]

    def sub_batch_of(self, shape: BatchShape, base: BatchShape) -> int:
        """Clips that share BN statistics in a mini-batch of the short cycle on a base shape."""
        # The sub-mini-batch grows with the mini-batch within the short cycle, never with the long cycle.
        return max(1, round(Fraction(self.sub_batch * shape.clips, base.clips)))

    @cached_property
    def cycles(self) -> list[list[tuple[BatchShape, int]]]:
        """For each phase its short cycle: pairs (shape, sub-mini-batch)."""
        bases = [phase.shape for phase in self.phases]
        return [[(shape, self.sub_batch_of(shape, base)) for shape in self.cycle(base)] for base in bases]

    @property
    def grids(self) -> list[BatchShape]:
        """Every shape of the schedule once, in order of first use."""
        return list(dict.fromkeys(shape for cycle in self.cycles for shape, _ in cycle))

    @property
    def grids_of_statistics(self) -> list[tuple[BatchShape, int]]:
        """Every pair (shape, sub-mini-batch) once: under `torch.compile` each needs a graph of its own."""
        return list(dict.fromkeys(pair for cycle in self.cycles for pair in cycle))

    @cached_property
    def is_baseline(self) -> bool:
        """Whether this is the baseline itself: its grid alone, one pass over the data for an epoch, and its LR."""
        return self.epoch_factor == 1 and self.grids == [self.baseline.shape] and not self.holds_lr

    # --- Phases, passes and the LR's clock ---

    @property
    def epochs(self) -> int:
        """Epochs of the training, as many as in the script. The last one may be a part of an epoch."""
        return math.ceil(exact(self.baseline.epochs))

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """The phases in order; the last is the fine-tuning phase."""
        fine, bases, phases = self.baseline.shape, self._base_shapes(), list[Phase]()
        starts = [Fraction(0), *map(exact, (*self.baseline.milestones, self.baseline.epochs))]
        for stage, (start, end) in enumerate(pairwise(starts)):
            shapes = [fine] if self.fine_tuning and stage == len(starts) - 2 else bases
            length = (end - start) / len(shapes)
            for part, shape in enumerate(shapes):
                interval = start + part * length, start + (part + 1) * length
                scale = (shape.clips / fine.clips) ** LR_POWERS[self.lr_scaling]
                phases.append(Phase(stage, shape, *interval, scale))
        return tuple(phases)

    def _means(self, of_step: Callable[[BatchShape], int]) -> list[Fraction]:
        """For each phase, the mean of a number over the steps of its short cycle."""
        return [Fraction(sum(of_step(shape) for shape, _ in cycle), len(cycle)) for cycle in self.cycles]

    def _over_epochs(self, means: Sequence[Fraction], end: Fraction) -> Fraction:
        """The sum over the epochs before `end` of what has these means in the phases."""
        before = [(phase, mean) for phase, mean in zip(self.phases, means, strict=True) if phase.start_epoch < end]
        return sum(((min(end, phase.end_epoch) - phase.start_epoch) * mean for phase, mean in before), Fraction(0))

    @cached_property
    def _mean_clips(self) -> list[Fraction]:
        return self._means(lambda shape: shape.clips)

    @cached_property
    def clips_per_step(self) -> Fraction:
        """The mean number of clips of a mini-batch, over the training."""
        epochs = exact(self.baseline.epochs)
        return self._over_epochs(self._mean_clips, epochs) / epochs

    def passes(self, epoch: Epochs) -> Fraction:
        """How many passes over the data have been made at an epoch, from 0; by shares, without rounding to steps."""
        return exact(self.epoch_factor) * self._over_epochs(self._mean_clips, exact(epoch)) / self.clips_per_step

    @property
    def holds_lr(self) -> bool:
        """Whether the LR stays that of the last stage but one until the middle of the fine-tuning."""
        return self.stepwise and self.fine_tuning and bool(self.baseline.milestones)

    def baseline_epoch(self, epoch: Epochs) -> Fraction:
        """The baseline's epoch whose LR an epoch has, both from 0: the same one, but for two rules.

        If `stepwise`, the LR stays that of the last stage but one until the middle of the fine-tuning (Sec. 3.2,
        Fine-tuning Phase), and the warm-up takes as many passes over the data as the baseline's (as published).
        """
        now, warmup = min(exact(epoch), exact(self.baseline.epochs)), exact(self.baseline.warmup_epochs)
        if self.holds_lr:
            last = exact(self.baseline.milestones[-1])
            if last <= now < (last + exact(self.baseline.epochs)) / 2:
                return last - _MOMENT
        return max(now, min(warmup, self.passes(now))) if self.stepwise and now < warmup else now

    # --- What it saves ---

    @property
    def iteration_reduction(self) -> float:
        """The baseline's iterations over this schedule's, on a dataset so large that rounding doesn't matter."""
        return float(self.clips_per_step / (self.baseline.shape.clips * exact(self.epoch_factor)))

    @property
    def flop_reduction(self) -> float:
        """The baseline's FLOPs over this schedule's, for a model whose FLOPs grow with b t s^2 (Eq. 1)."""
        epochs = exact(self.baseline.epochs)
        points = self._over_epochs(self._means(lambda shape: shape.points), epochs) / epochs
        return self.iteration_reduction * float(self.baseline.shape.points / points)

    # --- As text ---

    def table(self, columns: Mapping[str, Sequence[str]] | None = None, savings: Sequence[str] = ()) -> str:
        """The schedule as text: a line per phase, which `columns` lengthen, then what it saves, `savings` first."""
        cycles = {"short cycle": [self.cycle_text(phase) for phase in self.phases]}
        cycles["LR scale"] = [f"{phase.lr_scale:.3g}" for phase in self.phases]
        return f"{self.phase_table({**cycles, **(columns or {})})}\n{', '.join([*savings, *self.savings])}."

    @property
    def savings(self) -> list[str]:
        """The passes and the epochs of the training, and what it saves, in words."""
        passes, epochs = (round(float(n), 2) for n in (self.passes(self.baseline.epochs), self.baseline.epochs))
        read = f"{counted(passes, 'pass')} over the data in {counted(epochs, 'epoch')}"
        if self.is_baseline:
            return [read]
        flops = f"{self.flop_reduction:.2f}x fewer FLOPs (b t s^2)"
        return [read, f"{self.iteration_reduction:.2f}x fewer iterations", flops]

    def cycle_text(self, phase: Phase) -> str:
        """The short cycle of a phase: clips x size of its mini-batches; once, if they all have the same."""
        shapes = [f"{shape.clips}x{shape.size}" for shape in self.cycle(phase.shape)]
        return " ".join(shapes if len({*shapes}) > 1 else shapes[:1])

    @property
    def has_short_cycle(self) -> bool:
        """Whether sizes take turns in any phase."""
        return any(len({*self.cycle(phase.shape)}) > 1 for phase in self.phases)

    def phase_table(self, columns: Mapping[str, Sequence[str]], where: str = "") -> str:
        """A title that `where` ends, and a line per phase: its base shape, then `columns` (heading: a cell per phase).

        Phases and stages count from 1 here, as in all that a run says.
        """
        every = {
            "phase": [str(index + 1) for index in range(len(self.phases))],
            "stage": [str(phase.stage + 1) for phase in self.phases],
            "epochs": [phase.interval for phase in self.phases],
            "passes": [f"{float(self.passes(phase.end_epoch)):.1f}" for phase in self.phases],
            "base shape": [str(phase.shape).replace(" ", "") for phase in self.phases],
            **columns,
        }
        title = "Schedule of the baseline," if self.is_baseline else "Multigrid schedule for a baseline of"
        title += f" {self.baseline.shape} (clips x frames x size){where}"
        multiples = {"frames": self.frames_divisor, "sizes": self.size_divisor}
        kept = [f"{what} are multiples of {divisor}" for what, divisor in multiples.items() if divisor > 1]
        title += f"; {' and '.join(kept)}" if kept else ""
        table = f"{title}\n{text_table(list(every), list(zip(*every.values(), strict=True)))}"
        first = self.cycle(self.phases[0].shape)[0]
        grid = f"{first.clips}x{first.size} is {first.clips} clips of {first.size} px"
        legend = (
            "stage: goes once from coarse to fine" + ("; the last one fine-tunes" if self.fine_tuning else ""),
            f"passes: over the data until the phase ends, {float(self.epoch_factor):g} for each epoch of the script",
            f"short cycle: {grid}; such grids take turns" if self.has_short_cycle else f"short cycle: off; {grid}",
        )
        return table if self.is_baseline else "\n".join([table, *legend])


def _scaled(full: int, factor: float, divisor: int) -> int:
    """The multiple of `divisor` next to a share of the full frames or pixels."""
    return full if factor == 1 else min(max(divisor, round(full * factor / divisor) * divisor), full)
