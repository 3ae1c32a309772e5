"""Mini-batches as `training_step` is given them, made or moved outside of Lightning's loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

from lightning_multigrid.lightning import LightningModule, Trainer, is_overridden
from lightning_multigrid.loading import ClipRequest, MultigridLoader, seeded
from lightning_multigrid.schedule import BatchShape

TRIED_CLIPS = 2  # clips of a small mini-batch: BatchNorm needs more than one value per channel


def first_clips(batch: Any) -> Tensor | None:
    """Returns the first tensor of a mini-batch that may be clips, else the first that may be images."""
    found: list[Tensor] = []
    apply_to_collection(batch, Tensor, found.append)
    return max((tensor for tensor in found if tensor.ndim in (4, 5)), key=lambda tensor: tensor.ndim, default=None)


def _hook(name: str, trainer: Trainer, module: LightningModule) -> Callable[..., Any]:
    """Returns a hook that is given mini-batches: the data module's if it overrides the hook, as Lightning chooses."""
    data = trainer.datamodule  # type: ignore[attr-defined]
    return getattr(data if data is not None and is_overridden(name, data) else module, name)  # type: ignore[no-any-return]


def batch_maker(
    trainer: Trainer, module: LightningModule, loader: MultigridLoader, whole: bool = False
) -> Callable[[BatchShape], Any]:
    """Returns a function that makes a mini-batch on a grid, out of one clip.

    If `whole`, it has as many clips as the grid, on the device; else `TRIED_CLIPS` where the loader leaves them.
    """

    def make(grid: BatchShape) -> Any:
        request = ClipRequest(getattr(loader.clips, "first", 0), grid.frames, grid.size, seed=0)
        requests = [request] * (grid.clips if whole else TRIED_CLIPS)
        with seeded(0):
            batch = loader.dataset[requests]  # as a worker asks for it
            if whole:
                return on_device(trainer, module, batch)
            batch = _hook("on_before_batch_transfer", trainer, module)(batch, 0)
            return _hook("on_after_batch_transfer", trainer, module)(batch, 0)

    return make


def on_device(trainer: Trainer, module: LightningModule, batch: Any) -> Any:
    """Moves a mini-batch of a loader to the device, with all that Lightning does to it on the way."""
    batch = trainer.precision_plugin.convert_input(batch)
    batch = _hook("on_before_batch_transfer", trainer, module)(batch, 0)
    batch = _hook("transfer_batch_to_device", trainer, module)(batch, trainer.strategy.root_device, 0)
    return _hook("on_after_batch_transfer", trainer, module)(batch, 0)
