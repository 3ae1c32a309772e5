"""Precise BatchNorm: running statistics over the training data instead of a moving average of recent mini-batches.

In multigrid training that average mixes the grids of the short cycle. This module re-estimates the statistics with the
current weights, on the baseline's grid: mean and variance of all values that a layer sees, on all ranks.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from typing_extensions import override

from lightning_multigrid.host import Callback, LightningModule, MisconfigurationException, Trainer
from lightning_multigrid.loading import MultigridLoader, MultigridSampler, derive_seed, epoch_order, reseed, seeded
from lightning_multigrid.norm import (
    BatchNorm,
    average_statistics,
    convert_sub_batchnorm,
    observed_moments,
    set_sub_batch,
    tracking_layers,
    write_statistics,
)
from lightning_multigrid.reports import STATISTICS, Account
from lightning_multigrid.schedule import LongCycle, MultigridSchedule, Place, Plan, ShortCycle
from lightning_multigrid.training.lightning_internals import batch_index, copy_without_trainer, stage_of_training
from lightning_multigrid.training.mini_batches import first_clips, on_device, read_on_grid, run_step
from lightning_multigrid.training.parts import Part
from lightning_multigrid.training.torch_internals import name_in_state_dict

_ORDER, _RANDOM = 1, 2  # keep what is drawn here apart from what training draws


def population_sampler(training: MultigridSampler, batches: int) -> MultigridSampler:
    """Samples up to `batches` whole mini-batches of the baseline's shape from the clips of a training epoch."""
    # The order is another pure function of (seed, epoch), and ranks share a global mini-batch as in training.
    plan, baseline = training.plan, training.plan.schedule.baseline
    flat: dict[str, Any] = {"long_cycle": LongCycle(((1, 1),)), "short_cycle": ShortCycle((1,)), "whole_epochs": True}
    alone = MultigridSchedule(baseline, **flat, sub_batch=plan.schedule.sub_batch)
    seed = derive_seed(plan.seed, _ORDER)

    def order(epoch: int) -> list[int]:
        seen = training.order_in(epoch)[: int(plan.clips * plan.world)]
        return [seen[entry] for entry in epoch_order(seed, epoch, len(seen))]

    clips = min(batches, plan.clips // baseline.shape.clips) * baseline.shape.clips
    return MultigridSampler(Plan(alone, clips, seed, plan.world), order, rank=training.rank)


class PopulationEstimate:
    """Re-estimates a module's running statistics in the middle of its training, and changes nothing else.

    It runs `training_step` without gradients, in the precision and the modes of training, on a copy of the module that
    shares its parameters. Metrics, logs, buffers, gradients and all random state stay as they are. If the step needs a
    Trainer, `forward` is run on the clips instead. A loader is made `like` the user's each time, with new workers.
    """

    def __init__(self, training: MultigridLoader, batches: int) -> None:
        self.sampler = population_sampler(training.sampler, batches)
        self._dataset, self._like = training.clip_dataset, training.like
        self._runs_step = True

    def check(self, trainer: Trainer, module: LightningModule) -> None:
        """Refuses a module without BatchNorm layers, or in which neither `training_step` nor `forward` runs."""
        name, layers = type(module).__name__, tracking_layers(module)
        if not layers:
            raise MisconfigurationException(
                f"`precise_bn_batches` re-estimates the running statistics of BatchNorm layers, but {name} has none. "
                "Leave the argument out."
            )
        if trainer.strategy.restore_checkpoint_after_setup:
            raise MisconfigurationException(
                f"`precise_bn_batches` needs a copy of the module, but {type(trainer.strategy).__name__} shards it. "
                "Leave the argument out: validation then uses the moving averages, averaged over the ranks."
            )
        shape = self.sampler.plan.schedule.baseline.shape
        failures = []
        for self._runs_step in (True, False):
            try:
                with self._apart(trainer, module, epoch=0):
                    loader = MultigridLoader(self._dataset, self.sampler, self._like)
                    batch = on_device(trainer, module, read_on_grid(loader, shape, clips=2))
                    replica = _replica(module, {})
                    set_sub_batch(replica, 2, of=2)  # so that these two clips need no other rank
                    with observed_moments(tracking_layers(replica)) as moments:
                        self._run(trainer, replica, batch, 0)
            except Exception as error:  # whatever a user's model may raise
                failures.append(f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}")
                continue
            if any(moments.values()):
                return
            failures.append("no BatchNorm layer was reached")
        raise MisconfigurationException(
            f"`precise_bn_batches` runs `training_step`, else `forward`, on a copy of the module without a Trainer, "
            f"but with {name} the first fails ({failures[0]}), and so does the second ({failures[1]}). Let one of them "
            "work without `self.trainer`, or leave the argument out."
        )

    def write(self, trainer: Trainer, module: LightningModule, epoch: int, modes: Mapping[str, bool]) -> None:
        """Sets statistics of the layers that train (`modes`, by name) to the population's, on the clips of an epoch."""
        training, replica, schedule = (
            _training_layers(module, modes),
            _replica(module, modes),
            self.sampler.plan.schedule,
        )
        set_sub_batch(replica, schedule.sub_batch, of=schedule.baseline.shape.clips)
        self.sampler.set_epoch(epoch)
        with (
            self._apart(trainer, module, epoch),
            observed_moments({name: replica.get_submodule(name) for name in training}) as moments,
        ):
            for index, batch in enumerate(MultigridLoader(self._dataset, self.sampler, self._like)):
                self._run(trainer, replica, on_device(trainer, module, batch), index)
        write_statistics(training, moments)

    def _run(self, trainer: Trainer, replica: LightningModule, batch: Any, index: int) -> None:
        # To compile graphs for a few mini-batches would take longer than to run them.
        with torch.no_grad(), torch.compiler.set_stance("force_eager"), trainer.precision_plugin.train_step_context():
            if self._runs_step:
                run_step(replica, batch, index)
            else:
                replica(first_clips(batch))

    @contextmanager
    def _apart(self, trainer: Trainer, module: LightningModule, epoch: int) -> Iterator[None]:
        """Gives the estimate a random state of its own, and the hooks of the data the stage of training."""
        seed = derive_seed(self.sampler.plan.seed, _RANDOM, epoch, self.sampler.rank)
        devices = [module.device.index] if module.device.type == "cuda" else []
        with seeded(seed), torch.random.fork_rng(devices), warnings.catch_warnings(), stage_of_training(trainer):
            reseed(seed)
            warnings.simplefilter("ignore")  # of `self.log` without a Trainer
            yield


def _training_layers(module: nn.Module, modes: Mapping[str, bool]) -> dict[str, BatchNorm]:
    return {name: layer for name, layer in tracking_layers(module).items() if modes.get(name, True)}


def _replica(module: LightningModule, modes: Mapping[str, bool]) -> LightningModule:
    """Returns a copy without a Trainer that shares the parameters of a module and nothing else."""
    copied = copy_without_trainer(module, {id(parameter): parameter for parameter in module.parameters()})
    replica = convert_sub_batchnorm(copied)  # copies are plain
    for name, part in replica.named_modules():
        part.training = modes.get(name, True)
    return replica


class EvaluationStatistics(Callback, Part):
    """Gives validations and checkpoints the running statistics of the population, or the average over ranks.

    While it fits it is the last callback: if another one swaps averaged weights in for a validation, the statistics are
    theirs. Training's moving average continues from these values.

    Checkpoints that callbacks write at the end of a step or an epoch hold what was validated. Others (on a signal,
    after an error, or saved by the script) keep the moving average: ranks may be at different places and deadlock.
    """

    def __init__(self, estimate: PopulationEstimate | None, account: Account) -> None:
        self.estimate, self._account = estimate, account
        self.saving = False  # whether callbacks are at the end of a step or an epoch
        self._written: tuple[int, int] | None = None
        self._modes: dict[str, bool] = {}
        self._modes_epoch = -1

    def _write(self, trainer: Trainer, module: LightningModule) -> None:
        with torch.no_grad(), self._account.during(STATISTICS):
            if self.estimate is None:
                average_statistics(_training_layers(module, self._modes))
            elif _training_layers(module, self._modes):  # else all layers are frozen
                self.estimate.write(trainer, module, trainer.current_epoch, self._modes)
        self._written = _position(trainer)

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if self._modes_epoch != trainer.current_epoch:  # callbacks freeze and thaw layers when an epoch starts
            self._modes = {name: part.training for name, part in pl_module.named_modules()}
            self._modes_epoch = trainer.current_epoch

    def after(self, place: Place) -> None:
        self.saving = True

    def end(self) -> None:
        self.saving = True

    def _saved(self, *_: Any, **__: Any) -> None:
        self.saving = False

    # This callback is the last one, so all others have done at these hooks what they do.
    on_train_batch_end = on_train_epoch_start = on_train_end = _saved

    @override
    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            self._write(trainer, pl_module)

    @override
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if self.saving and self._written != _position(trainer):
            self._write(trainer, pl_module)  # in place: the state dict, which exists already, holds the same tensors
            if trainer.strategy.restore_checkpoint_after_setup:  # that of a sharded model holds copies
                saved = checkpoint["state_dict"]
                for name, buffer in pl_module.named_buffers():
                    if name_in_state_dict(name) in saved:  # else another rank saves it
                        saved[name_in_state_dict(name)].copy_(buffer)


def _position(trainer: Trainer) -> tuple[int, int]:
    return trainer.current_epoch, batch_index(trainer)
