"""Times of the steps on each grid, and the lines that a run prints."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from lightning_multigrid.reports.step_times import StepTime, StepTotals
from lightning_multigrid.schedule import BatchShape, MultigridSchedule, duration, text_table


@dataclass(frozen=True)
class TimesRow:
    """Times of the steps on a grid, on one device: the largest mini-batch, and sums."""

    shape: BatchShape
    total: StepTotals

    @property
    def step(self) -> float:
        return self.total.stepping / self.total.steps


class _GridTotals:
    """Sums over the steps on a grid, and over those that set its pace: all but the first one, which takes longer."""

    def __init__(self, most: BatchShape) -> None:
        self.most, self.all, self.pace = most, StepTotals(), StepTotals()

    def add(self, time: StepTime) -> None:
        self.most = max(self.most, time.step.shape, key=lambda shape: shape.clips)
        if self.all.steps == 1:
            self.pace = StepTotals()
        self.all.add(time)
        self.pace.add(time)


class ShapeTimes:
    """Times of the steps on each grid: measured, and before the first step on a grid the mean of others.

    By Eq. 1 all full mini-batches have about as many points, b t s^2, and take about as long; others in proportion.
    """

    def __init__(self) -> None:
        self._grids: dict[BatchShape, _GridTotals] = {}
        self.all = StepTotals()

    def add(self, time: StepTime) -> None:
        shape = time.step.shape
        self._grids.setdefault(shape.clip, _GridTotals(shape)).add(time)
        self.all.add(time)

    def __bool__(self) -> bool:
        return bool(self._grids)

    def measured(self, shape: BatchShape) -> bool:
        """Returns whether steps were measured on the grid of a shape beyond the first."""
        return shape.clip in self._grids and self._grids[shape.clip].all.steps > 1

    def stepping(self, shape: BatchShape) -> float:
        """Seconds of a step without waiting: measured on its grid, else by the mean of all grids."""
        if grid := self._grids.get(shape.clip):
            return shape.clips * grid.pace.stepping / grid.pace.clips
        points = sum(grid.pace.clips * clip.points for clip, grid in self._grids.items())
        return shape.points * sum(grid.pace.stepping for grid in self._grids.values()) / points

    def step_seconds(self, shape: BatchShape) -> float:
        """Seconds of a step with its waiting; on a grid without measurements, for a loader of the same speed."""
        grid, stepping = self._grids.get(shape.clip), self.stepping(shape)
        if grid:
            return stepping + shape.clips * grid.all.waiting / grid.all.clips
        # If steps wait at all, the loader sets the pace.
        waits = 20 * self.all.waiting > self.all.seconds
        return max(stepping, shape.clips * self.all.seconds / self.all.clips) if waits else stepping

    @property
    def rows(self) -> list[TimesRow]:
        """The times of each shape, coarse to fine."""
        grids = sorted(self._grids.values(), key=lambda grid: (grid.most.frames, grid.most.size))
        return [TimesRow(grid.most, grid.all) for grid in grids]

    def table(self) -> str:
        cells = []
        for name, total in [*((str(row.shape), row.total) for row in self.rows), ("all", self.all)]:
            step, waiting = (f"{1000 * seconds / total.steps:.1f}" for seconds in (total.stepping, total.waiting))
            speed = f"{total.clips / total.seconds:.1f}" if total.seconds else ""
            counts = str(total.steps), str(total.clips), f"{total.seconds:.1f}"
            cells.append([name, *counts, step, waiting, speed])
        return text_table(["", "steps", "clips", "seconds", "ms/step", "ms waiting", "clips/s"], cells)


def phase_line(schedule: MultigridSchedule, index: int, left: float | None = None) -> str:
    """Returns the line that announces a phase, with the seconds that are left of the training, if known."""
    phase = schedule.phases[index]
    return (
        f"Phase {index} of {len(schedule.phases) - 1}: {phase.shape}, epochs {float(phase.start_epoch):.2f} - "
        f"{float(phase.end_epoch):.2f}, LR scale {phase.lr_scale:g}."
        + ("" if left is None else f" About {duration(left)} left.")
    )


def stopped_line(schedule: MultigridSchedule, index: int, position: float) -> str:
    """Returns the line that says in which phase, and at which position in epochs, a run ended before its plan."""
    last = len(schedule.phases) - 1
    name = "fine-tuning" if schedule.fine_tuning and not schedule.constant_shape else "the last phase"
    missing = f"{name} not reached" if index < last else "in the last one"
    return (
        f"Stopped in phase {index} of {last}, at epoch {position:.2f} of {float(schedule.phases[-1].end_epoch):g}: "
        f"{missing}."
    )


def last_metrics(metrics: Mapping[str, Tensor], lr: float) -> str:
    """Returns the line that says the metrics and the LR at the end of a run."""
    values = {name: float(value) for name, value in metrics.items() if not name.startswith("multigrid/")}
    # Short names are for the progress bar if there is a longer one.
    shown = [f"{name} {values[name]:.4g}" for name in values if not any(n.endswith(f"/{name}") for n in values)]
    return f"At the end: {', '.join([*shown, f'lr {lr:.4g}'])}."
