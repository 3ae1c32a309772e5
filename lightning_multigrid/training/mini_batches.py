"""Mini-batches as `training_step` is given them, made or moved outside of Lightning's loop."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

from lightning_multigrid.host import LightningModule, Trainer, is_overridden
from lightning_multigrid.loading import ClipRequest, MultigridLoader
from lightning_multigrid.schedule import BatchShape

TRIED_CLIPS = 2  # clips of a small mini-batch: BatchNorm needs more than one value per channel


def _clips_in(batch: Any) -> list[Tensor]:
    found: list[Tensor] = []
    apply_to_collection(batch, Tensor, found.append)
    return [tensor for tensor in found if tensor.ndim in (4, 5)]


def first_clips(batch: Any) -> Tensor | None:
    """Returns the first tensor of a mini-batch that may be clips, else the first that may be images."""
    # Before masks, which may be as large.
    return max(
        _clips_in(batch),
        key=lambda tensor: (tensor.dtype == torch.uint8 or tensor.is_floating_point(), tensor.ndim),
        default=None,
    )


def shapes_of_clips(batch: Any) -> list[torch.Size]:
    """Returns the shapes of all tensors of a mini-batch that may be clips or images."""
    return [tensor.shape for tensor in _clips_in(batch)]


class Handler(NamedTuple):
    """Something of the script that makes or changes mini-batches before a step."""

    name: str
    handle: Callable[[Any], Any]  # of the first one a grid, of the others the mini-batch that the one before returned


def _owner(name: str, trainer: Trainer, module: LightningModule) -> Any:
    """Returns whose hook is given mini-batches: the data module if it overrides the hook, as Lightning chooses."""
    data = trainer.datamodule  # type: ignore[attr-defined]
    return data if data is not None and is_overridden(name, data) else module


def read_on_grid(loader: MultigridLoader, grid: BatchShape, clips: int) -> Any:
    """Makes a mini-batch of some clips on a grid out of one clip, as a worker does."""
    return loader.read([ClipRequest(getattr(loader.clip_dataset, "first", 0), grid.frames, grid.size, seed=0)] * clips)


def handlers(trainer: Trainer, module: LightningModule, loader: MultigridLoader) -> list[Handler]:
    """Returns what handles a mini-batch of `TRIED_CLIPS` clips before a step, but for the move to the device."""

    def hook(name: str) -> Handler:
        owner = _owner(name, trainer, module)
        return Handler(f"`{name}` of {type(owner).__name__}", lambda batch: getattr(owner, name)(batch, 0))

    dataset = Handler("the dataset or its `collate_fn`", lambda grid: read_on_grid(loader, grid, TRIED_CLIPS))
    return [dataset, hook("on_before_batch_transfer"), hook("on_after_batch_transfer")]


def on_device(trainer: Trainer, module: LightningModule, batch: Any) -> Any:
    """Moves a mini-batch of a loader to the device, with all that Lightning does to it on the way."""

    def call(name: str, *arguments: Any) -> Any:
        return getattr(_owner(name, trainer, module), name)(*arguments, 0)

    batch = call("on_before_batch_transfer", trainer.precision_plugin.convert_input(batch))
    batch = call("transfer_batch_to_device", batch, trainer.strategy.root_device)
    return call("on_after_batch_transfer", batch)
