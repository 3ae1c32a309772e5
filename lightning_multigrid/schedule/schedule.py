"""The schedule of Sec. 3.2: the phases of a training, their mini-batches' shapes, LR scales and BN sub-mini-batches.

Everything here is a pure function of the recipe, so every rank and every restart computes the same answer; `plan.py`
cuts it into steps. Positions count epochs from 0, and intervals are half open: [start, end). Positions are exact
fractions, because 5.9999999 instead of 6 would be in the wrong phase.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Literal, get_args

from lightning_multigrid.schedule.cycles import Baseline, Epochs, LongCycle, Phase, ShortCycle, exact
from lightning_multigrid.schedule.grid import BatchShape
from lightning_multigrid.schedule.kinds import check_kinds
from lightning_multigrid.schedule.tables import text_table

LRScaling = Literal["linear", "sqrt", "none"]


@dataclass(frozen=True)
class MultigridSchedule:
    """The phases of a multigrid training (Sec. 3.2). A `Plan` cuts them into steps.

    Each LR stage but the last goes through the long cycle once, with the same number of iterations on each base shape.
    The last stage becomes the fine-tuning phase: the baseline's shape, with the short cycle. The whole is then
    stretched to `epoch_factor` times the baseline's epochs.

    Args:
        baseline: The recipe to accelerate.
        long_cycle: Base shapes of a stage.
        short_cycle: Spatial sizes of successive iterations.
        epoch_factor: Epochs relative to the baseline's.
        sub_batch: Clips that share BN statistics on a base shape; in the short cycle, in proportion to the clips.
        size_divisor: Sizes other than the baseline's are rounded to a multiple of this many pixels.
        stepwise: Whether the baseline's LR is constant within a stage. If so, the first half of the fine-tuning phase
            keeps the LR of the stage before; otherwise the baseline clock runs evenly through that phase.
        lr_scaling: How the LR grows with the clips of the base shape: `linear` (the paper), `sqrt` or `none`.
        whole_epochs: Round the ends of the phases to whole epochs, as published. Empty phases are left out.
        frames_divisor: Frames other than the baseline's are rounded to a multiple of this number.
        fine_tuning: Whether the last LR stage becomes the fine-tuning phase. If not, it takes the long cycle, too.

    Raises:
        ValueError: If `epoch_factor` is not positive, `sub_batch` or a divisor below 1, or `lr_scaling` something else.

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
    frames_divisor: int = 1
    fine_tuning: bool = True

    def __post_init__(self) -> None:
        check_kinds(self)
        if self.epoch_factor <= 0:
            raise ValueError(f"`epoch_factor` must be positive, got {float(self.epoch_factor):g}.")
        for name in ("sub_batch", "size_divisor", "frames_divisor"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, got {getattr(self, name)}.")
        if self.lr_scaling not in get_args(LRScaling):
            raise ValueError(f"`lr_scaling` must be one of {', '.join(get_args(LRScaling))}, got {self.lr_scaling!r}.")

    def __str__(self) -> str:
        return self.table()

    # --- Shapes ---

    def _scaled_size(self, factor: float) -> int:
        return _scaled(self.baseline.shape.size, factor, self.size_divisor)

    @property
    def _smallest(self) -> int:
        """The smallest size of the short cycle, as a multiple of the divisor."""
        return math.ceil(self.short_cycle.smallest / self.size_divisor) * self.size_divisor

    def _base_shapes(self) -> list[BatchShape]:
        shape = self.baseline.shape
        return [
            shape.rescaled(_scaled(shape.frames, in_time, self.frames_divisor), self._scaled_size(in_space))
            for in_time, in_space in self.long_cycle.factors
        ]

    def cycle(self, base: BatchShape) -> list[BatchShape]:
        """The shapes of successive iterations on a base shape (Sec. 3.2, Short Cycle)."""
        factors = self.short_cycle.factors
        sizes = [base.size if factor == 1 else max(self._scaled_size(factor), self._smallest) for factor in factors]
        return [self.baseline.shape.rescaled(base.frames, min(size, base.size)) for size in sizes]

    def _mean_clips(self, base: BatchShape) -> Fraction:
        cycle = self.cycle(base)
        return Fraction(sum(shape.clips for shape in cycle), len(cycle))

    def lr_scale_of(self, ratio: float) -> float:
        """Factor of the LR of a mini-batch with this many times the baseline's clips."""
        return {"linear": ratio, "sqrt": math.sqrt(ratio), "none": 1.0}[self.lr_scaling]

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

    def baseline_batches(self, shape: BatchShape, phase: int) -> float:
        """`Step.baseline_batches` of a mini-batch of a phase; fewer clips than the grid's in the cycle are a tail."""
        whole = next(planned.clips for planned, _ in self.cycles[phase] if planned.clip == shape.clip)
        return max(1.0, self.phases[phase].shape.clips / self.baseline.shape.clips * shape.clips / whole)

    @property
    def constant_shape(self) -> bool:
        """Whether every mini-batch has the baseline's shape. Such a plan of `epoch_factor=1` is the baseline itself."""
        fine = self.baseline.shape
        coarse = self._base_shapes() if self.baseline.milestones or not self.fine_tuning else []
        return {shape for base in (*coarse, fine) for shape in self.cycle(base)} == {fine}

    # --- Phases and the baseline clock ---

    @property
    def epochs(self) -> int:
        """Epochs of the multigrid training. With `constant_shape`, the last one may be a part of an epoch."""
        return math.ceil(self.phases[-1].end_epoch)

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """The phases in order; the last is the fine-tuning phase."""
        fine = self.baseline.shape
        # (stage, base shape, length in epochs before the stretch)
        parts: list[tuple[int, BatchShape, Fraction]] = []
        shapes = self._base_shapes()
        all_clips = sum(map(self._mean_clips, shapes), Fraction(0))
        ends = () if self.fine_tuning else (exact(self.baseline.epochs),)
        starts = (Fraction(0), *map(exact, self.baseline.milestones), *ends)
        for stage, (start, end) in enumerate(pairwise(starts)):
            # All shapes get the same number of iterations, so epochs are in proportion to the clips of an iteration.
            parts += [(stage, shape, (end - start) * self._mean_clips(shape) / all_clips) for shape in shapes]
        if self.fine_tuning:
            last = exact(self.baseline.epochs) - starts[-1]
            # The last stage saves iterations by the same factor as the stages before (as published).
            before = all_clips / len(shapes) if parts else self._mean_clips(fine)  # clips of an iteration
            parts.append((len(starts) - 1, fine, last * self._mean_clips(fine) / before))

        wanted = exact(self.baseline.epochs) * exact(self.epoch_factor)
        # A baseline that `max_steps` ends within an epoch is not rounded: multigrid trainings are compared with it.
        total = (
            wanted
            if self.whole_epochs
            else max(Fraction(1), wanted if self.constant_shape else Fraction(round(wanted)))
        )
        stretch = total / sum(length for _, _, length in parts)
        phases = []
        position = end = Fraction(0)
        for stage, shape, length in parts:
            start, position = end, position + length * stretch
            end = Fraction(round(position)) if self.whole_epochs else position
            if position == total:
                end = max(end, Fraction(1))  # there is at least one epoch
            if end > start:
                phases.append(Phase(stage, shape, start, end, self.lr_scale_of(shape.clips / fine.clips)))
        return tuple(phases)

    @cached_property
    def _clock(self) -> list[tuple[Fraction, Fraction]]:
        """Knots (position, baseline epoch) of the piecewise linear baseline clock."""
        ends = [exact(epoch) for epoch in (*self.baseline.milestones, self.baseline.epochs)]
        positions = []  # where each stage ends
        for stage in range(len(ends)):
            positions.append(max((p.end_epoch for p in self.phases if p.stage <= stage), default=Fraction(0)))
        knots = [(Fraction(0), Fraction(0))]
        if warmup := exact(self.baseline.warmup_epochs):
            knots.append((min(warmup, warmup * positions[0] / ends[0]), warmup))
        if self.fine_tuning and self.stepwise and len(ends) > 1 and not self.constant_shape:
            # The first half of the fine-tuning phase keeps the LR of the stage before (Sec. 3.2, Fine-tuning Phase).
            middle = (positions[-2] + positions[-1]) / 2
            positions[-2] = Fraction(math.floor(middle)) if self.whole_epochs else middle
        return knots + list(zip(positions, ends, strict=True))

    def baseline_epoch(self, position: Epochs) -> Fraction:
        """The baseline's epoch at a position, both from 0: the LR at the position is the baseline's at that epoch.

        The clock is linear in epochs within each LR stage. The warm-up takes as many epochs as the baseline's, but at
        most the same share of its stage. If `stepwise`, the last stage but one ends in the middle of the fine-tuning.
        """
        return _interpolated(self._clock, exact(position))

    def position_of(self, baseline_epoch: Epochs) -> Fraction:
        """The position at an epoch of the baseline, both from 0: the inverse of `baseline_epoch`."""
        return _interpolated([(baseline, position) for position, baseline in self._clock], exact(baseline_epoch))

    # --- Validations ---

    def validation_epochs(self, per_phase: int) -> frozenset[int]:
        """The epochs, from 0, after which to validate: about `per_phase` in each phase, evenly, with its last one."""
        return frozenset(
            math.ceil(phase.start_epoch + (phase.end_epoch - phase.start_epoch) * part / per_phase) - 1
            for phase in self.phases
            for part in range(1, per_phase + 1)
        )

    def baseline_epoch_ends(self, every: int) -> frozenset[int]:
        """The epochs, from 0, that end where the baseline has done `every` more of its epochs, or just before it.

        The last epoch is one of them. So they are as many as in the baseline; with a factor below 1, several epochs of
        the baseline may end in one.
        """
        ends = (math.floor(self.position_of(end)) for end in range(every, math.floor(self.baseline.epochs) + 1, every))
        return frozenset(max(end, 1) - 1 for end in (*ends, self.epochs))

    # --- What it saves ---

    def reduction(self, cost: Callable[[BatchShape], float]) -> float:
        """The baseline's cost over this schedule's, on a dataset so large that rounding doesn't matter.

        `cost` is that of a mini-batch of a shape, in any unit.
        """

        def of_clip(cycle: Sequence[BatchShape]) -> Fraction:
            return sum((Fraction(cost(shape)) for shape in cycle), Fraction(0)) / sum(shape.clips for shape in cycle)

        phases = ((p.end_epoch - p.start_epoch) * of_clip(self.cycle(p.shape)) for p in self.phases)
        return float(exact(self.baseline.epochs) * of_clip([self.baseline.shape]) / sum(phases))

    @property
    def iteration_reduction(self) -> float:
        """The baseline's iterations over this schedule's, on a dataset so large that rounding doesn't matter."""
        return self.reduction(lambda shape: 1)

    @property
    def flop_reduction(self) -> float:
        """The baseline's FLOPs over this schedule's, for a model whose FLOPs grow with b t s^2 (Eq. 1)."""
        return self.reduction(lambda shape: shape.points)

    # --- As text ---

    def table(self, columns: Mapping[str, Sequence[str]] | None = None, savings: Sequence[str] = ()) -> str:
        """The schedule as text: a line per phase, which `columns` lengthen, then what it saves, `savings` first."""
        cycles = {"short cycle": [self.cycle_text(phase) for phase in self.phases]}
        cycles["LR scale"] = [f"{phase.lr_scale:g}" for phase in self.phases]
        saved = [
            *savings,
            f"{self.epochs} epochs instead of {float(self.baseline.epochs):g}",
            f"{self.iteration_reduction:.2f}x fewer iterations",
            f"{self.flop_reduction:.2f}x fewer FLOPs (b t s^2)",
        ]
        return f"{self.phase_table({**cycles, **(columns or {})})}\n{', '.join(saved)}."

    def cycle_text(self, phase: Phase) -> str:
        """The short cycle of a phase: clips x size of its mini-batches."""
        return " ".join(f"{shape.clips}x{shape.size}" for shape in self.cycle(phase.shape))

    def phase_table(self, columns: Mapping[str, Sequence[str]], where: str = "") -> str:
        """A title that `where` ends, and a line per phase: its base shape, then `columns` (heading: a cell per phase).

        The table has at most 80 columns of a terminal; the title may be longer.
        """
        common = {
            "phase": [str(index) for index in range(len(self.phases))],
            "stage": [str(phase.stage) for phase in self.phases],
            "epochs": [f"{float(phase.start_epoch):.2f} - {float(phase.end_epoch):.2f}" for phase in self.phases],
            "base shape": [str(phase.shape).replace(" ", "") for phase in self.phases],
        }
        every = {**common, **columns}
        title = f"Multigrid schedule for a baseline of {self.baseline.shape} (clips x frames x size){where}"
        multiples = {"frames": self.frames_divisor, "sizes": self.size_divisor}
        kept = [f"{what} are multiples of {divisor}" for what, divisor in multiples.items() if divisor > 1]
        title += f"; {' and '.join(kept)}" if kept else ""
        if min(map(self._scaled_size, self.short_cycle.factors)) < self._smallest:
            title += f"; the short cycle stops at {self._smallest} pixels"
        return f"{title}\n{text_table(list(every), list(zip(*every.values(), strict=True)))}"


def _scaled(full: int, factor: float, divisor: int) -> int:
    """The multiple of `divisor` next to a share of the full frames or pixels."""
    return full if factor == 1 else min(max(divisor, round(full * factor / divisor) * divisor), full)


def _interpolated(knots: Sequence[tuple[Fraction, Fraction]], x: Fraction) -> Fraction:
    """The value at `x` of the piecewise linear function through the knots (x, y), constant after the last knot."""
    for (start, first), (end, last) in pairwise(knots):
        if x < end:
            return first + (x - start) / (end - start) * (last - first)
    return knots[-1][1]
