"""Precise BatchNorm: running statistics over the training data instead of a moving average of recent mini-batches.

In multigrid training that average mixes the grids of the short cycle. This module re-estimates the statistics with the
current weights, on the baseline's grid: mean and variance of all values that a layer sees, on all ranks.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import wraps
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
    running_statistics,
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
    """Gives validations and checkpoints the running statistics of the population, or the average over ranks.

    While it fits it is the last callback: if another one swaps averaged weights in for a validation, the statistics are
    theirs. So are those of the population in a checkpoint, and at the end. Training's moving average continues from
    these values.

    Checkpoints that callbacks write at the end of a step, an epoch or the training hold what was validated. Others
    (after an error, or saved by the script) keep the moving average: ranks may be at different places and deadlock.
    """

    def __init__(self, trainer: Trainer, estimate: PopulationEstimate | None, account: Account) -> None:
        self._trainer, self._module = trainer, trainer.lightning_module
        self._estimate, self._account = estimate, account
        self._callbacks_act = False  # whether callbacks are at the end of a step, an epoch or the training
        self._last: Place | None = None  # of the last step that has ended
        # After which step statistics were written last, and whether for averaged weights.
        self._written: tuple[Place, bool] | None = None
        self._of_average: dict[str, torch.Tensor] = {}  # statistics that were written for averaged weights last
        self._parts: list[tuple[str, nn.Module]] = []  # of the module, by name
        self._training: list[bool] = []  # whether each of them was in training mode when the last step ended

    def start(self, changes: Changes) -> None:
        add_callback(self._trainer, self, changes)
        own = self._trainer.save_checkpoint

        @wraps(own)
        def save_checkpoint(filepath: Any, weights_only: bool | None = None, *arguments: Any, **named: Any) -> None:
            if self._callbacks_act:  # of weights alone, Lightning saves the module's own
                self._update(average=bool(self._averages) and not weights_only)
            own(filepath, weights_only, *arguments, **named)

        # Callbacks are asked too late, and not at all for a checkpoint of weights alone.
        changes.set_attribute(self._trainer, "save_checkpoint", save_checkpoint)

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
        self._last, self._callbacks_act = place, True

    def end(self) -> None:
        """Notes that an epoch has ended, or the training."""
        self._callbacks_act = True
        if any(average.should_update(epoch_idx=self._trainer.current_epoch) for average in self._averages):
            self._written = None  # an average that moves now is another one than was validated

    def finish(self) -> None:
        """The training has ended: the module has the statistics of its last weights, also without a validation."""
        self.end()
        if self._estimate is not None and not self._averages:
            self._update(average=False)

    def _callbacks_are_done(self, *_: Any, **__: Any) -> None:
        self._callbacks_act = False

    # This callback is the last one, so all others have done at these hooks what they do.
    on_train_batch_end = on_train_epoch_start = _callbacks_are_done

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._callbacks_are_done()
        if self._averages:
            self._update(average=True)
            for (
                name,
                values,
            ) in self._statistics().items():  # the module has the average, with older ones
                if name in self._of_average:
                    values.copy_(self._of_average[name])

    # --- Averaged weights ---

    @property
    def _averages(self) -> list[Any]:
        """The callbacks that average weights, if the population's statistics are asked for."""
        return [] if self._estimate is None else callbacks_of(self._trainer, "WeightAveraging")

    @contextmanager
    def _averages_swapped(self) -> Iterator[None]:
        """Within it the module is the average, as in a validation: what Lightning saves as the model."""
        for average in self._averages:
            average.on_validation_epoch_start(self._trainer, self._module)
        try:
            yield
        finally:
            for average in self._averages:
                average.on_validation_epoch_end(self._trainer, self._module)

    # --- Writing ---

    @override
    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write(average=bool(self._averages))

    def _update(self, *, average: bool) -> None:
        """Writes the statistics for the module's own weights or the average, if they aren't those of the last step."""
        if self._written != (self._last, average):
            with self._averages_swapped() if average else nullcontext():
                self._write(average=average)

    def _write(self, *, average: bool) -> None:
        if self._last is None:  # before the first step, also of a resumed run: a checkpoint has its statistics
            return
        modes = {name: training for (name, _), training in zip(self._parts, self._training, strict=False)}
        with torch.no_grad(), self._account.during(STATISTICS):
            if self._estimate is None:
                average_statistics(_training_layers(self._module, modes), self._trainer.world_size)
            elif _training_layers(self._module, modes):  # else all layers are frozen
                self._estimate.write(self._last, modes)
        self._written = self._last, average
        if average:
            self._of_average = {name: values.clone() for name, values in self._statistics().items()}

    def _statistics(self) -> dict[str, torch.Tensor]:
        return running_statistics(tracking_layers(self._module))
