"""Multigrid training in Lightning: `MultigridCallback`, and what its hooks call.

It knows Lightning, `schedule`, `norm`, `loading` and `reports`, and nothing of videos. Begin with `callback.py` (when),
then read `fit.py` (what happens in one `fit`), `baseline_lr.py` (the LR rule) and `takeover.py` (what changes in the
Trainer meanwhile). `lightning_internals.py` and `torch_internals.py` are to be read when those libraries release.
"""

from lightning_multigrid.training.atomic_checkpoints import (
    AtomicCheckpointIO,
    DamagedCheckpointError,
    last_whole_checkpoint,
)
from lightning_multigrid.training.baseline_lr import BaselineEpoch, BaselineLR
from lightning_multigrid.training.callback import MultigridCallback
from lightning_multigrid.training.check_grids import meta_copy
from lightning_multigrid.training.compile_grids import CompileGrids
from lightning_multigrid.training.recipe import read_recipe, scheduler_configs
from lightning_multigrid.training.takeover import Takeover

__all__ = [
    "AtomicCheckpointIO",
    "BaselineEpoch",
    "BaselineLR",
    "CompileGrids",
    "DamagedCheckpointError",
    "MultigridCallback",
    "Takeover",
    "last_whole_checkpoint",
    "meta_copy",
    "read_recipe",
    "scheduler_configs",
]
