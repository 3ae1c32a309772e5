"""Mini-batches as `training_step` is given them, made or moved outside of Lightning's loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
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
    # Before masks, which may be as large.
    return max(
        (tensor for tensor in found if tensor.ndim in (4, 5)),
        key=lambda tensor: (tensor.dtype == torch.uint8 or tensor.is_floating_point(), tensor.ndim),
        default=None,
    )


def shapes_of_clips(batch: Any) -> list[torch.Size]:
    """Returns the shapes of all tensors of a mini-batch that may be clips or images."""
    found: list[Tensor] = []
    apply_to_collection(batch, Tensor, found.append)
    return [tensor.shape for tensor in found if tensor.ndim in (4, 5)]


class Place(NamedTuple):
    """A place on the way of a mini-batch."""

    name: str
    through: Callable[[Any], Any]  # from a grid at the first place, else from the mini-batch of the place before


def _owner(name: str, trainer: Trainer, module: LightningModule) -> Any:
    """Returns whose hook is given mini-batches: the data module if it overrides the hook, as Lightning chooses."""
    data = trainer.datamodule  # type: ignore[attr-defined]
    return data if data is not None and is_overridden(name, data) else module


def _hook(name: str, trainer: Trainer, module: LightningModule) -> Callable[..., Any]:
    return getattr(_owner(name, trainer, module), name)  # type: ignore[no-any-return]


def _read(loader: MultigridLoader, grid: BatchShape, clips: int) -> Any:
    """Makes a mini-batch on a grid out of one clip, as a worker does."""
    return loader.dataset[[ClipRequest(getattr(loader.clips, "first", 0), grid.frames, grid.size, seed=0)] * clips]


def batch_maker(trainer: Trainer, module: LightningModule, loader: MultigridLoader) -> Callable[[BatchShape], Any]:
    """Returns a function that makes a mini-batch on a grid, out of one clip, on the device."""

    def make(grid: BatchShape) -> Any:
        with seeded(0):
            return on_device(trainer, module, _read(loader, grid, grid.clips))

    return make


def places(trainer: Trainer, module: LightningModule, loader: MultigridLoader) -> list[Place]:
    """Returns the places that a mini-batch of `TRIED_CLIPS` clips passes before a step, but for the device."""
    found = [Place("the dataset or its `collate_fn`", lambda grid: _read(loader, grid, TRIED_CLIPS))]
    for name in ("on_before_batch_transfer", "on_after_batch_transfer"):
        owner = _owner(name, trainer, module)
        hook = partial(_call, getattr(owner, name))
        found.append(Place(f"`{name}` of {type(owner).__name__}", hook))
    return found


def _call(hook: Callable[[Any, int], Any], batch: Any) -> Any:
    return hook(batch, 0)


def on_device(trainer: Trainer, module: LightningModule, batch: Any) -> Any:
    """Moves a mini-batch of a loader to the device, with all that Lightning does to it on the way."""
    batch = trainer.precision_plugin.convert_input(batch)
    batch = _hook("on_before_batch_transfer", trainer, module)(batch, 0)
    batch = _hook("transfer_batch_to_device", trainer, module)(batch, trainer.strategy.root_device, 0)
    return _hook("on_after_batch_transfer", trainer, module)(batch, 0)
