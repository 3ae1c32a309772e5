"""Times of the steps on each grid, measured and predicted, and the lines that a run prints."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from lightning_multigrid.reports.step_times import StepTime, StepTotals
from lightning_multigrid.schedule import BatchShape, MultigridSchedule, duration, text_table


@dataclass(frozen=True)
class TimesRow:
    """Times of the steps on a grid, on one device: the largest mini-batch, sums, and seconds of a step by its FLOPs."""

    shape: BatchShape
    total: StepTotals
    predicted: float

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
    """Times of the steps on each grid: measured, or predicted from other grids before the first step on a grid.

    `flops` are those of a clip of each grid, in any unit. Unknown ones are taken in proportion to t s^2 (Eq. 1).
    """

    def __init__(self, flops: Mapping[BatchShape, float]) -> None:
        self._flops = flops
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

    def predicted(self, shape: BatchShape) -> float:
        """Seconds of a step by its FLOPs, at the FLOPs per second of all measured steps together."""
        done = sum(grid.pace.clips * self._cost(clip) for clip, grid in self._grids.items())
        taken = sum(grid.pace.stepping for grid in self._grids.values())
        return shape.clips * self._cost(shape.clip) * taken / done

    def stepping(self, shape: BatchShape) -> float:
        """Seconds of a step without waiting: measured on its grid, else predicted."""
        grid = self._grids.get(shape.clip)
        return shape.clips * grid.pace.stepping / grid.pace.clips if grid else self.predicted(shape)

    def step_seconds(self, shape: BatchShape) -> float:
        """Seconds of a step with its waiting; on a grid without measurements, for a loader of the same speed."""
        grid, stepping = self._grids.get(shape.clip), self.stepping(shape)
        if grid:
            return stepping + shape.clips * grid.all.waiting / grid.all.clips
        # If steps wait at all, the loader sets the pace.
        waits = 20 * self.all.waiting > self.all.seconds
        return max(stepping, shape.clips * self.all.seconds / self.all.clips) if waits else stepping

    def _cost(self, clip: BatchShape) -> float:
        return self._flops.get(clip, 0.0) or clip.points

    @property
    def rows(self) -> list[TimesRow]:
        """The times of each shape, coarse to fine."""
        found = []
        for _, grid in sorted(self._grids.items(), key=lambda item: (item[0].frames, item[0].size)):
            share = grid.all.clips / grid.all.steps / grid.most.clips  # the last mini-batch of an epoch may be smaller
            found.append(TimesRow(grid.most, grid.all, self.predicted(grid.most) * share))
        return found

    def table(self) -> str:
        cells = []
        lines = [(str(row.shape), row.total, f"{1000 * row.predicted:.1f}") for row in self.rows]
        for name, total, by_flops in [*lines, ("all", self.all, "")]:
            step, waiting = (f"{1000 * seconds / total.steps:.1f}" for seconds in (total.stepping, total.waiting))
            speed = f"{total.clips / total.seconds:.1f}" if total.seconds else ""
            counts = str(total.steps), str(total.clips), f"{total.seconds:.1f}"
            cells.append([name, *counts, step, waiting, by_flops, speed])
        times = ["seconds", "ms/step", "ms waiting", "ms by FLOPs", "clips/s"]
        return text_table(["", "steps", "clips", *times], cells)


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
    name = "fine-tuning" if schedule.fine_tuning and not schedule.flat else "the last phase"
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
