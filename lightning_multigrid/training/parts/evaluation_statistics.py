"""Precise BatchNorm: running statistics over the training data instead of a moving average of recent mini-batches.

In multigrid training that average mixes the grids of the short cycle. This module re-estimates the statistics with the
current weights, on the baseline's grid: mean and variance of all values that a layer sees, on all ranks.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch
from lightning_utilities.core.rank_zero import rank_zero_warn
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
from lightning_multigrid.training.mini_batches import after_hooks, apart, error_text, run_forward, run_step
from lightning_multigrid.training.rehearsal.batches import arrived, small_batches
from lightning_multigrid.training.rehearsal.copies import quiet_copy
from lightning_multigrid.training.trainer.added import add_callback
from lightning_multigrid.training.trainer.changes import Changes

_TRIED = 2  # clips of a first try: BatchNorm needs more than one value per channel
_ORDER, _RANDOM = 1, 2  # keep what is drawn here apart from what training draws


class PopulationEstimate:
    """Re-estimates a module's running statistics in the middle of its training, and changes nothing else.

    It runs `training_step` without gradients, in the precision and the modes of training, on a copy of the module that
    shares its parameters and finds the Trainer where the last step found it. Metrics, logs, buffers, gradients, LRs and
    all random state stay as they are. If the step optimizes by hand or fails on a copy, `forward` is run on the clips
    instead, and a warning says so. Each time it makes a loader, with new workers.
    """

    def __init__(self, training: MultigridLoader, batches: int, trainer: Trainer) -> None:
        self._training, self._trainer, self._module = training, trainer, trainer.lightning_module
        self._step = run_step
        if isinstance(training.like.dataset, StreamSamples):
            raise MisconfigurationException(
                "`precise_bn_batches` reads clips of the pass again, which an iterable dataset can't give. Leave it "
                "out."
            )
        if trainer.strategy.restore_checkpoint_after_setup:
            raise MisconfigurationException(
                f"`precise_bn_batches` needs a copy of the module, but {type(trainer.strategy).__name__} shards it. "
                "Leave the argument out: validation then uses the moving averages, averaged over the ranks."
            )
        self._batches = batches
        self.refusal = self._tried()

    def _tried(self) -> MisconfigurationException | None:
        """Tries a step, and returns the refusal of a module in which neither `training_step` nor `forward` runs."""
        shape = replace(self._training.sampler.plan.schedule.baseline.shape, clips=_TRIED)
        name = type(self._module).__name__
        failures = [] if self._module.automatic_optimization else ["it optimizes by hand"]  # shared parameters
        for self._step in (run_step, run_forward)[len(failures) :]:
            try:
                with self._apart(0), _replica(self._module, self._trainer, {}) as replica:
                    made = small_batches(self._training, [shape])
                    # These clips need no other rank.
                    with sub_batches(_TRIED, of=_TRIED, world=1), observed_moments(tracking_layers(replica)) as moments:
                        self._run(replica, arrived(self._trainer, replica, made, shape), 0)
            except Exception as error:  # whatever a user's model may raise
                failures.append(error_text(error))
                continue
            if any(moments.values()):
                if failures:
                    rank_zero_warn(
                        f"`precise_bn_batches` runs `forward` of {name} on the clips, as `training_step` can't be run "
                        f"on a copy of the module ({failures[0]}). So BatchNorm's statistics leave out what "
                        "`training_step` does to clips before. If it does something, do it in "
                        "`on_after_batch_transfer`."
                    )
                return None
            failures.append("no BatchNorm layer was reached")
        return MisconfigurationException(
            f"`precise_bn_batches` runs `training_step`, else `forward`, on a copy of the module, but with {name} the "
            f"first fails ({failures[0]}), and so does the second ({failures[1]}). Let `forward` take clips, or leave "
            "the argument out."
        )

    def write(self, last: Place, modes: Mapping[str, bool]) -> None:
        """Sets statistics of the layers that train (`modes`, by name) to the population's.

        The clips are of the pass over the data in which the last step began.
        """
        sampler = self._training.sampler
        number, schedule = sampler.number_of(sampler.plan.step(last)), sampler.plan.schedule
        training, world = _training_layers(self._module, modes), self._trainer.world_size
        seed = derive_seed(sampler.plan.seed, _ORDER)
        with (
            _replica(self._module, self._trainer, modes, current_epoch=last.epoch) as replica,  # at the end, it is over
            self._apart(*number),
            observed_moments({name: replica.get_submodule(name) for name in training}) as moments,
            sub_batches(schedule.sub_batch, of=schedule.baseline.shape.clips, world=world),
        ):
            loader = MultigridLoader(
                self._training.clip_dataset,
                baseline_sampler(sampler, self._batches, number, seed),
                self._training.like,
            )
            for index, batch in enumerate(loader):
                self._run(replica, after_hooks(self._trainer, replica, batch), index)
        write_statistics(training, moments, world)

    def _run(self, replica: LightningModule, batch: Any, index: int) -> None:
        precision = self._trainer.precision_plugin.train_step_context()
        # To compile graphs for a few mini-batches would take longer than to run them.
        with torch.no_grad(), torch.compiler.set_stance("force_eager"), precision:
            self._step(replica, batch, index)

    def _apart(self, *number: int) -> AbstractContextManager[None]:
        sampler = self._training.sampler
        seed = derive_seed(sampler.plan.seed, _ORDER, _RANDOM, *number, sampler.rank)
        return apart(self._trainer, self._module.device, seed)


def _training_layers(module: nn.Module, modes: Mapping[str, bool]) -> dict[str, BatchNorm]:
    return {name: layer for name, layer in tracking_layers(module).items() if modes.get(name, True)}


@contextmanager
def _replica(
    module: LightningModule, trainer: Trainer, modes: Mapping[str, bool], **told: Any
) -> Iterator[LightningModule]:
    """Gives a quiet copy that shares the parameters of a module and its data, and nothing else."""
    memo: dict[int, Any] = {id(parameter): parameter for parameter in module.parameters()}
    with quiet_copy(module, trainer, memo, [], **told) as copied:
        for name, part in copied.named_modules():
            part.training = modes.get(name, True)
        yield copied


class EvaluationStatistics(Callback):
    """Gives BatchNorm the running statistics of the population, or the average over ranks, for validations and the end.

    While it fits it is the last callback: if another one swaps averaged weights in for a validation, the statistics are
    theirs. Training's moving average continues from these values.

    A checkpoint has the statistics that the module has at that moment: those of a validation before it, and after
    further steps, as with `every_n_train_steps`, the moving average.
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
        add_callback(self._trainer, self, changes)

    def begin(self) -> None:
        self._parts = [*self._module.named_modules()]

    def ended(self, place: Place) -> None:
        """Notes that a step has ended."""
        # Only now: what is wrong with a step in training, too, such as a label beyond the classes, has been said there.
        if self._estimate is not None and self._estimate.refusal is not None:
            raise self._estimate.refusal
        # Layers may be frozen at any time, by a callback or within the step; validation puts all in another mode.
        if self._estimate is not None or self._trainer.world_size > 1:  # else nothing will be written
            self._training = [part.training for _, part in self._parts]
        self._last = place

    @override
    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write()

    def finish(self) -> None:
        """The training has ended, and its last checkpoint is not written yet."""
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
