"""Mini-batches as `training_step` is given them, and steps on them, outside of Lightning's loop."""

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

from lightning_multigrid.host import LightningModule, Trainer, is_overridden
from lightning_multigrid.loading import has_pixels, reseed, seeded
from lightning_multigrid.training.trainer.lightning_internals import stage_of_training


def tensors_in(batch: Any) -> list[Tensor]:
    """Returns all tensors of a mini-batch, or of another collection."""
    found: list[Tensor] = []
    apply_to_collection(batch, Tensor, found.append)
    return found


def _clips_in(batch: Any) -> list[Tensor]:
    return [tensor for tensor in tensors_in(batch) if tensor.ndim in (4, 5)]


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


def hooks_of(trainer: Trainer, module: LightningModule) -> list[Handler]:
    """Returns all that Lightning does to a mini-batch of a loader before a step, in its order."""
    data = trainer.datamodule  # type: ignore[attr-defined]

    def hook(name: str, *arguments: Any) -> Handler:
        owner = data if data is not None and is_overridden(name, data) else module  # as Lightning chooses
        return Handler(f"`{name}` of {type(owner).__name__}", lambda batch: getattr(owner, name)(batch, *arguments, 0))

    transfer = hook("transfer_batch_to_device", trainer.strategy.root_device)
    convert = Handler("the precision of the Trainer", trainer.precision_plugin.convert_input)
    return [convert, hook("on_before_batch_transfer"), transfer, hook("on_after_batch_transfer")]


@contextmanager
def apart(trainer: Trainer | None, device: torch.device, seed: int = 0) -> Iterator[None]:
    """Within it, the script's code finds the stage of training; what it draws and warns of leaves no trace."""
    stage = nullcontext() if trainer is None else stage_of_training(trainer)
    devices = [device] if device.type == "cuda" else []
    with stage, seeded(seed), torch.random.fork_rng(devices), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reseed(seed)
        yield


def run_step(module: LightningModule, batch: Any, index: int) -> Any:
    """Runs `training_step` outside of a training, with the arguments that it takes."""
    # Of the class: a compiled module has another step on the instance, which runs the original module.
    step: Any = type(module).training_step
    kinds = [parameter.kind for parameter in inspect.signature(step).parameters.values()]
    takes_index = len(kinds) > 2 or inspect.Parameter.VAR_POSITIONAL in kinds  # after the module and the mini-batch
    return step(module, batch, index) if takes_index else step(module, batch)


def run_forward(module: LightningModule, batch: Any, index: int) -> Any:
    """Runs `forward` on the clips of a mini-batch."""
    return module(first_clips(batch))


def error_text(error: Exception) -> str:
    """The type of an error and the first line of its message."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0].rstrip('.')}"
