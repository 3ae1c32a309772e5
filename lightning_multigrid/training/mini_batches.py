"""Mini-batches as `training_step` is given them, and steps on them, outside of Lightning's loop."""

import inspect
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from lightning_multigrid.host import LightningModule, Trainer, is_overridden
from lightning_multigrid.loading import all_parts, reseed, seeded
from lightning_multigrid.training.trainer.lightning_internals import stage_of_training


def tensors_in(batch: Any) -> list[Tensor]:
    """Returns all tensors of a mini-batch, or of another collection."""
    return [part for _, part in all_parts(batch) if isinstance(part, Tensor)]


def sizes_of_clips(batch: Any) -> list[int]:
    """Returns the numbers of elements of all tensors of a mini-batch that may be clips or images."""
    return [tensor.numel() for tensor in tensors_in(batch) if tensor.ndim in (4, 5)]


def after_hooks(trainer: Trainer, module: LightningModule, batch: Any) -> Any:
    """Returns a mini-batch of a loader after all that Lightning does to it before a step."""
    data = trainer.datamodule  # type: ignore[attr-defined]

    def hooked(name: str, *arguments: Any) -> Any:
        owner = data if data is not None and is_overridden(name, data) else module  # as Lightning chooses
        return getattr(owner, name)(batch, *arguments, 0)

    batch = trainer.precision_plugin.convert_input(batch)
    batch = hooked("on_before_batch_transfer")
    batch = hooked("transfer_batch_to_device", trainer.strategy.root_device)
    return hooked("on_after_batch_transfer")


@contextmanager
def without_trace(trainer: Trainer, device: torch.device, seed: int = 0) -> Iterator[None]:
    """Within it, the script's code finds the stage of training; what it draws and warns of leaves no trace."""
    devices = [device] if device.type == "cuda" else []
    with stage_of_training(trainer), seeded(seed), torch.random.fork_rng(devices), warnings.catch_warnings():
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


def error_text(error: Exception) -> str:
    """The type of an error and the first line of its message."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0].rstrip('.')}"
