"""Refuses what the multigrid method can't follow in a Lightning script, and says what to do instead.

Every function raises a `MisconfigurationException`.
"""

from __future__ import annotations

from inspect import signature

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler, StochasticWeightAveraging
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy, Strategy
from torch import nn


def refuse_unsupported(trainer: Trainer, module: LightningModule) -> None:
    """Refuses modules and Trainers that multigrid training can't follow in Lightning's loop."""
    if "dataloader_iter" in signature(module.training_step).parameters:
        raise MisconfigurationException(
            f"MultigridCallback needs one mini-batch per training step, but {type(module).__name__} has "
            "`training_step(dataloader_iter)`. Give it `training_step(batch, batch_idx)`."
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
