"""Times of the steps on each grid, measured and predicted, and the lines that a run prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from lightning_multigrid.reports.step_times import StepTime
from lightning_multigrid.schedule import BatchShape, MultigridSchedule, duration, text_table


@dataclass(frozen=True)
class TimesRow:
    """Times of the steps on a grid, on one device.

    Args:
        shape: The largest mini-batch on the grid.
        steps: Mini-batches.
        clips: Clips of all these mini-batches.
        step: Mean seconds of a step without waiting.
        waiting: Mean seconds of waiting for the loader before a step.
        predicted: Mean seconds of a step by its FLOPs, at the FLOPs per second of the whole run.
    """

    shape: BatchShape
    steps: int
    clips: int
    step: float
    waiting: float
    predicted: float


@dataclass
class _Total:
    """Sums over the steps on a grid, and over those that set its pace: all but the first, which takes longer.

    While there is only one step, that one sets the pace.
    """

    most: BatchShape
    steps: int = 0
    clips: int = 0
    waiting: float = 0.0
    stepping: float = 0.0
    pace_clips: int = 0
    pace_seconds: float = 0.0

    def add(self, time: StepTime) -> None:
        shape = time.step.shape
        self.most = max(self.most, shape, key=lambda shape: shape.clips)
        if self.steps == 1:
            self.pace_clips, self.pace_seconds = 0, 0.0
        self.steps += 1
        self.clips += shape.clips
        self.waiting += time.waiting
        self.stepping += time.stepping
        self.pace_clips += shape.clips
        self.pace_seconds += time.stepping


class ShapeTimes:
    """Times of the steps on each grid: measured, or predicted from other grids before the first step on a grid.

    `flops` are those of a clip of each grid, in any unit. Unknown ones are taken in proportion to t s^2 (Eq. 1).
    """

    def __init__(self, flops: Mapping[BatchShape, float]) -> None:
        self._flops = flops
        self._totals: dict[BatchShape, _Total] = {}

    def add(self, time: StepTime) -> None:
        """Counts a step on one device."""
        shape = time.step.shape
        self._totals.setdefault(shape.clip, _Total(shape)).add(time)

    def __bool__(self) -> bool:
        return bool(self._totals)

    @property
    def seconds(self) -> float:
        """Time of all steps with their waiting, in seconds."""
        return sum(total.waiting + total.stepping for total in self._totals.values())

    def measured(self, shape: BatchShape) -> bool:
        """Returns whether more steps were measured on the grid of a shape than the first, which takes longer."""
        return shape.clip in self._totals and self._totals[shape.clip].steps > 1

    def predicted(self, shape: BatchShape) -> float:
        """Seconds of a step by its FLOPs, at the FLOPs per second of all measured steps together."""
        done = sum(total.pace_clips * self._cost(clip) for clip, total in self._totals.items())
        taken = sum(total.pace_seconds for total in self._totals.values())
        return shape.clips * self._cost(shape.clip) * taken / done

    def stepping(self, shape: BatchShape) -> float:
        """Seconds of a step without waiting: measured on its grid, else predicted."""
        total = self._totals.get(shape.clip)
        return shape.clips * total.pace_seconds / total.pace_clips if total else self.predicted(shape)

    def step_seconds(self, shape: BatchShape) -> float:
        """Seconds of a step with its waiting; on a grid without measurements, for a loader of the same speed."""
        total, stepping = self._totals.get(shape.clip), self.stepping(shape)
        if total:
            return stepping + shape.clips * total.waiting / total.clips
        waiting = sum(total.waiting for total in self._totals.values())
        clips = sum(total.clips for total in self._totals.values())
        # If steps wait at all, the loader sets the pace.
        return max(stepping, shape.clips * self.seconds / clips) if 20 * waiting > self.seconds else stepping

    def _cost(self, clip: BatchShape) -> float:
        return self._flops.get(clip, 0.0) or clip.points

    @property
    def rows(self) -> list[TimesRow]:
        """The times of each shape, coarse to fine."""
        return [
            TimesRow(
                total.most,
                total.steps,
                total.clips,
                step=total.stepping / total.steps,
                waiting=total.waiting / total.steps,
                predicted=self.predicted(total.most) * total.clips / total.steps / total.most.clips,
            )
            for _, total in sorted(self._totals.items(), key=lambda item: (item[0].frames, item[0].size))
        ]

    def table(self) -> str:
        """Returns a line per shape, coarse to fine, and a line for all of them."""
        rows = self.rows
        cells = [[str(row.shape), *_cells(row.steps, row.clips, row.step, row.waiting, row.predicted)] for row in rows]
        steps, clips = sum(row.steps for row in rows), sum(row.clips for row in rows)
        step = sum(row.steps * row.step for row in rows) / steps
        waiting = sum(row.steps * row.waiting for row in rows) / steps
        cells.append(["all", *_cells(steps, clips, step, waiting, predicted=None)])
        times = ["seconds", "ms/step", "ms waiting", "ms by FLOPs", "clips/s"]
        return text_table(["clips x frames x size", "steps", "clips", *times], cells)


def _cells(steps: int, clips: int, step: float, waiting: float, predicted: float | None) -> list[str]:
    seconds = steps * (step + waiting)
    by_flops = "" if predicted is None else f"{1000 * predicted:.1f}"
    times = f"{seconds:.1f}", f"{1000 * step:.1f}", f"{1000 * waiting:.1f}", by_flops
    return [str(steps), str(clips), *times, f"{clips / seconds:.1f}" if seconds else ""]


def phase_line(schedule: MultigridSchedule, index: int, left: float | None = None) -> str:
    """Returns the line that announces a phase, with the seconds that are left of the training, if known."""
    phase = schedule.phases[index]
    return (
        f"Phase {index} of {len(schedule.phases) - 1}: {phase.shape} (clips x frames x size), epochs "
        f"{float(phase.start_epoch):.2f} - {float(phase.end_epoch):.2f}, LR scale {phase.lr_scale:g}."
        + ("" if left is None else f" About {duration(left)} left.")
    )


def last_metrics(metrics: Mapping[str, Tensor]) -> str:
    """Returns the line that says the metrics at the end of a run."""
    values = [f"{name} {float(value):.4g}" for name, value in metrics.items() if not name.startswith("multigrid/")]
    return f"At the end: {', '.join(values) or 'no metrics'}."
