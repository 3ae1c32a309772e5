"""What a Lightning script says about the baseline: its loader, its length, its LR stages."""

from __future__ import annotations

import math
from collections.abc import Sized
from dataclasses import dataclass
from fractions import Fraction
from inspect import signature
from typing import Any, cast

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler, StochasticWeightAveraging
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy, Strategy
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset

from lightning_multigrid.baseline_lr import BaselineEpoch
from lightning_multigrid.schedule import MultigridSchedule

__all__ = [
    "Recipe",
    "baseline_epochs",
    "read_recipe",
    "refuse_split_models",
    "refuse_sync_batchnorm",
    "refuse_unsupported",
    "scheduler_configs",
    "training_source",
    "user_loader",
]


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


def training_source(trainer: Trainer) -> Any:
    """Where Lightning gets the training loader from; its `instance` may be replaced by a loader.

    Lightning has no public door to a loader that was passed to `fit` (`loops/fit_loop.py`, `FitLoop._data_source`, of
    this name since 2.0). A test fails when it changes.
    """
    source = getattr(trainer.fit_loop, "_data_source", None)
    if source is None or not callable(getattr(source, "dataloader", None)):
        raise MisconfigurationException(
            "MultigridCallback cannot find the training loader in this version of Lightning. Install a version that "
            "the package's requirements name."
        )
    return source


def refuse_unsupported(trainer: Trainer, module: LightningModule) -> None:
    """Refuses what cannot be trained by the multigrid method in Lightning's loop, with the way out.

    Raises:
        MisconfigurationException: If the module or the trainer does one of those things.
    """
    if not module.automatic_optimization:
        raise MisconfigurationException(
            "MultigridCallback changes the LR between optimizer steps, so it needs automatic optimization, but "
            f"{type(module).__name__} sets `automatic_optimization=False`. Use the pieces in a loop of your own: see "
            "`examples/own_training_loop.py`."
        )
    if "dataloader_iter" in signature(module.training_step).parameters:
        raise MisconfigurationException(
            f"MultigridCallback needs one mini-batch per training step, but {type(module).__name__} has "
            "`training_step(dataloader_iter)`. Give it `training_step(batch, batch_idx)`."
        )
    if is_overridden("lr_scheduler_step", module):
        raise MisconfigurationException(
            "MultigridCallback steps the LR schedulers on the baseline's clock, but "
            f"{type(module).__name__} overrides `lr_scheduler_step`, which may count the epochs of this run instead. "
            "Return schedulers of torch from `configure_optimizers`, and remove the override."
        )
    refuse_split_models(trainer.strategy)
    callbacks = [*trainer.callbacks]  # type: ignore[attr-defined]
    if any(isinstance(callback, GradientAccumulationScheduler) for callback in callbacks):
        raise MisconfigurationException(
            "MultigridCallback plans whole optimizer steps and cannot follow a `GradientAccumulationScheduler`. Use "
            "`Trainer(accumulate_grad_batches=...)` instead."
        )
    if any(isinstance(callback, StochasticWeightAveraging) for callback in callbacks):
        raise MisconfigurationException(
            "MultigridCallback and `StochasticWeightAveraging` both drive the LR and the number of epochs. Use "
            "`WeightAveraging` or `EMAWeightAveraging` instead, which leave them alone."
        )
    every = trainer.reload_dataloaders_every_n_epochs  # type: ignore[attr-defined]
    if every:
        raise MisconfigurationException(
            "MultigridCallback requests the training loader itself. Remove "
            f"`reload_dataloaders_every_n_epochs={every}` from the Trainer or remove the callback."
        )


def refuse_sync_batchnorm(module: LightningModule) -> None:
    """Refuses layers that share statistics among all ranks.

    Raises:
        MisconfigurationException: If the module has one.
    """
    if any(isinstance(layer, nn.SyncBatchNorm) for layer in module.modules()):
        raise MisconfigurationException(
            "MultigridCallback sets the clips that share BatchNorm statistics itself, but the model has "
            "SyncBatchNorm layers. Remove `sync_batchnorm=True` from the Trainer."
        )


def refuse_split_models(strategy: Strategy) -> None:
    """Refuses strategies under which a rank does not hold the whole model.

    Raises:
        MisconfigurationException: If the strategy is one of those.
    """
    if isinstance(strategy, (DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy)):
        raise MisconfigurationException(
            "MultigridCallback cuts mini-batches among ranks that each hold the whole model and its BatchNorm "
            f"layers, but {type(strategy).__name__} splits the model or its optimizer. Use `strategy='ddp'`: multigrid "
            "needs no more memory than the baseline, and the paper's models fit on one GPU."
        )


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
