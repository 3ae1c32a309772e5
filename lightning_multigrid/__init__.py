"""Multigrid training of video models (Wu et al., CVPR 2020) as one PyTorch Lightning callback.

The public names are imported when they are first used, so that the schedule costs no `import torch`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_multigrid.callback import MultigridCallback as MultigridCallback
    from lightning_multigrid.checkpoints import AtomicCheckpointIO as AtomicCheckpointIO
    from lightning_multigrid.checkpoints import last_whole_checkpoint as last_whole_checkpoint
    from lightning_multigrid.classifier import VideoClassifier as VideoClassifier
    from lightning_multigrid.compiled import CompileGrids as CompileGrids
    from lightning_multigrid.datamodule import VideoDataModule as VideoDataModule
    from lightning_multigrid.grid import BatchShape as BatchShape
    from lightning_multigrid.moving_shapes import MovingShapesDataModule as MovingShapesDataModule
    from lightning_multigrid.norm import SubBatchNorm1d as SubBatchNorm1d
    from lightning_multigrid.norm import SubBatchNorm2d as SubBatchNorm2d
    from lightning_multigrid.norm import SubBatchNorm3d as SubBatchNorm3d
    from lightning_multigrid.norm import convert_sub_batchnorm as convert_sub_batchnorm
    from lightning_multigrid.predictions import PredictionWriter as PredictionWriter
    from lightning_multigrid.resample import resample_clips as resample_clips
    from lightning_multigrid.schedule import Baseline as Baseline
    from lightning_multigrid.schedule import LongCycle as LongCycle
    from lightning_multigrid.schedule import MultigridSchedule as MultigridSchedule
    from lightning_multigrid.schedule import Phase as Phase
    from lightning_multigrid.schedule import ShortCycle as ShortCycle
    from lightning_multigrid.schedule import Step as Step
    from lightning_multigrid.views import Views as Views

__version__ = "0.1.0"

_MODULES = {
    "callback": ("MultigridCallback",),
    "checkpoints": ("AtomicCheckpointIO", "last_whole_checkpoint"),
    "classifier": ("VideoClassifier",),
    "compiled": ("CompileGrids",),
    "datamodule": ("VideoDataModule",),
    "grid": ("BatchShape",),
    "moving_shapes": ("MovingShapesDataModule",),
    "norm": ("SubBatchNorm1d", "SubBatchNorm2d", "SubBatchNorm3d", "convert_sub_batchnorm"),
    "predictions": ("PredictionWriter",),
    "resample": ("resample_clips",),
    "schedule": ("Baseline", "LongCycle", "MultigridSchedule", "Phase", "ShortCycle", "Step"),
    "views": ("Views",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__", "models"]
