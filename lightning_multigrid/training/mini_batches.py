"""Mini-batches as `training_step` is given them, made or moved outside of Lightning's loop."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

from lightning_multigrid.host import LightningModule, Trainer, is_overridden
from lightning_multigrid.loading import ClipRequest, MultigridLoader
from lightning_multigrid.schedule import BatchShape


def tensors_in(batch: Any) -> list[Tensor]:
    """Returns all tensors of a mini-batch, or of another collection."""
    found: list[Tensor] = []
    apply_to_collection(batch, Tensor, found.append)
    return found


def _clips_in(batch: Any) -> list[Tensor]:
    return [tensor for tensor in tensors_in(batch) if tensor.ndim in (4, 5)]


def has_pixels(values: Any) -> bool:
    """Returns whether a tensor or an array is of a type that pixels have, and labels don't."""
    if isinstance(values, Tensor):
        return values.dtype == torch.uint8 or values.is_floating_point()
    return bool(values.dtype == np.uint8 or values.dtype.kind == "f")


def first_clips(batch: Any) -> Tensor | None:
    """Returns the first tensor of a mini-batch that may be clips, else the first that may be images."""
    # Before masks, which may be as large.
    return max(_clips_in(batch), key=lambda tensor: (has_pixels(tensor), tensor.ndim), default=None)


def shapes_of_clips(batch: Any) -> list[torch.Size]:
    """Returns the shapes of all tensors of a mini-batch that may be clips or images."""
    return [tensor.shape for tensor in _clips_in(batch)]


class Handler(NamedTuple):
    """Something of the script that makes or changes mini-batches before a step."""

    name: str
    handle: Callable[[Any], Any]  # given what the one before it returned


def _owner(name: str, trainer: Trainer, module: LightningModule) -> Any:
    """Returns whose hook is given mini-batches: the data module if it overrides the hook, as Lightning chooses."""
    data = trainer.datamodule  # type: ignore[attr-defined]
    return data if data is not None and is_overridden(name, data) else module


def read_on_grid(loader: MultigridLoader, grid: BatchShape, clips: int) -> Any:
    """Makes a mini-batch of some clips on a grid out of one clip, as a worker does."""
    first = getattr(loader.clip_dataset, "first", 0)
    [batch] = loader.read([ClipRequest(first, grid.frames, grid.size, seed=0)] * clips)
    if isinstance(batch, Exception):
        raise batch
    return batch


def hooks_of(trainer: Trainer, module: LightningModule) -> list[Handler]:
    """Returns what the script's hooks do to a mini-batch before a step, in its order."""

    def hook(name: str, *arguments: Any) -> Handler:
        owner = _owner(name, trainer, module)
        return Handler(f"`{name}` of {type(owner).__name__}", lambda batch: getattr(owner, name)(batch, *arguments, 0))

    transfer = hook("transfer_batch_to_device", trainer.strategy.root_device)
    return [hook("on_before_batch_transfer"), transfer, hook("on_after_batch_transfer")]


def run_step(module: LightningModule, batch: Any, index: int = 0) -> Any:
    """Runs `training_step` outside of a training, with the arguments that it takes."""
    # Of the class: a compiled module has another step on the instance, which runs the original module.
    step: Any = type(module).training_step
    kinds = [parameter.kind for parameter in inspect.signature(step).parameters.values()]
    takes_index = len(kinds) > 2 or inspect.Parameter.VAR_POSITIONAL in kinds  # after the module and the mini-batch
    return step(module, batch, index) if takes_index else step(module, batch)


def on_device(trainer: Trainer, module: LightningModule, batch: Any) -> Any:
    """Moves a mini-batch of a loader to the device, with all that Lightning does to it on the way."""
    batch = trainer.precision_plugin.convert_input(batch)
    for handler in hooks_of(trainer, module):
        batch = handler.handle(batch)
    return batch
