"""What is said of a run: its phases, the time that each shape took, its metrics."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from lightning_multigrid.grid import BatchShape
from lightning_multigrid.schedule import MultigridSchedule
from lightning_multigrid.tables import text_table

__all__ = ["ShapeTimes", "last_metrics", "phase_line"]


class ShapeTimes:
    """Time spent on each shape of mini-batch: steps, clips and seconds, data loading included."""

    def __init__(self) -> None:
        # An epoch's last mini-batch may be smaller, so the grid is what identifies a shape.
        self._totals: dict[tuple[int, int], tuple[int, int, int, float]] = {}

    def add(self, shape: BatchShape, seconds: float) -> None:
        """Counts a step of a shape, on one device."""
        grid = (shape.frames, shape.size)
        most, steps, clips, total = self._totals.get(grid, (0, 0, 0, 0.0))
        self._totals[grid] = (max(most, shape.clips), steps + 1, clips + shape.clips, total + seconds)

    def __bool__(self) -> bool:
        return bool(self._totals)

    @property
    def seconds(self) -> float:
        """Time of all steps, in seconds."""
        return sum(seconds for *_, seconds in self._totals.values())

    def table(self) -> str:
        """A line per shape, coarse to fine, and one for all of them."""
        rows = [
            [f"{most} x {frames} x {size}", *_cells(steps, clips, seconds)]
            for (frames, size), (most, steps, clips, seconds) in sorted(self._totals.items())
        ]
        rows.append(["all", *_cells(*(sum(column) for column in list(zip(*self._totals.values(), strict=True))[1:]))])
        return text_table(["clips x frames x size", "steps", "clips", "seconds", "ms/step", "clips/s"], rows)


def _cells(steps: float, clips: float, seconds: float) -> list[str]:
    per_second = clips / seconds if seconds else 0.0
    return [f"{steps:.0f}", f"{clips:.0f}", f"{seconds:.1f}", f"{1000 * seconds / steps:.1f}", f"{per_second:.1f}"]


def phase_line(schedule: MultigridSchedule, index: int) -> str:
    """What is said when a phase starts."""
    phase = schedule.phases[index]
    return (
        f"Phase {index} of {len(schedule.phases) - 1}: {phase.shape} (clips x frames x size), epochs "
        f"{float(phase.start_epoch):.2f} - {float(phase.end_epoch):.2f}, LR scale {phase.lr_scale:g}."
    )


def last_metrics(metrics: Mapping[str, Tensor]) -> str:
    """What is said of the metrics when training ends."""
    values = [f"{name} {float(value):.4g}" for name, value in metrics.items() if not name.startswith("multigrid/")]
    return f"At the end: {', '.join(values) or 'no metrics'}."
