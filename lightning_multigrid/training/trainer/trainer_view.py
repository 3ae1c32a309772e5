"""A view of the Trainer: it answers as the Trainer, but for its overrides."""

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
