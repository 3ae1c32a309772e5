"""The LR over a run."""

from __future__ import annotations

import math
from dataclasses import dataclass

_POINTS = 1000  # about as many as a figure is wide


@dataclass(frozen=True)
class LRPoint:
    """The LR at a position.

    Args:
        position: In epochs of the multigrid training.
        lr: The LR in use.
        baseline_lr: The LR of the baseline at the corresponding epoch.
    """

    position: float
    lr: float
    baseline_lr: float


class LRCurve:
    """Keeps the points of the LR curve of a run where the LR changes, and a few between them."""

    def __init__(self, epochs: int) -> None:
        self.points: list[LRPoint] = []
        self._distance = epochs / _POINTS
        self._previous: LRPoint | None = None  # the last point, whether it was kept or not

    def add(self, point: LRPoint) -> None:
        """Notes the LR of a step."""
        previous, self._previous = self._previous, point
        if previous is not None:
            last = self.points[-1]
            if math.isclose(point.lr, last.lr, rel_tol=0.02) and point.position - last.position < self._distance:
                return
            if previous is not last:
                self.points.append(previous)  # so that a figure shows a jump where it is
        self.points.append(point)
