"""The grid schedule of Sec. 3.2: which mini-batch shape, LR scale and BN sub-mini-batch each training step has.

Everything here is a pure function of the recipe and of the number of clips: every rank and every restart computes the
same answer. Positions are counted in epochs from 0; intervals are half open, [start, end). They are exact fractions,
because a position of 5.9999999 would be in the wrong phase.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import count, pairwise
from typing import Literal, get_args

from lightning_multigrid.schedule.cycles import Baseline, Epochs, LongCycle, ShortCycle, _exact
from lightning_multigrid.schedule.grid import BatchShape
from lightning_multigrid.schedule.tables import text_table

__all__ = ["Clips", "LRScaling", "MultigridSchedule", "Phase", "Step"]

Clips = int | Fraction
LRScaling = Literal["linear", "sqrt", "none"]


def _between(knots: Sequence[tuple[Fraction, Fraction]], place: Fraction) -> Fraction:
    """The value at a place of the piecewise linear function through (place, value), constant after the last."""
    following = bisect_right(knots, place, key=lambda knot: knot[0])
    if following == len(knots):
        return knots[-1][1]
    (start, first), (end, last) = knots[following - 1], knots[following]
    return first + (place - start) / (end - start) * (last - first)


@dataclass(frozen=True)
class Phase:
    """A stretch on one base shape in one LR stage.

    Args:
        stage: LR stage, from 0.
        shape: Base shape.
        start_epoch: Where it starts, in epochs.
        end_epoch: Where it ends, in epochs; not included.
        lr_scale: What the baseline's LR is multiplied by (Sec. 3.2, Learning Rate Scaling).
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
        shape: Its shape; the last one of an epoch may have fewer clips than the schedule asks for.
        phase: Index of its phase.
        offset: Clips of this rank that the epoch has seen before it.
        lr_scale: What the baseline's LR is multiplied by.
        sub_batch: Clips that share BN statistics (Sec. 3.2, Batch Normalization).
    """

    shape: BatchShape
    phase: int
    offset: int
    lr_scale: float
    sub_batch: int


@dataclass(frozen=True)
class MultigridSchedule:
    """The phases and steps of a multigrid training (Sec. 3.2).

    The long cycle runs once in each LR stage but the last, with the same number of iterations on each base shape. The
    last stage becomes the fine-tuning phase: the baseline's shape, with the short cycle. Everything is then stretched
    to `epoch_factor` times the baseline's epochs.

    Args:
        baseline: The recipe that is accelerated.
        long_cycle: Base shapes.
        short_cycle: Spatial sizes of successive iterations.
        epoch_factor: Epochs relative to the baseline's.
        sub_batch: Clips that share BN statistics on a base shape; more on the larger mini-batches of the short cycle.
        size_divisor: Sizes other than the baseline's are rounded to a multiple of this many pixels.
        stepwise: The LR is constant within a stage, so the first half of the fine-tuning phase keeps the LR of the
            stage before. Otherwise the baseline clock runs evenly through it.
        lr_scaling: How the LR grows with the clips of the base shape: `linear` (the paper), `sqrt` or `none`.
        whole_epochs: Round the ends of the phases to whole epochs, as the published code does. Phases that become
            empty are left out.

    Raises:
        ValueError: If `epoch_factor` is not positive, `sub_batch` or `size_divisor` is below 1, or `lr_scaling` is
            none of the above.

    >>> MultigridSchedule(Baseline(BatchShape(8, 32, 224), epochs=239, milestones=(94, 154, 196))).epochs
    358
    """

    baseline: Baseline
    long_cycle: LongCycle = field(default_factory=LongCycle)
    short_cycle: ShortCycle = field(default_factory=ShortCycle)
    epoch_factor: Epochs = 1.5
    sub_batch: int = 8
    size_divisor: int = 1
    stepwise: bool = True
    lr_scaling: LRScaling = "linear"
    whole_epochs: bool = False

    def __post_init__(self) -> None:
        if self.epoch_factor <= 0:
            raise ValueError(f"`epoch_factor` must be positive, got {float(self.epoch_factor):g}.")
        for name in ("sub_batch", "size_divisor"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, got {getattr(self, name)}.")
        if self.lr_scaling not in get_args(LRScaling):
            raise ValueError(f"`lr_scaling` must be one of {', '.join(get_args(LRScaling))}, got {self.lr_scaling!r}.")

    def __str__(self) -> str:
        return self.table()

    # --- Shapes ---

    def _shape(self, frames: int, size: int) -> BatchShape:
        return self.baseline.shape.rescaled(frames, size)

    def _scaled_size(self, factor: float) -> int:
        full = self.baseline.shape.size
        if factor == 1:
            return full
        multiple = round(full * factor / self.size_divisor) * self.size_divisor
        return min(max(self.size_divisor, multiple), full)

    def _base_shapes(self) -> list[BatchShape]:
        frames = self.baseline.shape.frames
        return [
            self._shape(max(1, round(frames * frames_factor)), self._scaled_size(size_factor))
            for frames_factor, size_factor in self.long_cycle.factors
        ]

    def cycle(self, base: BatchShape) -> list[BatchShape]:
        """Shapes of successive iterations on a base shape (Sec. 3.2, Short Cycle)."""
        sizes = [base.size if factor == 1 else self._scaled_size(factor) for factor in self.short_cycle.factors]
        return [self._shape(base.frames, min(size, base.size)) for size in sizes]

    def _mean_clips(self, base: BatchShape) -> Fraction:
        cycle = self.cycle(base)
        return Fraction(sum(shape.clips for shape in cycle), len(cycle))

    def _lr_scale(self, base: BatchShape) -> float:
        ratio = base.clips / self.baseline.shape.clips
        return {"linear": ratio, "sqrt": math.sqrt(ratio), "none": 1.0}[self.lr_scaling]

    def sub_batch_of(self, shape: BatchShape, base: BatchShape) -> int:
        """Clips that share BN statistics in a mini-batch of the short cycle on a base shape."""
        # It grows with the mini-batch within the short cycle, never with the long cycle.
        return max(1, round(Fraction(self.sub_batch * shape.clips, base.clips)))

    @property
    def grids(self) -> list[BatchShape]:
        """Every shape of the schedule once, in the order in which it first occurs."""
        return list(dict.fromkeys(shape for phase in self.phases for shape in self.cycle(phase.shape)))

    @property
    def grids_of_statistics(self) -> list[tuple[BatchShape, int]]:
        """Every shape with every sub-mini-batch it has, once: what needs a graph of its own under `torch.compile`.

        >>> schedule = MultigridSchedule(Baseline(BatchShape(4, 32, 224), epochs=239, milestones=(94, 154, 196)))
        >>> len(schedule.grids), len(schedule.grids_of_statistics)
        (8, 10)
        """
        return list(
            dict.fromkeys(
                (shape, self.sub_batch_of(shape, phase.shape))
                for phase in self.phases
                for shape in self.cycle(phase.shape)
            )
        )

    @cached_property
    def _stays_on_baseline(self) -> bool:
        return self.grids == [self.baseline.shape]

    # --- Phases and the baseline clock ---

    @property
    def epochs(self) -> int:
        """Epochs of the multigrid training."""
        return int(self.phases[-1].end_epoch)

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """The phases in order; the last is the fine-tuning phase."""
        fine = self.baseline.shape
        # (stage, base shape, length in epochs before stretching)
        parts: list[tuple[int, BatchShape, Fraction]] = []
        shapes = self._base_shapes()
        all_clips = sum(map(self._mean_clips, shapes), Fraction(0))
        starts = (Fraction(0), *map(_exact, self.baseline.milestones))
        for stage, (start, end) in enumerate(pairwise(starts)):
            # The same number of iterations on each shape: epochs in proportion to the clips of an iteration.
            parts += [(stage, shape, (end - start) * self._mean_clips(shape) / all_clips) for shape in shapes]
        last = _exact(self.baseline.epochs) - starts[-1]
        # Iterations of the last stage are saved by the same factor as those of the stages before (as published).
        saved = all_clips / len(shapes) if parts else self._mean_clips(fine)
        parts.append((len(starts) - 1, fine, last * self._mean_clips(fine) / saved))

        wanted = _exact(self.baseline.epochs) * _exact(self.epoch_factor)
        total = wanted if self.whole_epochs else Fraction(max(1, round(wanted)))
        stretch = total / sum(length for _, _, length in parts)
        phases = []
        position = end = Fraction(0)
        for stage, shape, length in parts:
            start, position = end, position + length * stretch
            end = Fraction(round(position)) if self.whole_epochs else position
            if position == total:
                end = max(end, Fraction(1))  # there is at least one epoch
            if end > start:
                phases.append(Phase(stage, shape, start, end, self._lr_scale(shape)))
        return tuple(phases)

    @cached_property
    def _clock(self) -> list[tuple[Fraction, Fraction]]:
        """Knots (position, baseline epoch) of the piecewise linear baseline clock."""
        ends = [_exact(epoch) for epoch in (*self.baseline.milestones, self.baseline.epochs)]
        positions = []  # where each stage ends
        for stage in range(len(ends)):
            positions.append(max((p.end_epoch for p in self.phases if p.stage <= stage), default=Fraction(0)))
        knots = [(Fraction(0), Fraction(0))]
        warmup = _exact(self.baseline.warmup_epochs)
        if warmup:
            # One to one, but never beyond the same share of its stage.
            knots.append((min(warmup, warmup * positions[0] / ends[0]), warmup))
        if self.stepwise and len(ends) > 1 and not self._stays_on_baseline:
            # The first half of the fine-tuning phase keeps the LR of the stage before (Sec. 3.2, Fine-tuning Phase).
            middle = (positions[-2] + positions[-1]) / 2
            positions[-2] = Fraction(math.floor(middle)) if self.whole_epochs else middle
        return knots + list(zip(positions, ends, strict=True))

    def baseline_epoch(self, position: Epochs) -> Fraction:
        """The epoch of the baseline that corresponds to a position, both from 0: where the LR schedule is read.

        Linear in epochs within each LR stage. The warm-up runs one to one, but never beyond the same share of its
        stage. In a *stepwise* schedule the last stage but one extends to the middle of the fine-tuning phase.
        """
        return _between(self._clock, _exact(position))

    def position_of(self, baseline_epoch: Epochs) -> Fraction:
        """The position that corresponds to an epoch of the baseline, both from 0: the inverse of `baseline_epoch`.

        >>> schedule = MultigridSchedule(Baseline(BatchShape(8, 32, 224), epochs=239, milestones=(94, 154, 196)))
        >>> schedule.baseline_epoch(schedule.position_of(100))
        Fraction(100, 1)
        """
        return _between([(baseline, position) for position, baseline in self._clock], _exact(baseline_epoch))

    # --- Steps ---

    def steps(self, epoch: int, clips: Clips, accumulate: int = 1, drop_last: bool = False) -> Sequence[Step]:
        """The mini-batches of an epoch, in order.

        The position at which an optimizer step starts decides the shape of all its micro-batches. The short cycle
        starts anew each epoch and advances once per optimizer step. After the last phase the schedule stays on it.

        Args:
            epoch: The epoch, from 0.
            clips: Clips of this rank in this epoch. Where the ranks cannot share them evenly it is a fraction, of which
                the rank gets the whole clips: so phases change at the same clip of the dataset on any number of ranks.
            accumulate: Micro-batches per optimizer step.
            drop_last: Drop the last mini-batch of the epoch if it has fewer clips than its shape asks for.

        Raises:
            ValueError: If the first mini-batch needs more clips than there are.

        >>> schedule = MultigridSchedule(Baseline(BatchShape(2, 4, 32), epochs=4))
        >>> [str(step.shape) for step in schedule.steps(0, clips=20)]
        ['8 x 4 x 16', '4 x 4 x 23', '2 x 4 x 32', '6 x 4 x 16']
        """
        return list(self._steps(epoch, clips, accumulate, drop_last))

    def _steps(self, epoch: int, clips: Clips, accumulate: int, drop_last: bool) -> Iterator[Step]:
        phases = self.phases
        cycles = [
            [(shape, self.sub_batch_of(shape, phase.shape)) for shape in self.cycle(phase.shape)] for phase in phases
        ]
        # First offset that is no longer in each phase, as an integer: offset < ceil(x) where epoch + offset/clips < end
        ends = [math.ceil((phase.end_epoch - epoch) * clips) for phase in phases]
        whole = math.floor(clips)
        offset = 0
        for iteration in count():
            index = min(bisect_right(ends, offset), len(phases) - 1)
            phase = phases[index]
            shape, sub_batch = cycles[index][iteration % len(cycles[index])]
            if offset == 0 and shape.clips > clips:
                raise ValueError(
                    f"The first mini-batch of phase {index} has {shape.clips} clips, but this rank has {whole}. Use a "
                    "smaller baseline `batch_size`, fewer `long_cycle` shapes, or more data."
                )
            for _ in range(accumulate):
                left = whole - offset
                if left < shape.clips:
                    if left and not drop_last:
                        yield Step(BatchShape(left, shape.frames, shape.size), index, offset, phase.lr_scale, sub_batch)
                    return
                yield Step(shape, index, offset, phase.lr_scale, sub_batch)
                offset += shape.clips

    def validation_epochs(self, per_phase: int) -> frozenset[int]:
        """Epochs, from 0, after which to validate so that each phase is validated about this many times.

        They divide each phase evenly, and its last epoch is always one of them.
        """
        return frozenset(
            math.ceil(phase.start_epoch + (phase.end_epoch - phase.start_epoch) * part / per_phase) - 1
            for phase in self.phases
            for part in range(1, per_phase + 1)
        )

    # --- What it saves ---

    def reduction(self, cost: Callable[[BatchShape], float]) -> float:
        """Cost of the baseline over that of this schedule, on a dataset large enough for rounding not to matter.

        Args:
            cost: Of a mini-batch of a shape, in any unit.
        """

        def of_clip(cycle: Sequence[BatchShape]) -> Fraction:
            return sum((Fraction(cost(shape)) for shape in cycle), Fraction(0)) / sum(shape.clips for shape in cycle)

        phases = ((p.end_epoch - p.start_epoch) * of_clip(self.cycle(p.shape)) for p in self.phases)
        return float(_exact(self.baseline.epochs) * of_clip([self.baseline.shape]) / sum(phases))

    @property
    def iteration_reduction(self) -> float:
        """Iterations of the baseline over those of this schedule, on a dataset large enough for rounding not to matter.

        >>> kinetics = Baseline(BatchShape(4, 32, 224), epochs=239, milestones=(94, 154, 196))
        >>> round(MultigridSchedule(kinetics).iteration_reduction, 2)
        3.43
        """
        return self.reduction(lambda shape: 1)

    @property
    def flop_reduction(self) -> float:
        """FLOPs of the baseline over those of this schedule, for a model whose FLOPs grow with b t s^2 (Eq. 1)."""
        return self.reduction(lambda shape: shape.points)

    def count_shapes(
        self, epoch: int, clips: Clips, accumulate: int = 1, drop_last: bool = False
    ) -> Counter[tuple[int, BatchShape]]:
        """Mini-batches of each phase (its index) and shape in an epoch: those of `steps`, not made one by one."""
        counts: Counter[tuple[int, BatchShape]] = Counter()
        whole_clips = math.floor(clips)
        offset = iteration = 0
        for index, phase in enumerate(self.phases):
            cycle = self.cycle(phase.shape)
            of_cycle = sum(shape.clips for shape in cycle) * accumulate
            end = math.ceil((phase.end_epoch - epoch) * clips)
            end = whole_clips if phase is self.phases[-1] else min(end, whole_clips)
            while offset < end:
                # Whole short cycles at once, where they fit into the rest of the phase and of the epoch.
                cycles = (end - offset) // of_cycle if iteration % len(cycle) == 0 else 0
                if cycles:
                    offset += cycles * of_cycle
                    iteration += cycles * len(cycle)
                    for shape in cycle:
                        counts[index, shape] += cycles * accumulate
                if offset >= end:
                    break
                shape = cycle[iteration % len(cycle)]
                whole = min(accumulate, (whole_clips - offset) // shape.clips)
                offset += whole * shape.clips
                iteration += 1
                if whole:
                    counts[index, shape] += whole
                if whole < accumulate:  # the tail of the epoch
                    if offset < whole_clips and not drop_last:
                        counts[index, BatchShape(whole_clips - offset, shape.frames, shape.size)] += 1
                    return counts
        return counts

    def count_steps(self, epoch: int, clips: Clips, accumulate: int = 1, drop_last: bool = False) -> list[int]:
        """Mini-batches of each phase in an epoch."""
        counts = [0] * len(self.phases)
        for (index, _), steps in self.count_shapes(epoch, clips, accumulate, drop_last).items():
            counts[index] += steps
        return counts

    def phase_steps(self, clips: Clips, accumulate: int = 1, drop_last: bool = False) -> list[int]:
        """Mini-batches of each phase over the whole training, when each epoch has this many clips on this rank."""
        epochs = (self.count_steps(epoch, clips, accumulate, drop_last) for epoch in range(self.epochs))
        return [sum(counts) for counts in zip(*epochs, strict=True)]

    def baseline_steps(self, clips: Clips, drop_last: bool = False) -> int:
        """Mini-batches of the whole baseline, when each epoch has this many clips on this rank."""
        per_epoch = clips / self.baseline.shape.clips
        return round(float(self.baseline.epochs) * (int(per_epoch) if drop_last else math.ceil(per_epoch)))

    def table(self, clips: Clips | None = None, accumulate: int = 1, drop_last: bool = False) -> str:
        """The schedule as text: a line per phase, then what it saves.

        Args:
            clips: Clips of this rank in an epoch; without them the steps of the phases are left out.
            accumulate: Micro-batches per optimizer step.
            drop_last: Drop the last mini-batch of an epoch if it is incomplete.
        """
        columns = ["phase", "stage", "epochs", "clips x frames x size", "short cycle", "LR scale"]
        rows = [
            [
                str(index),
                str(phase.stage),
                f"{float(phase.start_epoch):.2f} - {float(phase.end_epoch):.2f}",
                str(phase.shape),
                ", ".join(f"{shape.clips} x {shape.size}" for shape in self.cycle(phase.shape)),
                f"{phase.lr_scale:g}",
            ]
            for index, phase in enumerate(self.phases)
        ]
        lines = []
        if clips is not None:
            totals = self.phase_steps(clips, accumulate, drop_last)
            columns.append("steps")
            for row, total in zip(rows, totals, strict=True):
                row.append(str(total))
            lines.append(f"{sum(totals)} steps instead of {self.baseline_steps(clips, drop_last)}")
        lines.append(f"{self.epochs} epochs instead of {float(self.baseline.epochs):g}")
        lines.append(f"{self.iteration_reduction:.2f}x fewer iterations")
        lines.append(f"{self.flop_reduction:.2f}x fewer FLOPs (b t s^2)")
        title = f"Multigrid schedule for a baseline of {self.baseline.shape} (clips x frames x size)"
        return f"{title}\n{text_table(columns, rows)}\n{', '.join(lines)}."
