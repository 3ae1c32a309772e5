"""Multigrid training in Lightning: `MultigridCallback`, and what its hooks call.

It imports Lightning and no sub-package for videos except `files`. Begin with the hooks: `callback.py` (when), then
`run.py`; `told.py` says what is planned. The rooms are `script` (what the script says), `rehearsal` (is the plan fit
for the model), `parts` and `lr` (what a run does in a step), `checkpoints`, and `trainer` (what is changed in
Lightning, and what is not public there).
"""

from lightning_multigrid.training.callback import MultigridCallback
from lightning_multigrid.training.checkpoints.atomic_checkpoints import AtomicCheckpointIO
from lightning_multigrid.training.checkpoints.continuation import FROM_WEIGHTS
from lightning_multigrid.training.checkpoints.newest_checkpoint import NewestCheckpoint
from lightning_multigrid.training.lr.baseline_lr import BaselineLR
from lightning_multigrid.training.pictures import show_grids
from lightning_multigrid.training.plan_ahead import make_optimizers, measure
from lightning_multigrid.training.plan_loader import check_parts
from lightning_multigrid.training.script.optimizers import auto_lr_scaling
from lightning_multigrid.training.script.planning import check_steps, make_plan
from lightning_multigrid.training.script.recipe import read_recipe, user_loader
from lightning_multigrid.training.told import lr_rule, tell_notes
from lightning_multigrid.training.trainer.changes import Changes
from lightning_multigrid.training.trainer.lightning_internals import attach, replace_loader

__all__ = ["FROM_WEIGHTS", "AtomicCheckpointIO", "BaselineLR", "Changes"]
__all__ += ["MultigridCallback", "NewestCheckpoint", "attach", "auto_lr_scaling", "check_parts"]
__all__ += ["check_steps", "lr_rule", "make_optimizers", "make_plan", "measure", "read_recipe"]
__all__ += ["replace_loader", "show_grids", "tell_notes", "user_loader"]
