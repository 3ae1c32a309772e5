"""Which mini-batch has which shape and LR: the arithmetic of the paper (Sec. 3.1 and 3.2), as pure functions.

It knows the standard library only, so it costs no `import torch`, and every rank and every restart computes the same.
Begin with `grid.py` (the shape of a mini-batch, Eq. 1), then `cycles.py` (what a user chooses) and `schedule.py`.
"""

from lightning_multigrid.schedule.cycles import Baseline, Epochs, LongCycle, ShortCycle
from lightning_multigrid.schedule.grid import BatchShape, frame_indices, short_side_range, span, stride_range
from lightning_multigrid.schedule.schedule import Clips, LRScaling, MultigridSchedule, Phase, Step
from lightning_multigrid.schedule.tables import duration, text_table

__all__ = [
    "Baseline",
    "BatchShape",
    "Clips",
    "Epochs",
    "LRScaling",
    "LongCycle",
    "MultigridSchedule",
    "Phase",
    "ShortCycle",
    "Step",
    "duration",
    "frame_indices",
    "short_side_range",
    "span",
    "stride_range",
    "text_table",
]
