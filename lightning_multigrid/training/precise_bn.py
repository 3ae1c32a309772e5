"""Precise BatchNorm: running statistics as those of the training data, not of the mini-batches seen last.

Training normalises by the statistics of mini-batches, and keeps a moving average of them for evaluation. After a
multigrid training, that average mixes the grids of the short cycle. Here the statistics are re-estimated with the
weights as they are, on the baseline's grid: the mean and variance of all values that a layer sees, over mini-batches
and ranks.

Legend: N clips, C channels, `*` the other axes.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader
from typing_extensions import override

from lightning_multigrid.loading import (
    ClipDataset,
    ClipRequest,
    MultigridLoader,
    MultigridSampler,
    derive_seed,
    epoch_order,
    reseed,
    seeded,
)
from lightning_multigrid.norm import (
    BatchNorm,
    average_statistics,
    observed_moments,
    set_sub_batch,
    tracking_layers,
    write_statistics,
)
from lightning_multigrid.schedule import LongCycle, MultigridSchedule, ShortCycle
from lightning_multigrid.training.check_grids import batch_hook, first_clips

__all__ = ["EvaluationStatistics", "PopulationEstimate", "population_sampler"]

_ORDER, _RANDOM = 1, 2  # keep what is drawn here apart from what training draws


def population_sampler(training: MultigridSampler, batches: int) -> MultigridSampler:
    """Mini-batches of the baseline's shape, of the clips that a training sees in an epoch, in an order of their own.

    The order is a pure function of (seed, epoch), and a global mini-batch is cut among the ranks as in training.

    Args:
        training: The training's sampler.
        batches: Mini-batches of each rank; fewer if an epoch has fewer whole ones.
    """
    baseline = training.schedule.baseline
    alone = MultigridSchedule(baseline, LongCycle(((1, 1),)), ShortCycle((1,)), sub_batch=training.schedule.sub_batch)
    seed = derive_seed(training.seed, _ORDER)

    def order(epoch: int) -> list[int]:
        seen = training.order(epoch)[: int(training.clips * training.world)]
        return [seen[place] for place in epoch_order(seed, epoch, len(seen))]

    clips = min(batches, training.clips // baseline.shape.clips) * baseline.shape.clips
    return MultigridSampler(alone, order, clips, seed=seed, rank=training.rank, world=training.world)


class PopulationEstimate:
    """Re-estimates a module's running statistics in the middle of its training, which notices nothing else.

    `training_step` runs without gradients, on a copy of the module that shares its parameters, in the precision and
    the modes of training. So metrics, logs, buffers and gradients stay as they are, and so does all random state.
    Where the step needs a Trainer, `forward` is given the clips.

    Args:
        dataset: The training's clips.
        training: The training's sampler.
        like: The user's loader, whose workers and the like are taken over. They start anew for each estimate.
        batches: Mini-batches of each rank.
    """

    def __init__(self, dataset: ClipDataset, training: MultigridSampler, like: DataLoader[Any], batches: int) -> None:
        self.sampler = population_sampler(training, batches)
        self._dataset, self._like = dataset, like
        self._runs_step = True

    def _loader(self) -> MultigridLoader:
        return MultigridLoader(self._dataset, self.sampler, self._like)

    def check(self, trainer: Trainer, module: LightningModule) -> None:
        """Refuses, before the training starts, a module of which the statistics cannot be estimated.

        Raises:
            MisconfigurationException: If it has no BatchNorm layer, or neither `training_step` nor `forward` runs.
        """
        name, layers = type(module).__name__, tracking_layers(module)
        if not layers:
            raise MisconfigurationException(
                f"`precise_bn_batches` re-estimates the running statistics of BatchNorm layers, but {name} has none. "
                "Leave the argument out."
            )
        shape = self.sampler.schedule.baseline.shape
        requests = [ClipRequest(0, shape.frames, shape.size, seed=0)] * 2
        failures = []
        for self._runs_step in (True, False):
            try:
                with self._apart(trainer, module, epoch=0):
                    batch = _on_device(trainer, module, self._loader().dataset[requests])
                    replica = _replica(module, {})
                    set_sub_batch(replica, 2)  # these clips have all they need on this rank
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
            "do without `self.trainer`, or leave the argument out."
        )

    def write(self, trainer: Trainer, module: LightningModule, epoch: int, modes: Mapping[str, bool]) -> None:
        """Sets the running statistics of the layers that train to those of the population.

        Args:
            trainer: The Trainer.
            module: The module; only its running statistics change.
            epoch: The epoch, from 0, whose clips are taken.
            modes: Of each module, by name, whether it trains.
        """
        training = _training_layers(module, modes)
        replica = _replica(module, modes)
        set_sub_batch(replica, self.sampler.schedule.sub_batch)
        self.sampler.set_epoch(epoch)
        with (
            self._apart(trainer, module, epoch),
            observed_moments({name: replica.get_submodule(name) for name in training}) as moments,
        ):
            for index, batch in enumerate(self._loader()):
                self._run(trainer, replica, _on_device(trainer, module, batch), index)
        write_statistics(training, moments)

    def _run(self, trainer: Trainer, replica: LightningModule, batch: Any, index: int) -> None:
        # Compiling graphs for a few mini-batches would take longer than they do.
        with torch.no_grad(), torch.compiler.set_stance("force_eager"), trainer.precision_plugin.train_step_context():
            if self._runs_step:
                # Of the class: a compiled module has a step of its own on the instance, which is the original's.
                type(replica).training_step(replica, batch, index)
            else:
                replica(first_clips(batch))

    @contextmanager
    def _apart(self, trainer: Trainer, module: LightningModule, epoch: int) -> Iterator[None]:
        """Random state of its own, and hooks of the data that think they are in training, as they are."""
        stage = trainer.state.stage
        seed = derive_seed(self.sampler.seed, _RANDOM, epoch, self.sampler.rank)
        devices = [module.device.index] if module.device.type == "cuda" else []
        with seeded(seed), torch.random.fork_rng(devices), warnings.catch_warnings():
            reseed(seed)
            warnings.simplefilter("ignore")  # of `self.log` without a Trainer
            trainer.training = True
            try:
                yield
            finally:
                trainer.state.stage = stage


def _training_layers(module: nn.Module, modes: Mapping[str, bool]) -> dict[str, BatchNorm]:
    return {name: layer for name, layer in tracking_layers(module).items() if modes.get(name, True)}


def _replica(module: LightningModule, modes: Mapping[str, bool]) -> LightningModule:
    """A copy with the same parameters and everything else its own, without a Trainer."""
    replica = copy.deepcopy(module, {id(parameter): parameter for parameter in module.parameters()})
    for name, part in replica.named_modules():
        part.training = modes.get(name, True)
    return replica


def _on_device(trainer: Trainer, module: LightningModule, batch: Any) -> Any:
    """A mini-batch as `training_step` gets it from Lightning."""
    batch = trainer.precision_plugin.convert_input(batch)
    batch = batch_hook("on_before_batch_transfer", trainer, module)(batch, 0)
    batch = batch_hook("transfer_batch_to_device", trainer, module)(batch, trainer.strategy.root_device, 0)
    return batch_hook("on_after_batch_transfer", trainer, module)(batch, 0)


class EvaluationStatistics(Callback):
    """Makes running statistics what validations and checkpoints need: the population's, or the average over ranks.

    `MultigridCallback` puts it last among the callbacks while it fits. So a validation of averaged weights, which
    another callback has put in place, has their statistics.

    Checkpoints that callbacks write at the end of a step or an epoch get them, too, and then hold what was validated.
    Those that are written at any other moment (by a signal, which interrupts each rank elsewhere, after an error, or
    by a call of the script) hold what is there: to wait for other ranks then might be to wait for ever.

    The moving average of training is overwritten, and goes on from the new values.

    Args:
        estimate: Estimates the population's statistics; None averages those of the ranks.
    """

    def __init__(self, estimate: PopulationEstimate | None) -> None:
        self.estimate = estimate
        self.saving = False  # whether callbacks are at the end of a step or an epoch
        self._written: tuple[int, int] | None = None
        self._modes: dict[str, bool] = {}
        self._modes_epoch = -1

    def _write(self, trainer: Trainer, module: LightningModule) -> None:
        with torch.no_grad():
            if self.estimate is None:
                average_statistics(_training_layers(module, self._modes))
            elif _training_layers(module, self._modes):  # else all are frozen
                self.estimate.write(trainer, module, trainer.current_epoch, self._modes)
        self._written = _position(trainer)

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if self._modes_epoch != trainer.current_epoch:  # callbacks freeze and thaw layers when an epoch starts
            self._modes = {name: part.training for name, part in pl_module.named_modules()}
            self._modes_epoch = trainer.current_epoch

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.saving = False

    @override
    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            self._write(trainer, pl_module)

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.saving = False

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.saving = False

    @override
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if self.saving and self._written != _position(trainer):
            self._write(trainer, pl_module)  # in place, so that the state dict, which is taken already, has them


def _position(trainer: Trainer) -> tuple[int, int]:
    return trainer.current_epoch, trainer.fit_loop.batch_idx
