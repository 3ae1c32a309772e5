"""Multigrid training of video models (Wu et al., CVPR 2020) as one PyTorch Lightning callback.

To learn the method, read `schedule`, then `norm`, `loading` and `training`, which work for any dataset. `sources`,
`decode`, `pixels`, `clips` and `video` are for videos, and `prepare` makes them faster to read. Each sub-package says
in its docstring what it is for and where to begin.

The public names are imported when they are first used, so that using only the schedule does not import torch.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if os.name != "posix":
    raise ImportError(
        f"lightning-multigrid runs on Linux and macOS, this system is {os.name!r}. It reads files in ways "
        "that others lack. On Windows, use it in the Windows Subsystem for Linux."
    )

if TYPE_CHECKING:
    from lightning_multigrid.clips import Views
    from lightning_multigrid.models import ResizedPositions
    from lightning_multigrid.norm import sub_batches
    from lightning_multigrid.pixels import Augmentation, resample_clips
    from lightning_multigrid.schedule import (
        Baseline,
        BatchShape,
        LongCycle,
        MultigridSchedule,
        Phase,
        Plan,
        ShortCycle,
        Step,
    )
    from lightning_multigrid.training import (
        AtomicCheckpointIO,
        MultigridCallback,
        NewestCheckpoint,
        show_grids,
    )
    from lightning_multigrid.video import (
        MovingShapesDataModule,
        PredictionWriter,
        PretrainedWeights,
        VideoClassifier,
        VideoClips,
        VideoDataModule,
    )

__version__ = "0.7.0"

_NAMES = {
    "clips": "Views",
    "models": "ResizedPositions",
    "norm": "sub_batches",
    "pixels": "Augmentation resample_clips",
    "schedule": "Baseline BatchShape LongCycle MultigridSchedule Phase Plan ShortCycle Step",
    "training": "AtomicCheckpointIO MultigridCallback NewestCheckpoint show_grids",
    "video": "MovingShapesDataModule PredictionWriter PretrainedWeights VideoClassifier VideoClips VideoDataModule",
}
_PACKAGE = {name: package for package, names in _NAMES.items() for name in names.split()}

__all__ = ["AtomicCheckpointIO", "Augmentation", "Baseline", "BatchShape", "LongCycle"]
__all__ += ["MovingShapesDataModule", "MultigridCallback", "MultigridSchedule", "NewestCheckpoint", "Phase"]
__all__ += ["Plan", "PredictionWriter", "PretrainedWeights", "ResizedPositions", "ShortCycle", "Step"]
__all__ += ["VideoClassifier", "VideoClips", "VideoDataModule", "Views", "resample_clips", "show_grids"]
__all__ += ["sub_batches"]


def __getattr__(name: str) -> Any:
    if name not in _PACKAGE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PACKAGE[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__", "models"]
