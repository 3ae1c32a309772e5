"""Which mini-batch has which shape and LR: the arithmetic of the paper (Sec. 3.1 and 3.2), as pure functions.

It imports only the standard library, and every rank and every restart computes the same. Begin with `grid.py` (what a
shape is, Eq. 1), then `cycles.py` (what a user chooses), `schedule.py` (the phases) and `plan.py` (the steps
of a number of clips).
"""

from lightning_multigrid.schedule.cycles import Baseline, Epochs, LongCycle, Phase, Place, ShortCycle, Step, exact
from lightning_multigrid.schedule.grid import BatchShape, ClipShape, frame_indices, short_side_range, span, stride_range
from lightning_multigrid.schedule.kinds import check_kinds
from lightning_multigrid.schedule.plan import EpochLength, Plan
from lightning_multigrid.schedule.schedule import LR_POWERS, LRScaling, MultigridSchedule
from lightning_multigrid.schedule.tables import counted, duration, text_table, three_digits

__all__ = ["LR_POWERS", "Baseline", "BatchShape", "ClipShape", "EpochLength", "Epochs", "LRScaling"]
__all__ += ["LongCycle", "MultigridSchedule", "Phase", "Place", "Plan", "ShortCycle", "Step", "check_kinds", "counted"]
__all__ += ["duration", "exact", "frame_indices", "short_side_range", "span", "stride_range", "text_table"]
__all__ += ["three_digits"]
