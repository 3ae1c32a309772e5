"""Small mini-batches of a script's own dataset, before training."""

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from lightning_multigrid.host import LightningModule, Trainer
from lightning_multigrid.loading import (
    ClipRequest,
    CollateAtOnce,
    MultigridLoader,
    held_by,
    in_worker,
    seeded,
    sendable,
)
from lightning_multigrid.schedule import BatchShape
from lightning_multigrid.training.mini_batches import after_hooks

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
