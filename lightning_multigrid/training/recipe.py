"""What a Lightning script says about the baseline: its loader, its length, its LR stages."""

from __future__ import annotations

import math
from collections.abc import Sized
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, cast

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset

from lightning_multigrid.schedule import MultigridSchedule
from lightning_multigrid.training.baseline_lr import BaselineEpoch

__all__ = ["Recipe", "baseline_epochs", "read_recipe", "scheduler_configs", "user_loader"]


@dataclass(frozen=True)
class Recipe:
    """The baseline on one device, as a Lightning script states it.

    Args:
        clips: Clips of this rank in an epoch, as limited by `limit_train_batches` or `overfit_batches`.
        available: Clips of this rank without that limit; a fraction where the ranks cannot share them evenly.
        epoch: An epoch of the baseline.
        epochs: Length of the baseline, in epochs.
        drop_last: Whether the last mini-batch of an epoch is dropped if it is incomplete.
    """

    clips: Fraction
    available: Fraction
    epoch: BaselineEpoch
    epochs: Fraction
    drop_last: bool

    def planned_clips(self, schedule: MultigridSchedule) -> Fraction:
        """Clips of this rank in an epoch of a schedule."""
        # A limit that is meant for a quick try still runs whole mini-batches.
        return min(self.available, max(self.clips, Fraction(max(shape.clips for shape in schedule.grids))))


def user_loader(loaders: Any) -> DataLoader[Any]:
    """The user's training loader, if it is one that can be rebuilt with other mini-batch shapes."""
    if not isinstance(loaders, DataLoader):
        raise TypeError(
            f"MultigridCallback needs one `torch.utils.data.DataLoader` for training, got {type(loaders).__name__}. "
            "Combine several datasets with `torch.utils.data.ConcatDataset`."
        )
    if type(loaders).__iter__ is not DataLoader.__iter__:
        raise TypeError(
            f"MultigridCallback makes a loader of its own from the training loader, but {type(loaders).__name__} "
            "iterates in its own way, which would be lost. Use a plain `torch.utils.data.DataLoader`; exact resuming "
            "needs no other."
        )
    if isinstance(loaders.dataset, IterableDataset):
        raise TypeError(
            f"MultigridCallback needs a map-style dataset, got the iterable {type(loaders.dataset).__name__}: each "
            "mini-batch is requested by index and shape. Give the dataset `__getitem__` and `__len__`."
        )
    if loaders.batch_size is None or type(loaders.batch_sampler) is not BatchSampler:
        raise TypeError(
            f"MultigridCallback plans the mini-batches itself, but the loader has the batch sampler "
            f"{type(loaders.batch_sampler).__name__}. Give the `DataLoader` a `batch_size`, and `shuffle` or a "
            "`sampler`."
        )
    return loaders


def _limited(batches: int, limit: int | float | None) -> int:
    # As Lightning reads `limit_train_batches`.
    if limit is None:
        return batches
    return min(batches, limit) if isinstance(limit, int) else int(batches * limit)


def baseline_epochs(trainer: Trainer, epoch: BaselineEpoch) -> Fraction:
    """Length of the baseline in epochs, by the Trainer's `max_epochs` and `max_steps`."""
    if trainer.fast_dev_run:  # type: ignore[attr-defined]
        return Fraction(1)
    lengths = []
    if trainer.max_epochs is not None and trainer.max_epochs != -1:
        lengths.append(Fraction(trainer.max_epochs))
    if trainer.max_steps != -1:
        lengths.append(epoch.after_optimizer_steps(trainer.max_steps))
    if not lengths:
        raise MisconfigurationException(
            "MultigridCallback plans the whole training, but the Trainer has no end. Give `max_epochs` or `max_steps`."
        )
    epochs = min(lengths)
    if epochs < 1:
        raise MisconfigurationException(
            f"MultigridCallback needs a baseline of at least one epoch, but `max_steps={trainer.max_steps}` is "
            f"{float(epochs):.2f} epochs of {epoch.optimizer_steps} steps. Raise `max_steps`, or shorten the epoch "
            "with `limit_train_batches`."
        )
    return epochs


def scheduler_configs(module: LightningModule) -> list[LRSchedulerConfig]:
    """The LR schedulers of a module that is not fitted, in whichever form `configure_optimizers` returns them."""
    returned: Any = module.configure_optimizers()
    if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[0], (list, tuple)):
        schedulers = list(returned[1])
    else:
        parts = returned if isinstance(returned, (list, tuple)) else [returned]
        schedulers = [part["lr_scheduler"] for part in parts if isinstance(part, dict) and "lr_scheduler" in part]
    return [
        LRSchedulerConfig(s["scheduler"], interval=s.get("interval", "epoch"), frequency=s.get("frequency", 1))
        if isinstance(s, dict)
        else LRSchedulerConfig(s)
        for s in schedulers
    ]


def read_recipe(trainer: Trainer, loader: DataLoader[Any], world: int) -> Recipe:
    """Reads the baseline off a trainer and the user's loader.

    `limit_train_batches` and `overfit_batches` count mini-batches of the baseline, as every number in the script does:
    they say how many clips an epoch has.

    Args:
        trainer: At `on_fit_start`, before anything was changed.
        loader: The user's training loader.
        world: Devices.
    """
    size = cast("int", loader.batch_size)
    if isinstance(loader.sampler, DistributedSampler):  # the user's own, already cut among the ranks
        of_rank, available = len(loader.sampler), Fraction(len(cast("Sized", loader.dataset)), world)
    else:  # Lightning's distributed sampler repeats samples to make the ranks equal; ours leaves some out
        samples = len(cast("Sized", loader.sampler))
        of_rank, available = math.ceil(samples / world), Fraction(samples, world)
    batches = of_rank // size if loader.drop_last else math.ceil(of_rank / size)
    if batches == 0:
        raise ValueError(
            f"The training data has {of_rank} clips for each device, fewer than `batch_size={size}`. Use more data or "
            "a smaller batch."
        )
    clips = available
    if not trainer.fast_dev_run:  # type: ignore[attr-defined]
        limited = max(1, _limited(batches, trainer.limit_train_batches))
        if limited < batches:
            batches, clips = limited, Fraction(limited * size)
    epoch = BaselineEpoch(batches, trainer.accumulate_grad_batches)
    return Recipe(clips, available, epoch, baseline_epochs(trainer, epoch), loader.drop_last)
