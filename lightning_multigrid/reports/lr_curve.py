"""The LR over a training."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LRPoint"]


@dataclass(frozen=True)
class LRPoint:
    """The LR at a position.

    Args:
        position: In epochs of the multigrid training.
        lr: That is used there.
        baseline_lr: Of the baseline at the corresponding epoch.
    """

    position: float
    lr: float
    baseline_lr: float
