"""A view of the Trainer: it answers as the Trainer, but for its overrides."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from lightning_multigrid.host import is_a


class TrainerView:
    """Answers as a Trainer, or a part of one. Nothing that is set on it reaches the Trainer."""

    def __init__(self, trainer: Any, **overrides: Any) -> None:
        vars(self).update(overrides, _trainer=trainer)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_trainer"], name)


def lightning_modules(module: nn.Module) -> list[Any]:
    """Returns each LightningModule in `module.modules()`: a walk that takes a millisecond in a large model."""
    return [part for part in module.modules() if is_a(part, "LightningModule")]


@contextmanager
def sees(modules: Sequence[Any], view: Any) -> Iterator[None]:
    """Within it, these LightningModules have the view as their Trainer."""
    before = [(part, _trainer_of(part)) for part in modules]
    for part in modules:
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
