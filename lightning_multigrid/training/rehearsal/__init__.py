"""The grids are tried on a script before its first step: is each one taken, and does it mean the same there?

Begin with `check_grids.py`, which has the order of things. `batches.py` makes mini-batches of a sample and its
variations; `copies.py` copies the module; `trial.py` runs its step and notes what is seen; `rules.py` and `counted.py`
judge that. Each of these imports only those that are named after it.
"""

from lightning_multigrid.training.rehearsal.batches import (
    TRIED_CLIPS,
    ScriptBatches,
    batches_of_samples,
    script_batches,
)
from lightning_multigrid.training.rehearsal.check_grids import check_grids
from lightning_multigrid.training.rehearsal.copies import meta_copy
from lightning_multigrid.training.rehearsal.rules import PointsOnPlan

__all__ = ["TRIED_CLIPS", "PointsOnPlan", "ScriptBatches", "batches_of_samples", "check_grids"]
__all__ += ["meta_copy", "script_batches"]
