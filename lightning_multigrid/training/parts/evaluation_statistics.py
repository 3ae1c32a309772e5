"""Precise BatchNorm: running statistics over the training data instead of a moving average of recent mini-batches.

In multigrid training that average mixes the grids of the short cycle. Here all values are of the baseline's grid.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from typing_extensions import override

from lightning_multigrid.host import Callback, LightningModule, MisconfigurationException, Trainer, callbacks_of
from lightning_multigrid.loading import MultigridLoader, StreamSamples, baseline_sampler, derive_seed
from lightning_multigrid.norm import (
    BatchNorm,
    average_statistics,
    observed_moments,
    sub_batches,
    tracking_layers,
    write_statistics,
)
from lightning_multigrid.reports import STATISTICS, Account
from lightning_multigrid.schedule import Place
from lightning_multigrid.training.mini_batches import after_hooks, arrived, error_text, small_batches, without_trace
from lightning_multigrid.training.rehearsal.copies import clone_of, dry_step
from lightning_multigrid.training.trainer.changes import Changes

_TRIED = 2  # clips of a first try: BatchNorm needs more than one value per channel
_ORDER, _RANDOM = 1, 2  # keep what is drawn here apart from what training draws


class PopulationEstimate:
    """Re-estimates a module's running statistics in the middle of its training, and changes nothing else.

    It runs dry steps on a clone, with the module's weights, which finds the Trainer where the last step found it. What
    a step moves itself, such as a teacher that follows by momentum, moves in the clone. Each time it makes a loader,
    with new workers.
    """

    def __init__(self, training: MultigridLoader, batches: int, trainer: Trainer) -> None:
        self._training, self._batches = training, batches
        self._trainer, self._module = trainer, trainer.lightning_module
        if isinstance(training.template.dataset, StreamSamples):
            raise MisconfigurationException(
                "`precise_bn_batches` reads clips of the pass again, which an iterable dataset can't give. Leave it "
                "out."
            )
        if trainer.strategy.restore_checkpoint_after_setup:
            raise MisconfigurationException(
                f"`precise_bn_batches` needs a copy of the module, but {type(trainer.strategy).__name__} shards it. "
                "Leave the argument out: validation then uses the moving averages, averaged over the ranks."
            )
        # A first try refuses a module in whose step no BatchNorm layer can be watched.
        shape = replace(training.sampler.plan.schedule.baseline.shape, clips=_TRIED)
        why = "no BatchNorm layer is reached"
        try:
            # These clips need no other rank.
            with self._observing({}, 0) as (clone, moments), sub_batches(_TRIED, of=_TRIED, world=1):
                made = small_batches(training, [shape])
                self._run(clone, arrived(trainer, clone, made, shape), 1)
            if any(moments.values()):
                return
        except Exception as error:  # whatever a user's model may raise
            why = f"that fails with {error_text(error)}"
        raise MisconfigurationException(
            f"`precise_bn_batches` runs `training_step` of {type(self._module).__name__} on a copy of the module, but "
            f"{why}. Let the step run outside of a training, or leave the argument out."
        )

    def write(self, last: Place, modes: Mapping[str, bool]) -> None:
        """Sets statistics of the layers that train (`modes`), by clips of the pass in which the last step began."""
        sampler, world = self._training.sampler, self._trainer.world_size
        number, schedule = sampler.number_of(sampler.plan.step(last)), sampler.plan.schedule
        groups = sub_batches(schedule.sub_batch, of=schedule.baseline.shape.clips, world=world)
        # At the end, the epoch of the last step is over.
        with self._observing(modes, *number, current_epoch=last.epoch) as (clone, moments), groups:
            drawn = baseline_sampler(sampler, self._batches, number, derive_seed(sampler.plan.seed, _ORDER))
            loader = MultigridLoader(self._training.clip_dataset, drawn, self._training.template)
            for index, batch in enumerate(loader, start=1):
                self._run(clone, after_hooks(self._trainer, clone, batch), index)
        write_statistics(_training_layers(self._module, modes), moments, world)

    @contextmanager
    def _observing(
        self, modes: Mapping[str, bool], *number: int, **overrides: Any
    ) -> Iterator[tuple[LightningModule, dict[str, list[torch.Tensor]]]]:
        """Gives a clone of the module, and what those of its layers see that train."""
        sampler = self._training.sampler
        seed = derive_seed(sampler.plan.seed, _ORDER, _RANDOM, *number, sampler.rank)
        with (
            clone_of(self._module, self._trainer, **overrides) as clone,
            without_trace(self._trainer, self._module.device, seed),
            observed_moments(_training_layers(clone, modes)) as moments,
        ):
            for name, part in clone.named_modules():
                part.training = modes.get(name, True)
            yield clone, moments

    def _run(self, clone: LightningModule, batch: Any, index: int) -> None:
        with torch.no_grad():
            for own, copied in zip(self._module.parameters(), clone.parameters(), strict=True):
                copied.copy_(own)
        # Only a step that optimizes by hand calls backward.
        with torch.set_grad_enabled(not self._module.automatic_optimization):
            dry_step(self._trainer, clone, batch, index)


def _training_layers(module: nn.Module, modes: Mapping[str, bool]) -> dict[str, BatchNorm]:
    return {name: layer for name, layer in tracking_layers(module).items() if modes.get(name, True)}


class EvaluationStatistics(Callback):
    """Gives BatchNorm the running statistics of the population, or the average over ranks, for validations and the end.

    While it fits it is the last callback: if another one swaps averaged weights in for a validation, the statistics are
    theirs. Training's moving average continues from these values.
    """

    def __init__(self, trainer: Trainer, estimate: PopulationEstimate | None, account: Account) -> None:
        self._trainer, self._module = trainer, trainer.lightning_module
        self._estimate, self._account = estimate, account
        self._averages = callbacks_of(trainer, "WeightAveraging")
        self._last: Place | None = None  # of the last step that has ended
        self._written: Place | None = None  # the last step before the statistics that were written last
        self._parts: list[tuple[str, nn.Module]] = []  # of the module, by name
        self._training: list[bool] = []  # whether each of them was in training mode when the last step ended

    def start(self, changes: Changes) -> None:
        changes.add_callback(self._trainer, self)

    def begin(self) -> None:
        self._parts = [*self._module.named_modules()]

    def ended(self, place: Place) -> None:
        # Layers may be frozen at any time, by a callback or within the step; validation puts all in another mode.
        if self._estimate is not None or self._trainer.world_size > 1:  # else nothing will be written
            self._training = [part.training for _, part in self._parts]
        self._last = place

    @override
    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write()

    def finish(self) -> None:
        # The last checkpoint is not written yet.
        if not self._averages and self._written != self._last:
            self._write()

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._averages:  # which the module has only now
            self._write()

    def _write(self) -> None:
        if self._last is None:  # before the first step, also of a resumed run: a checkpoint has its statistics
            return
        self._written = self._last
        modes = {name: training for (name, _), training in zip(self._parts, self._training, strict=False)}
        training = _training_layers(self._module, modes)
        with torch.no_grad(), self._account.during(STATISTICS):
            if self._estimate is None:
                average_statistics(training, self._trainer.world_size)
            elif training:  # else all layers are frozen
                self._estimate.write(self._last, modes)
