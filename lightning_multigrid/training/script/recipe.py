"""What a script says about the baseline."""

import math
from collections.abc import Sized
from dataclasses import dataclass
from fractions import Fraction
from operator import itemgetter
from typing import Any, cast

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from lightning_multigrid.host import MisconfigurationException, Trainer
from lightning_multigrid.loading import length_of, same_loader, stream_loader
from lightning_multigrid.schedule import EpochLength
from lightning_multigrid.training.trainer.lightning_internals import splits_data

# Their loaders add states for resuming; the mini-batches are those of a plain `DataLoader`.
_PLAIN_LOADERS = "torchdata.", "litdata."


@dataclass(frozen=True)
class Recipe:
    """The baseline, as a Lightning script states it."""

    clips: int  # that all ranks take in an epoch, each once: a pass over the data
    epoch: EpochLength  # of one device
    epochs: Fraction


def _clips_of_stream(loader: DataLoader[Any], trainer: Trainer, clips_per_epoch: int | None) -> int:
    """Returns the clips of an epoch on all devices: given, or as Lightning counts the batches of each of them."""
    if clips_per_epoch is not None:
        return clips_per_epoch
    length, limit, size = length_of(loader.dataset), trainer.limit_train_batches, cast("int", loader.batch_size)
    if length is not None:  # that of this device's share
        return int(trainer.strategy.reduce(torch.tensor(length, device=trainer.strategy.root_device), reduce_op="sum"))
    if trainer.fast_dev_run:  # type: ignore[attr-defined]
        return 1000 * size * trainer.world_size  # any number will do
    if isinstance(limit, int):
        return limit * size * trainer.world_size
    raise ValueError(
        f"MultigridCallback plans whole epochs, but {type(loader.dataset).__name__} does not say how many samples it "
        "has. Give `MultigridCallback(clips_per_epoch=...)`, the clips of an epoch on all devices, or an integer "
        "`limit_train_batches`."
    )


def _iterates_as(thing: Any, kind: Any) -> bool:
    return type(thing).__iter__ is kind.__iter__ or type(thing).__module__.startswith(_PLAIN_LOADERS)


def user_loader(loaders: Any, trainer: Trainer, clips_per_epoch: int | None = None) -> DataLoader[Any]:
    """Returns the user's training loader, over a map-style dataset; refuses one that can't be rebuilt."""
    if not isinstance(loaders, DataLoader):
        needs = f"MultigridCallback needs one `torch.utils.data.DataLoader` for training, got {type(loaders).__name__}."
        if type(loaders).__module__.startswith("webdataset."):
            raise TypeError(
                f"{needs} Give `DataLoader(dataset, batch_size=...)` of the same dataset, without `.batched`."
            )
        raise TypeError(
            f"{needs} A grid is made of the samples of a dataset: give the loader of a dataset, also of an "
            "`IterableDataset`, and no list of loaders. Combine datasets with `torch.utils.data.ConcatDataset`."
        )
    if not _iterates_as(loaders, DataLoader):
        raise TypeError(
            f"MultigridCallback makes a loader of its own, but {type(loaders).__name__} iterates in its own way, which "
            "would be lost. Use a plain `torch.utils.data.DataLoader`, which is all that exact resuming needs."
        )
    if loaders.batch_sampler is None:
        raise TypeError(
            f"The loader has `batch_size=None`: each sample of {type(loaders.dataset).__name__} is a whole mini-batch. "
            "Let it return one clip, and give the `DataLoader` a `batch_size`."
        )
    batches = loaders.batch_sampler
    if not isinstance(batches, BatchSampler) or not _iterates_as(batches, BatchSampler):
        raise TypeError(
            f"MultigridCallback plans the mini-batches itself, but {type(batches).__name__} has batches "
            "of its own. Let a `sampler` yield the same indices one by one. `docs/script.md` in the repository says "
            "more."
        )
    if isinstance(loaders.dataset, IterableDataset):
        return stream_loader(loaders, _clips_of_stream(loaders, trainer, clips_per_epoch))
    if clips_per_epoch is not None:
        raise ValueError(
            f"`clips_per_epoch` is for iterable datasets, but {type(loaders.dataset).__name__} has a length, so it "
            "would have no effect. Leave it out; for shorter epochs, give the Trainer `limit_train_batches`."
        )
    sampler = batches.sampler
    for part in (loaders.dataset, sampler):
        if length_of(part) is None:
            raise TypeError(
                f"MultigridCallback plans whole passes over the data, but {type(part).__name__} does not say how many "
                "clips it has. Give it a `__len__`: the clips of an epoch. A sampler may yield more than that."
            )
    if trainer.world_size > 1 and not isinstance(sampler, DistributedSampler):
        if not splits_data(trainer):
            raise MisconfigurationException(
                "MultigridCallback cuts one order of all clips among the devices, but with "
                f"`use_distributed_sampler=False` each has an order of its own, of its {type(sampler).__name__}. Leave "
                "that out of the Trainer, or give the `DataLoader` a `DistributedSampler`."
            )
        # As Lightning does on several devices, also without `shuffle`.
        if isinstance(sampler, (RandomSampler, SequentialSampler)):
            sampler = RandomSampler(cast("Sized", loaders.dataset))
    if loaders.batch_size is not None and sampler is batches.sampler:
        return loaders
    return same_loader(loaders, batch_size=batches.batch_size, sampler=sampler, drop_last=batches.drop_last)


def baseline_epochs(trainer: Trainer, epoch: EpochLength) -> Fraction:
    """Returns the length of the baseline in epochs, by the Trainer's `max_epochs` and `max_steps`."""
    if trainer.fast_dev_run:  # type: ignore[attr-defined]
        return Fraction(1)
    lengths = {} if trainer.max_epochs in (None, -1) else {"max_epochs": Fraction(trainer.max_epochs)}
    if trainer.max_steps != -1:
        if not trainer.lightning_module.automatic_optimization:
            raise MisconfigurationException(
                f"`max_steps={trainer.max_steps}` counts each `step` of an optimizer that the script calls under "
                "manual optimization, so the number of mini-batches is not known. Give the Trainer "
                "`max_epochs` alone."
            )
        lengths["max_steps"] = epoch.after_ticks(trainer.max_steps, "step", frequency=1)
    if not lengths:
        raise MisconfigurationException(
            "MultigridCallback plans the whole training, but the Trainer has no end. Give `max_epochs` or `max_steps`."
        )
    name, epochs = min(lengths.items(), key=itemgetter(1))
    if epochs < 1:
        shorten = ", or shorten the epoch with `limit_train_batches`" if epochs else ""
        raise MisconfigurationException(
            f"MultigridCallback needs a baseline of at least one epoch, but `{name}={getattr(trainer, name)}` is "
            f"{float(epochs):.2f} epochs of {epoch.optimizer_steps} steps. Raise `{name}`{shorten}."
        )
    return epochs


def read_recipe(trainer: Trainer, loader: DataLoader[Any], world: int) -> Recipe:
    """Reads the baseline off a Trainer, which has the settings of its script, and the user's training loader."""
    size, sampler = cast("int", loader.batch_size), loader.sampler
    if isinstance(sampler, DistributedSampler):  # the user's own, which cuts the data among the ranks
        of_rank, samples = len(sampler), len(cast("Sized", sampler.dataset))
    else:  # Lightning's distributed sampler repeats samples to make the ranks equal; a pass leaves them out
        samples = len(cast("Sized", sampler))
        of_rank = math.ceil(samples / world)
    batches = of_rank // size if loader.drop_last else math.ceil(of_rank / size)
    if batches == 0:
        raise ValueError(
            f"The training data has {of_rank} clips for each device, fewer than `batch_size={size}`. Use more data or "
            "a smaller batch."
        )
    if not trainer.fast_dev_run:  # type: ignore[attr-defined]
        limit = trainer.limit_train_batches  # counts mini-batches of the baseline; read as Lightning does
        limited = min(batches, limit if isinstance(limit, int) else int(batches * limit))
        if limited == 0:
            raise MisconfigurationException(
                f"`limit_train_batches={limit}` of the {batches} mini-batches of an epoch leaves none to train on. "
                "Give a larger share, or a whole number of mini-batches."
            )
        batches = limited
    epoch = EpochLength(batches, trainer.accumulate_grad_batches)
    return Recipe(min(samples, batches * size * world), epoch, baseline_epochs(trainer, epoch))
