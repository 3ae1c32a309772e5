"""Which of Lightning's two packages this process uses, what it has of them, and what is said through it.

It is `pytorch_lightning` if the script has imported that one only, else `lightning.pytorch`. The other one is not
imported: that takes a second, and moves the messages of both to the logger of the last.
"""

import sys
from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from lightning_utilities.core import overrides
from lightning_utilities.core.rank_zero import rank_zero_info

_PACKAGES = "lightning.pytorch", "pytorch_lightning"

if not TYPE_CHECKING and "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    from pytorch_lightning import Callback, LightningDataModule, LightningModule, Trainer
    from pytorch_lightning.callbacks import BasePredictionWriter, ModelCheckpoint
    from pytorch_lightning.loggers.logger import DummyLogger
    from pytorch_lightning.plugins.io import TorchCheckpointIO
    from pytorch_lightning.trainer.states import TrainerFn
    from pytorch_lightning.utilities.exceptions import MisconfigurationException, SIGTERMException
    from pytorch_lightning.utilities.types import LRSchedulerConfig, OptimizerLRScheduler
else:
    from lightning.fabric.utilities.exceptions import MisconfigurationException as MisconfigurationException
    from lightning.pytorch import Callback as Callback
    from lightning.pytorch import LightningDataModule as LightningDataModule
    from lightning.pytorch import LightningModule as LightningModule
    from lightning.pytorch import Trainer as Trainer
    from lightning.pytorch.callbacks import BasePredictionWriter as BasePredictionWriter
    from lightning.pytorch.callbacks import ModelCheckpoint as ModelCheckpoint
    from lightning.pytorch.loggers.logger import DummyLogger as DummyLogger
    from lightning.pytorch.plugins.io import TorchCheckpointIO as TorchCheckpointIO
    from lightning.pytorch.trainer.states import TrainerFn as TrainerFn
    from lightning.pytorch.utilities.exceptions import SIGTERMException as SIGTERMException
    from lightning.pytorch.utilities.types import LRSchedulerConfig as LRSchedulerConfig
    from lightning.pytorch.utilities.types import OptimizerLRScheduler as OptimizerLRScheduler


def _classes(name: str) -> tuple[type, ...]:
    found = []
    for package in _PACKAGES:
        with suppress(KeyError, AttributeError):  # not imported, or of a version without this class
            found.append(attrgetter(name)(sys.modules[package]))
    return tuple(found)


def is_a(thing: object, name: str) -> bool:
    """Returns whether something is of the class with this name, of either package."""
    return isinstance(thing, _classes(name))


def callbacks_of(trainer: Any, kind: str) -> list[Any]:
    """Returns the callbacks of a Trainer that are of this class, of either package."""
    return [callback for callback in trainer.callbacks if is_a(callback, f"callbacks.{kind}")]


def is_overridden(method: str, owner: Any) -> bool:
    """Returns whether a module or a data module, of either package, has its own version of a method."""
    parents = (*_classes("LightningModule"), *_classes("LightningDataModule"))
    return overrides.is_overridden(method, owner, next(parent for parent in parents if isinstance(owner, parent)))


tell = rank_zero_info  # on the first rank, by Lightning's logger


def tell_above_bar(trainer: Any, text: str) -> None:
    """Says something on the first rank while a progress bar may be on the terminal, whose line would be broken."""
    bar = trainer.progress_bar_callback
    if bar is None or getattr(bar, "is_disabled", False):  # a script's own bar may not know it
        tell(text)
    elif trainer.is_global_zero:
        bar.print(text)
