"""Refuses what the multigrid method can't follow in a Lightning script, and says what to do instead.

Functions named `refuse_` raise a `MisconfigurationException`.
"""

from __future__ import annotations

import copy
from inspect import signature
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler, StochasticWeightAveraging
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy, Strategy
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import nn
from torch.utils.data import DataLoader

from lightning_multigrid.loading import ClipRequest, FixedClips, MultigridLoader, order_of, same_loader
from lightning_multigrid.training.mini_batches import first_clips


def refuse_unsupported(trainer: Trainer, module: LightningModule) -> None:
    """Refuses modules and Trainers that multigrid training can't follow in Lightning's loop."""
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
    """Refuses layers that share statistics among all ranks."""
    if any(isinstance(layer, nn.SyncBatchNorm) for layer in module.modules()):
        raise MisconfigurationException(
            "MultigridCallback sets the clips that share BatchNorm statistics itself, but the model has "
            "SyncBatchNorm layers. Remove `sync_batchnorm=True` from the Trainer."
        )


def refuse_split_models(strategy: Strategy) -> None:
    """Refuses strategies under which a rank does not hold the whole model."""
    if isinstance(strategy, (DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy)):
        raise MisconfigurationException(
            "MultigridCallback cuts mini-batches among ranks that each hold the whole model and its BatchNorm "
            f"layers, but {type(strategy).__name__} splits the model or its optimizer. Use `strategy='ddp'`: multigrid "
            "needs no more memory than the baseline, and the paper's models fit on one GPU."
        )


def refuse_late_checkpoints(strategy: Strategy) -> None:
    """Refuses strategies that load a checkpoint after `on_fit_start`, where the training is planned."""
    if strategy.restore_checkpoint_after_setup:
        raise MisconfigurationException(
            "MultigridCallback plans how to go on before training starts, but "
            f"{type(strategy).__name__} loads checkpoints later. Resume with `strategy='ddp'`."
        )


def warn_of_own_state(loader: DataLoader[Any], multigrid: MultigridLoader) -> None:
    """Warns of a script's sampler or dataset that gives other values when it is asked twice with one seed.

    What a sampler counts in its attributes is counted in a copy of it.
    """
    sampler, clips, names = loader.sampler, multigrid.clips, []
    if not type(sampler).__module__.startswith(("torch.", "lightning")):
        order = order_of(same_loader(loader, sampler=copy.copy(sampler)), seed=0)
        if order(0) != order(0):
            names.append(f"sampler {type(sampler).__name__}")
    if isinstance(clips, FixedClips):
        request = ClipRequest(clips.first, clips.frames, clips.size, seed=0)
        one, other = (first_clips(multigrid.dataset[[request]]) for _ in range(2))
        if one is not None and other is not None and not torch.equal(one, other):
            names.append(f"dataset {type(clips.dataset).__name__}")
    for name in names:
        rank_zero_warn(
            f"The {name} gives other values when asked twice with one seed, so a run that continues from a checkpoint "
            "will differ from one that never stopped. Draw from the global random state, or from a `random.Random`, "
            "`numpy.random.Generator` or `torch.Generator` that is an attribute."
        )
