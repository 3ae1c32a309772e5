"""`MultigridCallback`: multigrid training as one line on a baseline script.

Hooks say when. What is computed stands in `schedule.py` (shapes), `baseline_lr.py` (LR), `sampler.py` (order),
`norm.py` (batch statistics) and `recipe.py` (what the script says about the baseline).
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from fractions import Fraction
from functools import partial, wraps
from typing import Any, cast

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader
from typing_extensions import override

from lightning_multigrid.baseline_lr import BaselineEpoch, BaselineLR, lr_stages
from lightning_multigrid.clip_parts import clip_dataset
from lightning_multigrid.fixed_clips import FixedClips
from lightning_multigrid.grid import BatchShape
from lightning_multigrid.norm import convert_sub_batchnorm, restore_batchnorm, set_sub_batch
from lightning_multigrid.probe import batch_maker, check_grids
from lightning_multigrid.randomness import derive_seed, reseed
from lightning_multigrid.recipe import Recipe, read_recipe, refuse_unsupported, training_source, user_loader
from lightning_multigrid.report import ShapeTimes, last_metrics, phase_line
from lightning_multigrid.sampler import (
    MultigridLoader,
    MultigridSampler,
    order_of,
)
from lightning_multigrid.schedule import Baseline, Epochs, LongCycle, LRScaling, MultigridSchedule, ShortCycle

__all__ = ["MultigridCallback"]


class MultigridCallback(Callback):
    """Trains by the multigrid method (Wu et al., CVPR 2020): a baseline script becomes 3 to 6 times faster.

    The script states the baseline: `batch_size`, the clips of its dataset, `max_epochs` or `max_steps`, its LR
    schedulers. The callback plans the multigrid training from them and changes, while training, the shape of the
    mini-batches, the LR, and the clips that share BatchNorm statistics. Validation stays on the baseline's grid.
    Everything is put back when `fit` ends.

    Epochs are more than the script's and differ in their number of steps. So `every_n_train_steps`, the patience of
    `EarlyStopping` and the decay of weight averages count other steps and epochs than in the baseline.

    Args:
        schedule: The whole schedule; by default it is inferred, and the arguments below shape it.
        epoch_factor: Epochs relative to the baseline's.
        long_cycle: Base shapes of an LR stage.
        short_cycle: Spatial sizes of successive iterations.
        sub_batch: Clips that share BatchNorm statistics on a base shape.
        size_divisor: Sizes other than the baseline's are rounded to a multiple of this many pixels.
        lr_scaling: How the LR grows with the clips of the base shape: linear, sqrt or none.
        whole_epochs: Round the ends of the phases to whole epochs, as the published code does.
        milestones: Starts of the LR stages after the first, in epochs of the baseline. By default those of the LR
            scheduler if it has steps, else the proportions of the paper's Kinetics recipe.
        warmup_epochs: Length of the warm-up, in epochs of the baseline. By default that of the LR scheduler.
        layout: Axes of a clip of the dataset, for instance `THWC`. By default `CTHW`, and `TCHW` is recognised.
        validations_per_phase: Validate about this many times in each phase instead of by the Trainer's
            `check_val_every_n_epoch`.
        seed: Seed of order and augmentation. By default that of `seed_everything`, else a drawn one.

    Raises:
        ValueError: If `schedule` and arguments that shape it are both given, or an argument is out of range.
    """

    def __init__(
        self,
        schedule: MultigridSchedule | None = None,
        *,
        epoch_factor: float = 1.5,
        long_cycle: LongCycle = LongCycle(),
        short_cycle: ShortCycle = ShortCycle(),
        sub_batch: int = 8,
        size_divisor: int = 1,
        lr_scaling: LRScaling = "linear",
        whole_epochs: bool = False,
        milestones: list[float] | None = None,
        warmup_epochs: float | None = None,
        layout: str | None = None,
        validations_per_phase: int | None = None,
        seed: int | None = None,
    ) -> None:
        self.schedule = schedule
        self.epoch_factor, self.long_cycle, self.short_cycle = epoch_factor, long_cycle, short_cycle
        self.sub_batch, self.size_divisor, self.lr_scaling = sub_batch, size_divisor, lr_scaling
        self.whole_epochs, self.milestones, self.warmup_epochs = whole_epochs, milestones, warmup_epochs
        self.layout, self.validations_per_phase, self.seed = layout, validations_per_phase, seed
        if validations_per_phase is not None and validations_per_phase < 1:
            raise ValueError(f"`validations_per_phase` must be at least 1, got {validations_per_phase}.")
        # Refuse bad values where they are written, not when `fit` starts.
        any_baseline = Baseline(BatchShape(1, 4, 4), epochs=1)
        shaped = self.plan(any_baseline, stepwise=True) != MultigridSchedule(any_baseline)
        if schedule is not None and (shaped or milestones is not None or warmup_epochs is not None):
            raise ValueError(
                "`schedule` says everything about the schedule, but arguments that shape an inferred one are given, "
                "too. Give either; `MultigridSchedule` takes the same arguments."
            )
        self._undo = ExitStack()
        self._loaded: dict[str, Any] = {}
        self._fit: _Fit | None = None

    @property
    def seed_of_run(self) -> int:
        """Seed of order, augmentation and dropout of the training that is under way."""
        return self._run.sampler.seed

    @property
    def _run(self) -> _Fit:
        assert self._fit is not None  # set at `on_fit_start`
        return self._fit

    def plan(self, baseline: Baseline, stepwise: bool) -> MultigridSchedule:
        """The schedule for a baseline, by the arguments of this callback."""
        return MultigridSchedule(
            baseline,
            self.long_cycle,
            self.short_cycle,
            epoch_factor=self.epoch_factor,
            sub_batch=self.sub_batch,
            size_divisor=self.size_divisor,
            stepwise=stepwise,
            lr_scaling=self.lr_scaling,
            whole_epochs=self.whole_epochs,
        )

    def infer_schedule(
        self,
        shape: BatchShape,
        stride: int,
        epoch: BaselineEpoch,
        epochs: Fraction,
        schedulers: Sequence[LRSchedulerConfig],
    ) -> MultigridSchedule:
        """The schedule for what a script says about its baseline, unless a schedule was given.

        Args:
            shape: The baseline's mini-batch.
            stride: Temporal stride of its clips, in source frames.
            epoch: One of its epochs.
            epochs: Its length.
            schedulers: Its LR schedulers, as Lightning holds them.

        Raises:
            ValueError: If the given schedule is for another shape or length.
        """
        if self.schedule is not None:
            given = self.schedule.baseline
            if (given.shape, given.epochs) != (shape, epochs):
                raise ValueError(
                    f"The schedule is for a baseline of {given.shape} (clips x frames x size) and "
                    f"{float(given.epochs):g} epochs, but the script has one of {shape} and {float(epochs):g} epochs. "
                    "Make them equal, or leave the schedule to be inferred."
                )
            return self.schedule
        stages = lr_stages(schedulers, epoch, epochs)
        milestones: tuple[Epochs, ...] = stages.milestones if self.milestones is None else tuple(self.milestones)
        warmup = stages.warmup_epochs if self.warmup_epochs is None else self.warmup_epochs
        return self.plan(Baseline(shape, epochs, milestones, stride, warmup), stages.stepwise)

    # --- Before training ---

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            self._fit = None
            refuse_unsupported(trainer, pl_module)
            self._convert(pl_module)

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # `configure_optimizers` has run and has seen the baseline only; loops, optimizers and schedulers of a
        # checkpoint are restored after this hook.
        if trainer.limit_train_batches == 0:
            return
        self._convert(pl_module)  # layers that were made after `setup`
        if any(isinstance(module, nn.SyncBatchNorm) for module in pl_module.modules()):
            raise MisconfigurationException(
                "MultigridCallback sets the clips that share BatchNorm statistics itself, but the model has "
                "SyncBatchNorm layers. Remove `sync_batchnorm=True` from the Trainer."
            )
        source = training_source(trainer)
        loader = user_loader(source.dataloader())
        dataset = clip_dataset(loader.dataset) or FixedClips(loader.dataset, self.layout)
        recipe = read_recipe(trainer, loader)
        shape = BatchShape(cast("int", loader.batch_size), dataset.frames, dataset.size)
        epochs = self._epochs_of_try() if trainer.fast_dev_run else recipe.epochs  # type: ignore[attr-defined]
        schedule = self.infer_schedule(shape, dataset.stride, recipe.epoch, epochs, trainer.lr_scheduler_configs)
        self._refuse_other_plan(schedule)
        sampler = self._make_sampler(trainer, schedule, recipe, loader)
        multigrid = MultigridLoader(dataset, sampler, loader, _Position(self, trainer))
        check_grids(pl_module, [schedule.baseline.shape, *schedule.grids], batch_maker(trainer, pl_module, multigrid))
        lr = self._take_over_lr(trainer, pl_module, schedule, recipe)
        self._fit = _Fit(sampler, lr, trainer.accumulate_grad_batches)
        self._set(source, "instance", multigrid)
        self._take_over_trainer(trainer, schedule, recipe, sampler.clips)
        rank_zero_info(schedule.table(sampler.clips, trainer.accumulate_grad_batches, recipe.drop_last))

    def _epochs_of_try(self) -> Fraction:
        """A length that goes with the arguments, for `fast_dev_run`, in which the Trainer's own is 1."""
        if self.schedule is not None:
            return Fraction(self.schedule.baseline.epochs)
        return Fraction(math.floor(max(0, *(self.milestones or ()), self.warmup_epochs or 0)) + 1)

    def _convert(self, module: nn.Module) -> None:
        for layer in module.modules():
            if type(layer) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
                self._undo.callback(restore_batchnorm, convert_sub_batchnorm(layer, self.sub_batch))

    def _make_sampler(
        self, trainer: Trainer, schedule: MultigridSchedule, recipe: Recipe, loader: DataLoader[Any]
    ) -> MultigridSampler:
        seed = self._loaded.get("seed") if self.seed is None else self.seed
        seed = _global_seed(trainer) if seed is None else seed
        # A limit that is meant for a quick try still runs whole mini-batches.
        clips = min(recipe.available, max(recipe.clips, *(shape.clips for shape in schedule.grids)))
        in_order = partial(_in_order, recipe.available * trainer.world_size)
        sampler = MultigridSampler(
            schedule,
            in_order if trainer.overfit_batches else order_of(loader, seed),  # type: ignore[attr-defined]
            clips,
            seed=seed,
            rank=trainer.global_rank,
            world=trainer.world_size,
            accumulate=trainer.accumulate_grad_batches,
            drop_last=recipe.drop_last,
        )
        sampler.steps(0)  # refuses data that are too few for the first mini-batch
        return sampler

    def _take_over_lr(
        self, trainer: Trainer, module: LightningModule, schedule: MultigridSchedule, recipe: Recipe
    ) -> BaselineLR:
        step_scheduler = module.lr_scheduler_step
        lr = BaselineLR(
            trainer.lr_scheduler_configs,
            trainer.optimizers,
            recipe.epoch,
            lambda scheduler: step_scheduler(scheduler, None),
        )
        self._undo.callback(lr.remove_scale)

        @wraps(step_scheduler)
        def lr_scheduler_step(scheduler: Any, metric: Any) -> None:
            # Lightning's ticks. Ours follow the baseline clock instead; a plateau is Lightning's to see, but its
            # arithmetic is on the baseline's LR.
            if isinstance(scheduler, ReduceLROnPlateau):
                with lr.on_baseline():
                    step_scheduler(scheduler, metric)

        module.lr_scheduler_step = lr_scheduler_step  # type: ignore[method-assign]
        self._undo.callback(delattr, module, "lr_scheduler_step")
        adaptive = [type(optimizer).__name__ for optimizer in trainer.optimizers if not isinstance(optimizer, SGD)]
        most = max(phase.lr_scale for phase in schedule.phases)
        if adaptive and schedule.lr_scaling == "linear" and most > 1:
            rank_zero_warn(
                f"The LR of {adaptive[0]} will be multiplied by up to {most:g}, with the clips of a mini-batch. The "
                "paper does this with SGD; with adaptive optimizers it is unproven. If training diverges, use "
                "`MultigridCallback(lr_scaling='sqrt')` or `lr_scaling='none'`."
            )
        return lr

    def _take_over_trainer(self, trainer: Trainer, schedule: MultigridSchedule, recipe: Recipe, clips: int) -> None:
        if not trainer.fast_dev_run:  # type: ignore[attr-defined]
            self._set(trainer.fit_loop, "max_epochs", schedule.epochs)
            self._set(trainer.fit_loop.epoch_loop, "max_steps", -1)
            # The limit is in the plan already; Lightning would apply it to our batches once more.
            self._set(trainer, "limit_train_batches", 1.0)
        interval = trainer.val_check_interval
        if isinstance(interval, int) and not isinstance(interval, bool):
            if trainer.check_val_every_n_epoch is None:
                self._set(trainer, "val_check_interval", max(1, round(interval / schedule.iteration_reduction)))
            elif interval <= recipe.epoch.batches:
                self._set(trainer, "val_check_interval", interval / recipe.epoch.batches)
        self._run.validate_every = trainer.check_val_every_n_epoch
        self._set(trainer, "check_val_every_n_epoch", trainer.check_val_every_n_epoch)
        # As dense in the training as the script asks for, and at least once in the shortest epoch.
        accumulate = trainer.accumulate_grad_batches
        lengths = (sum(schedule.count_steps(e, clips, accumulate, recipe.drop_last)) for e in range(schedule.epochs))
        every = round(trainer.log_every_n_steps / schedule.iteration_reduction)  # type: ignore[attr-defined]
        self._set(trainer, "log_every_n_steps", max(1, min(every, *lengths)))
        # Lightning fixes the number of batches when it requests the loader (FitLoop.setup_data), which
        # `configure_optimizers` may have made it do already. -1 makes it request it again, whatever the epoch.
        self._undo.callback(_reload_every, trainer, 0)
        _reload_every(trainer, -1)

    def _set(self, owner: Any, name: str, value: Any) -> None:
        self._undo.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)

    # --- While training ---

    def sync_lr(self, epoch: int, batch: int) -> None:
        """Sets the LR of a step; the one after an epoch's last is the first of the next epoch."""
        steps = self._run.sampler.steps(epoch)
        batch -= batch % self._run.accumulate  # the micro-batches of an optimizer step share its LR
        if batch >= len(steps):
            epoch, batch, steps = epoch + 1, 0, self._run.sampler.steps(epoch + 1)
        position = epoch + Fraction(steps[batch].offset, self._run.sampler.clips)
        self._run.lr.sync(self._run.sampler.schedule.baseline_epoch(position), steps[batch].lr_scale)

    def begin(self, trainer: Trainer, epoch: int, batch: int) -> None:
        """Prepares an epoch, or what is left of it; a run resumed in mid-epoch has no `on_train_epoch_start`."""
        # Lightning has just requested the training loader; it must not request those for validation again.
        _reload_every(trainer, 0)
        self._choose_validation(trainer)
        self.sync_lr(epoch, batch)

    def _choose_validation(self, trainer: Trainer) -> None:
        """Says whether this epoch ends with a validation; the last one always does, for the checkpoint that counts."""
        schedule, every = self._run.sampler.schedule, self._run.validate_every
        if self.validations_per_phase is not None:
            validate = trainer.current_epoch in schedule.validation_epochs(self.validations_per_phase)
        elif every is not None:
            validate = (trainer.current_epoch + 1) % every == 0 or trainer.current_epoch + 1 == schedule.epochs
        else:
            return  # by the number of batches
        trainer.check_val_every_n_epoch = 1 if validate else sys.maxsize

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._loaded:
            # As it was when the checkpoint was written; Lightning does not know the position yet.
            self._run.lr.resume(self._loaded["ticks"], self._loaded["lr_scale"])
        else:
            self.sync_lr(trainer.current_epoch, 0)
        self._run.mark()

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.sync_lr(trainer.current_epoch, 0)
        self._run.mark()

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        step = self._run.sampler.steps(trainer.current_epoch)[batch_idx]
        if step.phase != self._run.phase:
            self._run.phase = step.phase
            rank_zero_info(phase_line(self._run.sampler.schedule, step.phase))
        # Layers with fewer clips than this share statistics with other ranks; the sampler gives all ranks as many.
        set_sub_batch(pl_module, step.sub_batch)
        values = {
            "multigrid/clips": step.shape.clips,
            "multigrid/frames": step.shape.frames,
            "multigrid/size": step.shape.size,
            "multigrid/lr_scale": step.lr_scale,
            "multigrid/phase": step.phase,
        }
        _log(trainer, pl_module, values)

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        shape = self._run.sampler.steps(trainer.current_epoch)[batch_idx].shape
        seconds = self._run.mark()
        self._run.times.add(shape, seconds)
        _log(trainer, pl_module, {"multigrid/clips_per_second": shape.clips * trainer.world_size / seconds})
        last = trainer.is_last_batch
        self.sync_lr(trainer.current_epoch + 1, 0) if last else self.sync_lr(trainer.current_epoch, batch_idx + 1)

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._fit is not None:  # else a validation of its own, or the sanity check of a `fit` that trains nothing
            self._run.mark()

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # The next epoch has another number of batches, so Lightning must request the loader again. It is the same
        # object, and its workers stay alive.
        _reload_every(trainer, 1)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._run.times:
            times = self._run.times.table()
            rank_zero_info(f"Time per shape of mini-batch, on one device, loading included:\n{times}")
            rank_zero_info(last_metrics(trainer.callback_metrics))

    # --- Afterwards ---

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._undo.close()
        self._loaded = {}

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        # There is no `teardown` after an exception; `ModelCheckpoint` may still ask for our state.
        self._undo.close()
        self._loaded = {}

    # --- Checkpoints ---

    @override
    def state_dict(self) -> dict[str, Any]:
        """What cannot be computed again, as plain values: checkpoints are loaded with `weights_only`."""
        if self._fit is None:  # as the tuners save and load it, before training
            return {"schedule": None}
        sampler, lr = self._run.sampler, self._run.lr
        return {
            "schedule": str(sampler.schedule),
            "seed": sampler.seed,
            "ticks": list(lr.ticks),
            "lr_scale": lr.scale,
        }

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._loaded = dict(state_dict) if state_dict["schedule"] is not None else {}

    def _refuse_other_plan(self, schedule: MultigridSchedule) -> None:
        saved = self._loaded.get("schedule", str(schedule))
        if saved != str(schedule):
            raise MisconfigurationException(
                "The checkpoint belongs to another multigrid schedule, so its position means something else here. "
                "Resume with the settings of the checkpoint, or start a new training from its weights.\n"
                f"The checkpoint's:\n{saved}\nThis run's:\n{schedule}"
            )

    @override
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        BaselineLR.without_scale(checkpoint.get("optimizer_states", []))

    @override
    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        state = checkpoint.get("callbacks", {}).get(self.state_key)
        if state is None:
            raise MisconfigurationException(
                "The checkpoint is of a training without MultigridCallback, whose epochs and LR mean something else. "
                "Resume it without the callback, or start a new multigrid training from its weights."
            )
        _close_finished_epoch(checkpoint)


class _Fit:
    """What one `fit` needs from hook to hook."""

    def __init__(self, sampler: MultigridSampler, lr: BaselineLR, accumulate: int) -> None:
        self.sampler, self.lr = sampler, lr
        self.accumulate = accumulate
        self.validate_every: int | None = None  # the script's `check_val_every_n_epoch`
        self.times = ShapeTimes()
        self.phase = -1  # the one announced last
        self._marked = time.perf_counter()

    def mark(self) -> float:
        """Seconds since the last call."""
        now = time.perf_counter()
        seconds, self._marked = now - self._marked, now
        return seconds


class _Position:
    """Where Lightning is, for the loader."""

    def __init__(self, callback: MultigridCallback, trainer: Trainer) -> None:
        self._callback, self._trainer = callback, trainer

    def epoch(self) -> int:
        return self._trainer.current_epoch

    def start(self) -> tuple[int, int]:
        # Only when the first batch is asked for does Lightning know the position in every case of resuming.
        epoch, batch = self._trainer.current_epoch, self._trainer.fit_loop.batch_idx + 1
        self._callback.begin(self._trainer, epoch, batch)
        return epoch, batch

    def before(self, epoch: int, batch: int) -> None:
        # Augmentation on the device and dropout draw on these. As a function of the position they need no checkpoint,
        # and neither validation nor a restart on other devices changes them.
        reseed(derive_seed(self._callback.seed_of_run, epoch, batch, self._trainer.global_rank))


def _reload_every(trainer: Trainer, epochs: int) -> None:
    # Lightning sets this attribute where a type checker does not see it (`_DataConnector.on_trainer_init`).
    trainer.reload_dataloaders_every_n_epochs = epochs  # type: ignore[attr-defined]


def _in_order(length: int, epoch: int) -> range:
    return range(length)


def _global_seed(trainer: Trainer) -> int:
    """The seed of `seed_everything`, which leaves it in this variable, else one that is drawn on rank 0."""
    given = os.environ.get("PL_GLOBAL_SEED")
    drawn = torch.randint(2**31, ()).item() if given is None else int(given)
    return cast("int", trainer.strategy.broadcast(drawn))


def _log(trainer: Trainer, module: LightningModule, values: dict[str, float]) -> None:
    # Only where Lightning hands a step's values on to the loggers, as in the other steps they are never seen and cost
    # more than all the rest of the callback. Lightning counts these steps in private (as `LearningRateMonitor` knows).
    step = trainer.fit_loop.epoch_loop._batches_that_stepped + 1
    due = step % max(1, trainer.log_every_n_steps) == 0 or trainer.should_stop or trainer.fast_dev_run  # type: ignore[attr-defined]
    if due and not trainer.barebones:
        module.log_dict({name: float(value) for name, value in values.items()}, batch_size=1)


def _close_finished_epoch(checkpoint: dict[str, Any]) -> None:
    """Mends where Lightning continues after a checkpoint that was written in the last `on_train_batch_end` of an epoch.

    Lightning takes the epoch for finished if it has as many batches as the *next* one, whose length differs here
    (`loops/training_epoch_loop.py`, `reset`). With the batch counted as completed it closes the epoch either way.
    """
    loops = checkpoint.get("loops", {}).get("fit_loop", {})
    progress = loops.get("epoch_loop.batch_progress", {})
    current = progress.get("current", {})
    if progress.get("is_last_batch") and current["completed"] + 1 == current["processed"] == current["ready"]:
        current["completed"] += 1
        progress["total"]["completed"] += 1
