"""Multigrid training in Lightning: `MultigridCallback`, and what its hooks call.

It imports Lightning and no sub-package for videos except `files`. Begin with the hooks: `callback.py` (when), then
`run.py` and `parts.py` (what). `recipe.py`, `planning.py` and `refusals.py` read the script; the room
`rehearsal` tries it; `baseline_lr.py` and `lr_in_step.py` drive the LR,
`takeover.py` the Trainer, `precise_bn.py` the statistics; `resume.py`, `newest_checkpoint.py` and
`atomic_checkpoints.py` are for checkpoints. `lightning_internals.py` and
`torch_internals.py` hold what is not public there: review them whenever those libraries publish a new version.
"""

from lightning_multigrid.training.atomic_checkpoints import AtomicCheckpointIO
from lightning_multigrid.training.baseline_lr import BaselineLR
from lightning_multigrid.training.callback import MultigridCallback
from lightning_multigrid.training.newest_checkpoint import NewestCheckpoint
from lightning_multigrid.training.planning import lr_rule, make_plan
from lightning_multigrid.training.recipe import read_recipe
from lightning_multigrid.training.rehearsal import PointsOnPlan, batches_of_samples, check_grids, meta_copy
from lightning_multigrid.training.takeover import Takeover

__all__ = ["AtomicCheckpointIO", "BaselineLR"]
__all__ += ["MultigridCallback", "NewestCheckpoint", "PointsOnPlan", "Takeover"]
__all__ += ["batches_of_samples", "check_grids", "lr_rule", "make_plan", "meta_copy", "read_recipe"]
