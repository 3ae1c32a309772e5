"""What holds for either of Lightning's two packages: whose classes things are of, and what is said through it."""

import sys
from contextlib import suppress
from operator import attrgetter
from typing import Any

from lightning_utilities.core import overrides
from lightning_utilities.core.rank_zero import rank_zero_info

_PACKAGES = "lightning.pytorch", "pytorch_lightning"


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
