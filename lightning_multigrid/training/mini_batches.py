"""Mini-batches as `training_step` is given them, and steps on them, outside of Lightning's loop."""

import copy
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lightning_multigrid.host import LightningModule, Trainer, is_overridden
from lightning_multigrid.loading import (
    ClipRequest,
    CollateAtOnce,
    MultigridLoader,
    all_parts,
    held_by,
    in_worker,
    reseed,
    seeded,
    sendable,
)
from lightning_multigrid.schedule import BatchShape
from lightning_multigrid.training.trainer.lightning_internals import stage_of_training

Made = Mapping[BatchShape, Any]  # mini-batches as a loader makes them; one that fails is its error


def small_batches(loader: MultigridLoader, shapes: Sequence[BatchShape]) -> Made:
    """Returns mini-batches of these shapes, each of the first sample of a loader's dataset, many times."""
    job = partial(_collated, loader.clip_dataset, loader.template.collate_fn, shapes)
    return in_worker(loader.template, loader.template.dataset, job)  # type: ignore[no-any-return]


def arrived(trainer: Trainer, module: LightningModule, made: Made, shape: BatchShape) -> Any:
    """Returns a mini-batch as a step gets it, or raises the error that made it fail."""
    if isinstance(made[shape], Exception):
        raise made[shape]
    return after_hooks(trainer, module, copied(made[shape]))


def _collated(clips: Any, collate: Callable[[list[Any]], Any], shapes: Sequence[BatchShape]) -> dict[BatchShape, Any]:
    made: dict[BatchShape, Any] = {}
    for shape in shapes:
        try:
            with seeded(0):  # both may draw
                sample = clips.read_clip(ClipRequest(getattr(clips, "first", 0), shape.frames, shape.size, seed=0))
            with seeded(0):
                batch = collate([copied(sample) for _ in range(shape.clips)])
                made[shape] = collate.join([batch]) if isinstance(collate, CollateAtOnce) else batch
        except Exception as error:  # of the user's dataset
            made[shape] = sendable(error)
    return made


def copied(sample: Any) -> Any:
    """A copy, as a `collate_fn` or a hook may change what it is given."""
    # `deepcopy` would copy all of the memory of which a tensor is a view: that of the whole dataset, for instance.
    tensors = [part for part in held_by(sample) if isinstance(part, Tensor)]
    return copy.deepcopy(sample, {id(tensor): tensor.clone() for tensor in tensors})


# --- Steps on them ---


def tensors_in(batch: Any) -> list[Tensor]:
    """Returns all tensors of a mini-batch, or of another collection."""
    return [part for _, part in all_parts(batch) if isinstance(part, Tensor)]


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
