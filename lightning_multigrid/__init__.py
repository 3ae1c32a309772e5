"""Multigrid training of video models (Wu et al., CVPR 2020) as one PyTorch Lightning callback.

To learn the method, read `schedule`, then `norm`, `loading` and `training`, which work for any dataset. `sources`,
`decode`, `pixels`, `clips` and `video` are for videos, and `prepare` makes them faster to read. Each sub-package says
in its docstring what it is for and where to begin.

The public names are imported when they are first used, so that using only the schedule does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_multigrid.clips import Views as Views
    from lightning_multigrid.models import ResizedPositions as ResizedPositions
    from lightning_multigrid.norm import SubBatchNorm1d as SubBatchNorm1d
    from lightning_multigrid.norm import SubBatchNorm2d as SubBatchNorm2d
    from lightning_multigrid.norm import SubBatchNorm3d as SubBatchNorm3d
    from lightning_multigrid.norm import convert_sub_batchnorm as convert_sub_batchnorm
    from lightning_multigrid.pixels import Augmentation as Augmentation
    from lightning_multigrid.pixels import resample_clips as resample_clips
    from lightning_multigrid.schedule import Baseline as Baseline
    from lightning_multigrid.schedule import BatchShape as BatchShape
    from lightning_multigrid.schedule import LongCycle as LongCycle
    from lightning_multigrid.schedule import MultigridSchedule as MultigridSchedule
    from lightning_multigrid.schedule import Phase as Phase
    from lightning_multigrid.schedule import ShortCycle as ShortCycle
    from lightning_multigrid.schedule import Step as Step
    from lightning_multigrid.training import AtomicCheckpointIO as AtomicCheckpointIO
    from lightning_multigrid.training import CompileGrids as CompileGrids
    from lightning_multigrid.training import MultigridCallback as MultigridCallback
    from lightning_multigrid.training import last_whole_checkpoint as last_whole_checkpoint
    from lightning_multigrid.video import MovingShapesDataModule as MovingShapesDataModule
    from lightning_multigrid.video import PredictionWriter as PredictionWriter
    from lightning_multigrid.video import PretrainedWeights as PretrainedWeights
    from lightning_multigrid.video import VideoClassifier as VideoClassifier
    from lightning_multigrid.video import VideoDataModule as VideoDataModule

__version__ = "0.1.0"

_NAMES = {
    "clips": ("Views",),
    "models": ("ResizedPositions",),
    "norm": ("SubBatchNorm1d", "SubBatchNorm2d", "SubBatchNorm3d", "convert_sub_batchnorm"),
    "pixels": ("Augmentation", "resample_clips"),
    "schedule": ("Baseline", "BatchShape", "LongCycle", "MultigridSchedule", "Phase", "ShortCycle", "Step"),
    "training": ("AtomicCheckpointIO", "CompileGrids", "MultigridCallback", "last_whole_checkpoint"),
    "video": (
        *("MovingShapesDataModule", "PredictionWriter", "PretrainedWeights"),
        *("VideoClassifier", "VideoDataModule"),
    ),
}
_PACKAGE = {name: package for package, names in _NAMES.items() for name in names}

__all__ = sorted(_PACKAGE)


def __getattr__(name: str) -> Any:
    if name not in _PACKAGE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PACKAGE[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__", "models"]
