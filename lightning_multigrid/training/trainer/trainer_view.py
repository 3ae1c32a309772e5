"""What answers as the Trainer, but for what it is told to say instead."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lightning_multigrid.host import LightningModule


class TrainerView:
    """Answers as a Trainer, but for what it is told to say instead."""

    def __init__(self, trainer: Any, **told: Any) -> None:
        vars(self).update(told, _trainer=trainer)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_trainer"], name)


@contextmanager
def sees(module: LightningModule, view: TrainerView) -> Iterator[None]:
    """Within it, a module, and each LightningModule in it, has a view as its Trainer."""
    trainer = module.trainer
    module.trainer = view  # type: ignore[assignment]
    try:
        yield
    finally:
        module.trainer = trainer
