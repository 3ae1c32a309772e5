"""Mini-batches as `training_step` is given them, of clips that a rehearsal chooses.

A rehearsal changes samples, before the script's `collate_fn` sees them. So nothing need be known of a mini-batch.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from lightning_multigrid.host import LightningModule, Trainer
from lightning_multigrid.loading import ClipRequest, MultigridLoader, has_pixels, in_worker, seeded, sendable
from lightning_multigrid.schedule import BatchShape
from lightning_multigrid.training.mini_batches import Handler, hooks_of
from lightning_multigrid.training.rehearsal.copies import held_by

REAL, NOISE = range(2)  # a sample of the dataset; with noise in the place of its pixels
Clips = tuple[int, ...]  # the clips of a mini-batch, by these numbers
Wanted = Mapping[BatchShape, Sequence[Clips]]
Made = dict[tuple[BatchShape, Clips], Any]  # mini-batches; one that fails is its error

TRIED_CLIPS = 2  # clips of a small mini-batch: BatchNorm needs more than one value per channel
ALIKE = (REAL,) * TRIED_CLIPS
READING = "the dataset or its `collate_fn`"


class ScriptBatches:
    """What a script makes of the clips that a rehearsal chooses: a function that makes mini-batches, and hooks."""

    def __init__(self, make: Callable[[Wanted], Made], hooks: Sequence[Handler] = ()) -> None:
        self._make, self._hooks = make, hooks
        self.made: Made = {}

    def make(self, wanted: Wanted) -> None:
        """Makes all mini-batches that are wanted."""
        self.made = self._make(wanted)

    def handlers(self, grid: BatchShape, clips: Clips) -> list[Handler]:
        """What a mini-batch goes through, in its order: the first handler is given None."""

        def read(_: None) -> Any:
            batch = self.made[grid, clips]
            if isinstance(batch, Exception):
                raise batch
            return batch

        return [Handler(READING, read), *self._hooks]

    def arrived(self, grid: BatchShape, clips: Clips) -> Any:
        """A mini-batch as a step gets it."""
        batch: Any = None
        for _, handle in self.handlers(grid, clips):
            batch = handle(batch)
        return batch


def batches_of_samples(sample: Callable[[BatchShape], Any]) -> ScriptBatches:
    """Returns mini-batches of the sample that a function gives for a grid."""
    return ScriptBatches(partial(_collated, sample, default_collate))


def script_batches(trainer: Trainer, module: LightningModule, loader: MultigridLoader) -> ScriptBatches:
    """Returns mini-batches of the first sample of a loader's dataset, which its worker reads and collates."""
    collate: Any = loader.like.collate_fn
    sample = partial(_sample, loader.clip_dataset)

    def make(wanted: Wanted) -> Made:
        return in_worker(loader.like, loader.like.dataset, partial(_collated, sample, collate, wanted))  # type: ignore[no-any-return]

    join = [Handler(READING, lambda batch: collate.join([batch]))] if hasattr(collate, "join") else []
    return ScriptBatches(make, [*join, *hooks_of(trainer, module)])


def _sample(clips: Any, grid: BatchShape) -> Any:
    return clips.read_clip(ClipRequest(getattr(clips, "first", 0), grid.frames, grid.size, seed=0))


def _collated(sample_of: Callable[[BatchShape], Any], collate: Callable[[list[Any]], Any], wanted: Wanted) -> Made:
    made: Made = {}
    for grid, arrangements in wanted.items():
        sample = None
        for clips in arrangements:
            try:
                with seeded(0):  # both may draw
                    sample = sample_of(grid) if sample is None else sample
                with seeded(0):
                    made[grid, clips] = collate([_varied(sample, kind) for kind in clips])
            except Exception as error:  # of the user's dataset
                made[grid, clips] = sendable(error)
    return made


def _varied(sample: Any, kind: int) -> Any:
    """A copy of a sample, with other pixels if it is NOISE: in the largest tensors or arrays that it is made of."""
    held = [part for part in held_by(sample) if isinstance(part, (Tensor, np.ndarray))]
    # `deepcopy` would copy all of the memory of which a tensor is a view: that of the whole dataset, for instance.
    memo: dict[int, Any] = {id(part): part.clone() if isinstance(part, Tensor) else part.copy() for part in held}
    pixels = [torch.as_tensor(memo[id(part)]) for part in held if has_pixels(part)] if kind != REAL else []
    largest = max((values.numel() for values in pixels), default=0)
    for values in pixels:
        if 16 * values.numel() >= max(1, largest):  # a key frame is as large, and features or boxes are not
            generator = torch.Generator().manual_seed(values.numel())
            values.copy_(values.flatten()[torch.randint(values.numel(), values.shape, generator=generator)])
    return copy.deepcopy(sample, memo)
