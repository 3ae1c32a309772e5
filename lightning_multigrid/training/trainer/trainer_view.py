"""A view of the Trainer: it answers as the Trainer, but for what it is told."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from lightning_multigrid.host import is_a


class TrainerView:
    """Answers as a Trainer, or a part of one. Nothing that is set on it reaches the Trainer."""

    def __init__(self, trainer: Any, **told: Any) -> None:
        vars(self).update(told, _trainer=trainer)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_trainer"], name)


def lightning_modules(module: nn.Module) -> list[Any]:
    """Returns each LightningModule in `module.modules()`."""
    return [part for part in module.modules() if is_a(part, "LightningModule")]


@contextmanager
def sees(module: nn.Module, view: Any, parts: Sequence[Any] | None = None) -> Iterator[None]:
    """Within it, each LightningModule in `module.modules()` has the view as its Trainer.

    `parts` are these, if they are known: to walk through a large model takes a millisecond.
    """
    parts = lightning_modules(module) if parts is None else parts
    before = [(part, _trainer_of(part)) for part in parts]
    for part in parts:
        part.trainer = view
    try:
        yield
    finally:
        for part, trainer in before:
            part.trainer = trainer


def _trainer_of(part: Any) -> Any:
    try:
        return part.trainer
    except RuntimeError:  # it has none
        return None
