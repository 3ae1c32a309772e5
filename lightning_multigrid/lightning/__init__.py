"""Lightning under the name by which the script imports it: `lightning.pytorch` or `pytorch_lightning`.

The two have the same code, but different classes, and each refuses the other's modules. The sub-packages below take
Lightning's names from here; only the command line always uses `lightning`. Begin with the imports: they are of
`pytorch_lightning` if the script has imported that one only. The other one is not imported: that takes a second, and
moves the messages of both to the logger of the last.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from lightning_utilities.core import overrides

if not TYPE_CHECKING and "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    from pytorch_lightning import Callback, LightningDataModule, LightningModule, Trainer
    from pytorch_lightning.callbacks import BasePredictionWriter
    from pytorch_lightning.plugins.io import TorchCheckpointIO
    from pytorch_lightning.trainer.states import TrainerFn
    from pytorch_lightning.utilities.exceptions import MisconfigurationException
    from pytorch_lightning.utilities.types import LRSchedulerConfig, OptimizerLRScheduler
else:
    from lightning.fabric.utilities.exceptions import MisconfigurationException
    from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
    from lightning.pytorch.callbacks import BasePredictionWriter
    from lightning.pytorch.plugins.io import TorchCheckpointIO
    from lightning.pytorch.trainer.states import TrainerFn
    from lightning.pytorch.utilities.types import LRSchedulerConfig, OptimizerLRScheduler

__all__ = [
    "BasePredictionWriter",
    "Callback",
    "LRSchedulerConfig",
    "LightningDataModule",
    "LightningModule",
    "MisconfigurationException",
    "OptimizerLRScheduler",
    "TorchCheckpointIO",
    "Trainer",
    "TrainerFn",
    "is_a",
    "is_overridden",
]


def _classes(name: str) -> tuple[type, ...]:
    found = []
    for package in ("lightning.pytorch", "pytorch_lightning"):
        with suppress(KeyError, AttributeError):  # not imported, or of a version without this class
            found.append(attrgetter(name)(sys.modules[package]))
    return tuple(found)


def is_a(thing: object, *names: str) -> bool:
    """Returns whether something is of a class with one of these names, of either package."""
    return any(isinstance(thing, _classes(name)) for name in names)


def is_overridden(method: str, owner: Any) -> bool:
    """Returns whether a module or a data module, of either package, has its own version of a method."""
    parents = (*_classes("LightningModule"), *_classes("LightningDataModule"))
    return overrides.is_overridden(method, owner, next(parent for parent in parents if isinstance(owner, parent)))
