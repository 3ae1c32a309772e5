"""Multigrid training in Lightning: `MultigridCallback`, and what its hooks call.

It imports Lightning and no sub-package for videos except `files`. Begin with the hooks: `callback.py` (when), then
`run.py` and `parts.py` (what). `recipe.py`, `planning.py` and `refusals.py` read the script; `check_grids.py`,
`rehearsal.py`, `probes.py` and `mini_batches.py` try it; `baseline_lr.py` and `lr_in_step.py` drive the LR,
`takeover.py` the Trainer, `precise_bn.py` the statistics; `resume.py`, `newest_checkpoint.py` and
`atomic_checkpoints.py` are for checkpoints. `lightning_internals.py` and
`torch_internals.py` hold what is not public there: review them whenever those libraries publish a new version.
"""

from lightning_multigrid.training.atomic_checkpoints import AtomicCheckpointIO
from lightning_multigrid.training.baseline_lr import BaselineLR
from lightning_multigrid.training.callback import MultigridCallback
from lightning_multigrid.training.check_grids import PointsOnPlan, check_grids
from lightning_multigrid.training.mini_batches import TRIED_CLIPS, Handler
from lightning_multigrid.training.newest_checkpoint import NewestCheckpoint
from lightning_multigrid.training.planning import lr_rule, make_plan
from lightning_multigrid.training.probes import meta_copy
from lightning_multigrid.training.recipe import read_recipe
from lightning_multigrid.training.takeover import Takeover

__all__ = ["TRIED_CLIPS", "AtomicCheckpointIO", "BaselineLR"]
__all__ += ["Handler", "MultigridCallback", "NewestCheckpoint", "PointsOnPlan", "Takeover"]
__all__ += ["check_grids", "lr_rule", "make_plan", "meta_copy", "read_recipe"]
