"""One `fit`: how it is planned and started, how its LR and validations are set, and how it answers its loader."""

import sys
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, cast

import torch
from lightning_utilities.core.rank_zero import rank_zero_info
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from lightning_multigrid.lightning import LightningModule, MisconfigurationException, Trainer, is_a
from lightning_multigrid.loading import (
    FixedClips,
    MultigridLoader,
    MultigridSampler,
    ScriptLoader,
    StreamSamples,
    derive_seed,
    order_of,
    reseed,
)
from lightning_multigrid.norm import make_groups, sub_batchnorm_layers, tracking_layers
from lightning_multigrid.positions import Following
from lightning_multigrid.reports import Clock, RunReport, tell_changed_meaning, tell_few_steps, ways_out
from lightning_multigrid.schedule import BatchShape, Step
from lightning_multigrid.training import lightning_internals as internals
from lightning_multigrid.training import resume
from lightning_multigrid.training.baseline_lr import put_baseline
from lightning_multigrid.training.check_grids import PointsOnPlan, check_grids
from lightning_multigrid.training.mini_batches import handlers
from lightning_multigrid.training.precise_bn import EvaluationStatistics, PopulationEstimate
from lightning_multigrid.training.recipe import Options, Recipe, read_recipe, user_loader
from lightning_multigrid.training.refusals import refuse_batchnorm, warn_of_own_state
from lightning_multigrid.training.takeover import Takeover


class Fit:
    """What one `fit` keeps from hook to hook. It must be made while the Trainer still has its script's settings.

    Making it tries the plan on the model, and takes over the LR and what knows places.
    """

    def __init__(
        self, options: Options, trainer: Trainer, takeover: Takeover, recipe: Recipe, multigrid: MultigridLoader
    ) -> None:
        module, sampler = trainer.lightning_module, multigrid.sampler
        grids = [sampler.schedule.baseline.shape, *sampler.schedule.grids]
        self._trainer, self.sampler, self.points = trainer, sampler, PointsOnPlan()
        boxes_follow = any(set("xywh") & set(axes) for axes in (options.follow or {}).values())
        flops = check_grids(module, grids, handlers(trainer, module, multigrid), self.points, boxes_follow)
        estimate = None
        if options.precise_bn_batches is not None:
            estimate = PopulationEstimate(multigrid, options.precise_bn_batches)
            estimate.check(trainer, module)
        self.statistics = EvaluationStatistics(estimate)
        steps = resume.optimizer_steps_before(sampler, internals.Place(sampler.schedule.epochs, 0))
        self.lr = takeover.drive_lr(trainer, module, recipe, steps, options.weight_decay_scaling == "timescale")
        self.lr.scale_gradient = self.scale_gradient
        self._scales_lr = any(phase.lr_scale != 1 for phase in sampler.schedule.phases)
        self.report = RunReport(sampler, flops, multigrid.num_workers, ways_out(multigrid.clips), Clock(module.device))
        self.following = Following(module, grids[0].frames, grids[0].size)
        takeover.callback(self.following.restore)
        held = trainer.callbacks if options.hold_early_stopping else []  # type: ignore[attr-defined]
        self._early_stoppings = [callback for callback in held if is_a(callback, "callbacks.EarlyStopping")]
        self._resumed: resume.Continuation | None = None
        self._whole_epoch: int | None = None  # the last epoch that has run from its first mini-batch
        self._validations_per_phase = options.validations_per_phase
        self._validate_every = trainer.check_val_every_n_epoch

    def step(self, batch: int) -> Step:
        return self.sampler.steps(self._trainer.current_epoch)[batch]

    # --- LR and validation ---

    def resume(self, checkpoint: dict[str, Any], state: dict[str, Any] | None) -> None:
        """Continues from a checkpoint, in which `state` is the callback's, before Lightning reads its counters."""
        self._resumed = resume.take_up(checkpoint, state, self.sampler, self.lr)
        self.lr.epoch = self._resumed.epoch
        if self.lr.run:
            self.lr.run["estimated_stepping_batches"] += self._resumed.steps_elsewhere

    def start_lr(self) -> None:
        if self._resumed is not None:
            # The LR at the time of the checkpoint; Lightning does not know the position yet.
            self.lr.resume(self._resumed.ticks, self._resumed.intervals, self._resumed.lr_scale)
        else:
            self.sync_lr(self._trainer.current_epoch, 0)

    def sync_lr(self, epoch: int, batch: int) -> None:
        """Sets the LR of a step; the step after an epoch's last is the first of the next epoch."""
        if self._trainer.optimizers != self.lr.optimizers:
            raise MisconfigurationException(
                "MultigridCallback scales the LR of the optimizers that `configure_optimizers` returned, but the "
                "Trainer has other ones now. Keep those."
            )
        for optimizer in self._trainer.optimizers:
            if self._scales_lr and any(group.get("lr") is None for group in optimizer.param_groups):
                raise MisconfigurationException(
                    f"MultigridCallback scales the `lr` of all parameter groups, but one of {type(optimizer).__name__} "
                    "has none. Give the optimizer a number as `lr`, or the callback `lr_scaling='none'`."
                )
        steps = self.sampler.steps(epoch)
        batch -= batch % self.sampler.accumulate  # the micro-batches of an optimizer step share its LR
        if batch >= len(steps):
            epoch, batch, steps = epoch + 1, 0, self.sampler.steps(epoch + 1)
        position = epoch + Fraction(steps[batch].offset, self.sampler.clips)
        scale, schedule = steps[batch].lr_scale, self.sampler.schedule
        # A step decays weights by LR x weight decay. With `more` times the clips it must be `more` times as much.
        more = schedule.phases[steps[batch].phase].shape.clips / schedule.baseline.shape.clips
        self.lr.sync(schedule.baseline_epoch(position), scale, more / scale)

    def make_rank_groups(self) -> None:
        """Makes the groups of ranks that share BatchNorm statistics in any step of this run."""
        schedule = self.sampler.schedule
        if self._trainer.world_size > 1 and sub_batchnorm_layers(self._trainer.lightning_module):
            tails = (self.sampler.steps(epoch)[-1] for epoch in range(schedule.epochs))
            steps = [*schedule.grids_of_statistics, *((step.shape, step.sub_batch) for step in tails)]
            make_groups((shape.clips, sub_batch) for shape, sub_batch in steps)

    def scale_gradient(self, optimizer: Optimizer) -> None:
        """Scales the gradient of an optimizer step with the tail of an epoch (`MultigridSchedule.gradient_scale`)."""
        batch, accumulate = internals.batch_index(self._trainer), self.sampler.accumulate
        start = batch - batch % accumulate
        steps = self.sampler.steps(self._trainer.current_epoch)[start : start + accumulate]
        # torch also makes the state of an optimizer by a step, before the first mini-batch.
        scale = self.sampler.schedule.gradient_scale(steps) if steps else 1
        if scale != 1:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.mul_(scale)

    def hold_early_stopping(self, batch: int) -> None:
        """Keeps `EarlyStopping` from running out of patience before the last phase, where it begins to count."""
        schedule = self.sampler.schedule
        for callback in self._early_stoppings:
            held = not schedule.flat and self.step(batch).phase < len(schedule.phases) - 1
            # The callback adds one before it compares with a patience of 0 or more.
            callback.wait_count = min(callback.wait_count, -2) if held else max(callback.wait_count, 0)

    def judge_calls(self) -> None:
        """Judges how often the script has stepped its schedulers, if an epoch has passed since the last time."""
        if self._whole_epoch is not None and not self._trainer.lightning_module.automatic_optimization:
            self.lr.judge_calls(self._whole_epoch, len(self.sampler.steps(self._whole_epoch)))

    def choose_validation(self) -> None:
        """Decides whether this epoch ends with a validation. The last one does, for the checkpoint that counts."""
        trainer, schedule = self._trainer, self.sampler.schedule
        if self._validations_per_phase is not None:
            validate = trainer.current_epoch in schedule.validation_epochs(self._validations_per_phase)
        elif self._validate_every is not None:
            done = trainer.current_epoch + 1
            validate = done % self._validate_every == 0 or done == schedule.epochs
        else:
            return  # the number of batches decides
        trainer.check_val_every_n_epoch = 1 if validate else sys.maxsize

    # --- What the loader asks ---

    def epoch(self) -> int:
        return self._trainer.current_epoch

    def start(self) -> tuple[int, int]:
        """Prepares the current epoch, or the rest of it; returns the epoch and its first batch."""
        # Lightning knows the position in every case of resuming only when it asks for the first batch, and after a
        # resume in mid-epoch it does not call `on_train_epoch_start`.
        epoch, batch = self._trainer.current_epoch, internals.batch_index(self._trainer) + 1
        # Lightning has just requested the training loader. It must not request those for validation again.
        internals.reload_every(self._trainer, 0)
        self.choose_validation()
        self.judge_calls()
        self._whole_epoch = epoch if batch == 0 else None
        self.lr.forget_calls()
        self.sync_lr(epoch, batch)
        self.report.started(epoch, batch)
        return epoch, batch

    def follow(self, epoch: int, batch: int, mini_batches: Iterator[Any]) -> Iterator[Any]:
        """Yields mini-batches, and notes when each was asked for and handed over."""
        return self.report.timer.timed(self._seeded(epoch, batch, mini_batches))

    def _seeded(self, epoch: int, start: int, mini_batches: Iterator[Any]) -> Iterator[Any]:
        for batch, clips in enumerate(mini_batches, start):
            # Augmentation on the device and dropout draw on this state. It is a function of the position, so no
            # checkpoint needs it, and neither validation nor a restart on other devices changes it.
            reseed(derive_seed(self.sampler.seed, epoch, batch, self._trainer.global_rank))
            yield clips

    # --- Checkpoints ---

    def state_dict(self) -> dict[str, Any]:
        """Returns what can't be computed again, as plain values: checkpoints are loaded with `weights_only`."""
        return {
            **resume.describe_run(self.sampler, self.lr.epoch),
            "seed": self.sampler.seed,
            "ticks": list(self.lr.ticks),
            "intervals": list(self.lr.intervals),
            "lr_scale": self.lr.scales["lr"],
        }

    def complete_checkpoint(self, checkpoint: dict[str, Any], state: dict[str, Any]) -> None:
        counters = internals.LoopCounters(checkpoint)
        state.update(resume.describe_stand(self.sampler, counters.place))
        if counters.place.batch == 0:
            counters.forget_loader()
        put_baseline(checkpoint)  # callbacks for fine-tuning keep the LR of parameter groups


def log_values(trainer: Trainer, module: LightningModule, values: Mapping[str, float]) -> None:
    """Logs values in steps that loggers get, and at the end of an epoch, where callbacks may monitor them."""
    # In other steps, logging would cost more than all the rest of the callback.
    seen = internals.step_is_logged(trainer) or trainer.is_last_batch or trainer.should_stop
    if (seen or trainer.fast_dev_run) and not trainer.barebones:  # type: ignore[attr-defined]
        # As tensors of the CPU: Lightning would send numbers to the device, and wait for it.
        module.log_dict({name: torch.tensor(float(value)) for name, value in values.items()}, batch_size=1)


# --- How a `fit` begins ---


def begin_fit(
    options: Options,
    trainer: Trainer,
    takeover: Takeover,
    checkpoint: dict[str, Any] | None,
    state: dict[str, Any] | None,
) -> Fit:
    """Plans the training of a script, tries the plan on the model, and takes the Trainer over, at `on_fit_start`."""
    # Lightning restores the checkpoint's loops and optimizers only after that hook, so its counters may change here.
    module = trainer.lightning_module
    takeover.convert_batchnorm(module, options.sub_batch)  # layers that were made after `setup`
    refuse_batchnorm(module)
    own = internals.training_source(trainer).dataloader()
    loader = user_loader(own, trainer, options.clips_per_epoch)
    streamed = isinstance(loader.dataset, StreamSamples)
    if streamed and options.precise_bn_batches is not None:
        raise MisconfigurationException(
            "`precise_bn_batches` reads clips of the epoch again, which an iterable dataset can't give. Leave it out."
        )
    recipe = read_recipe(trainer, loader, trainer.world_size)
    seed = (state or {}).get("seed") if options.seed is None else options.seed
    multigrid = _make_loader(options, trainer, recipe, loader, seed)
    sampler = multigrid.sampler
    fit = multigrid.host = Fit(options, trainer, takeover, recipe, multigrid)
    if checkpoint is not None:
        fit.resume(checkpoint, state)
    warn_of_own_state(loader, multigrid)
    tell_changed_meaning(trainer, sampler.schedule, options.validations_per_phase is not None)
    if tracking_layers(module) and options.precise_bn_batches is None and not sampler.schedule.flat:
        tell_few_steps(trainer, len(sampler.steps(0)), sampler.schedule.phases[0].lr_scale)
    takeover.show_on_bar(trainer, fit.report)
    takeover.add_last_callback(trainer, fit.statistics)
    front = ScriptLoader(own if streamed or own.batch_size is not None else loader, multigrid, fit.epoch)
    loaders = internals.loader_with_front(trainer, multigrid, front)
    takeover.callback(setattr, loaders, "front", own)
    takeover.replace_loader(trainer, loaders)
    takeover.configure_trainer(trainer, sampler, recipe.epoch)
    rank_zero_info(sampler.schedule.table(sampler.clips, sampler.accumulate, sampler.drop_last, narrow=True))
    if fit.following.names and not sampler.schedule.flat:
        rank_zero_info(f"Positions follow the grid: {', '.join(fit.following.names)}.")
    rank_zero_info(options.lr_rule(sampler.schedule, trainer.optimizers))
    return fit


def _make_loader(
    options: Options, trainer: Trainer, recipe: Recipe, loader: DataLoader[Any], seed: int | None
) -> MultigridLoader:
    """Plans the training of a recipe on this device; returns the loader of its mini-batches."""
    dataset = options.clips_of(loader.dataset)
    shape = BatchShape(cast("int", loader.batch_size), dataset.frames, dataset.size)
    epochs = options.epochs_of_try if trainer.fast_dev_run else recipe.epochs  # type: ignore[attr-defined]
    configs, optimizers = trainer.lr_scheduler_configs, trainer.optimizers
    model = trainer.lightning_module
    schedule = options.infer_schedule(shape, dataset.stride, recipe.epoch, epochs, configs, optimizers, model)
    if isinstance(dataset, FixedClips):
        for grid in schedule.grids:
            dataset.check(grid.frames)
    seed = internals.global_seed(trainer) if seed is None else seed
    in_order = range(int(recipe.available * trainer.world_size))
    sampler = MultigridSampler(
        schedule,
        (lambda epoch: in_order) if trainer.overfit_batches else order_of(loader, seed),  # type: ignore[attr-defined]
        recipe.planned_clips(schedule),
        seed=seed,
        rank=trainer.global_rank,
        world=trainer.world_size,
        accumulate=trainer.accumulate_grad_batches,
        drop_last=recipe.drop_last,
    )
    sampler.steps(0)  # refuses too few clips for the first mini-batch
    return MultigridLoader(dataset, sampler, loader)
