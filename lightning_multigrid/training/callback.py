"""`MultigridCallback`: multigrid training as one line on a baseline script.

Hooks say when. What is done then stands in `recipe.py` (what the script says about the baseline), `schedule.py`
(shapes), `sampler.py` (order), `norm.py` (batch statistics), `takeover.py` (what is changed in the Trainer meanwhile)
and `run.py` (LR, validation and times of the training that is under way).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, cast

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch.utils.data import DataLoader
from typing_extensions import override

from lightning_multigrid.loading import FixedClips, MultigridLoader, clip_dataset
from lightning_multigrid.norm import set_sub_batch
from lightning_multigrid.reports import RunReport, Setup, clock_of, step_values, ways_out
from lightning_multigrid.schedule import (
    Baseline,
    BatchShape,
    Epochs,
    LongCycle,
    LRScaling,
    MultigridSchedule,
    ShortCycle,
)
from lightning_multigrid.training.baseline_lr import BaselineEpoch, BaselineLR, lr_stages, warn_of_adaptive_lr
from lightning_multigrid.training.check_grids import batch_maker, check_grids
from lightning_multigrid.training.fit import Run, make_sampler
from lightning_multigrid.training.lightning_internals import LoopCounters, log_values, reload_every, training_source
from lightning_multigrid.training.precise_bn import EvaluationStatistics, PopulationEstimate
from lightning_multigrid.training.recipe import Recipe, read_recipe, user_loader
from lightning_multigrid.training.refusals import refuse_sync_batchnorm, refuse_unsupported
from lightning_multigrid.training.resume import describe_run, describe_stand, take_up
from lightning_multigrid.training.takeover import Takeover

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
        precise_bn_batches: Before validations and checkpoints, re-estimate BatchNorm's running statistics as those of
            the training data, on this many mini-batches of each device on the baseline's grid.
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
        precise_bn_batches: int | None = None,
        seed: int | None = None,
    ) -> None:
        self.schedule = schedule
        self.epoch_factor, self.long_cycle, self.short_cycle = epoch_factor, long_cycle, short_cycle
        self.sub_batch, self.size_divisor, self.lr_scaling = sub_batch, size_divisor, lr_scaling
        self.whole_epochs, self.milestones, self.warmup_epochs = whole_epochs, milestones, warmup_epochs
        self.layout, self.validations_per_phase, self.seed = layout, validations_per_phase, seed
        if validations_per_phase is not None and validations_per_phase < 1:
            raise ValueError(f"`validations_per_phase` must be at least 1, got {validations_per_phase}.")
        self.precise_bn_batches = precise_bn_batches
        if precise_bn_batches is not None and precise_bn_batches < 1:
            raise ValueError(
                f"`precise_bn_batches` must be at least 1, got {precise_bn_batches}. Leave it out to keep the moving "
                "average of training."
            )
        # Refuse bad values where they are written, not when `fit` starts.
        any_baseline = Baseline(BatchShape(1, 4, 4), epochs=1)
        shaped = self.plan(any_baseline, stepwise=True) != MultigridSchedule(any_baseline)
        if schedule is not None and (shaped or milestones is not None or warmup_epochs is not None):
            raise ValueError(
                "`schedule` says everything about the schedule, but arguments that shape an inferred one are given, "
                "too. Give either; `MultigridSchedule` takes the same arguments."
            )
        self._takeover = Takeover()
        self._checkpoint: dict[str, Any] | None = None  # that this `fit` resumes
        self._fit: Run | None = None

    @property
    def report(self) -> RunReport:
        """What is known of the times of the training that is under way."""
        return self._run.report

    @property
    def _run(self) -> Run:
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
            self._takeover.batchnorm(pl_module, self.sub_batch)

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # `configure_optimizers` has run and has seen the baseline only; loops, optimizers and schedulers of a
        # checkpoint are restored after this hook.
        if trainer.limit_train_batches == 0:
            return
        self._takeover.batchnorm(pl_module, self.sub_batch)  # layers that were made after `setup`
        refuse_sync_batchnorm(pl_module)
        source = training_source(trainer)
        loader = user_loader(source.dataloader())
        recipe = read_recipe(trainer, loader, trainer.world_size)
        multigrid = self._make_loader(trainer, loader, recipe)
        self._fit = multigrid.host = self._make_run(trainer, pl_module, multigrid, loader, recipe)
        self._resume(recipe)
        self._takeover.bar(trainer, self._run.report)
        self._takeover.last_callback(trainer, self._run.statistics)
        self._takeover.set(source, "instance", multigrid)
        self._takeover.trainer(trainer, multigrid.sampler, recipe)
        sampler = multigrid.sampler
        rank_zero_info(sampler.schedule.table(sampler.clips, sampler.accumulate, recipe.drop_last))

    def _make_loader(self, trainer: Trainer, loader: DataLoader[Any], recipe: Recipe) -> MultigridLoader:
        """Plans the training of a recipe."""
        dataset = clip_dataset(loader.dataset) or FixedClips(loader.dataset, self.layout)
        shape = BatchShape(cast("int", loader.batch_size), dataset.frames, dataset.size)
        epochs = self._epochs_of_try() if trainer.fast_dev_run else recipe.epochs  # type: ignore[attr-defined]
        schedule = self.infer_schedule(shape, dataset.stride, recipe.epoch, epochs, trainer.lr_scheduler_configs)
        seed = self._saved.get("seed") if self.seed is None else self.seed
        return MultigridLoader(dataset, make_sampler(trainer, schedule, recipe, loader, seed), loader)

    def _epochs_of_try(self) -> Fraction:
        """A length that goes with the arguments, for `fast_dev_run`, in which the Trainer's own is 1."""
        if self.schedule is not None:
            return Fraction(self.schedule.baseline.epochs)
        return Fraction(math.floor(max(0, *(self.milestones or ()), self.warmup_epochs or 0)) + 1)

    def _make_run(
        self,
        trainer: Trainer,
        module: LightningModule,
        multigrid: MultigridLoader,
        loader: DataLoader[Any],
        recipe: Recipe,
    ) -> Run:
        """Tries the plan on the model, and takes over the LR."""
        clips, sampler = multigrid.clips, multigrid.sampler
        grids = [sampler.schedule.baseline.shape, *sampler.schedule.grids]
        flops = check_grids(module, grids, batch_maker(trainer, module, multigrid))
        estimate = None
        if self.precise_bn_batches is not None:
            estimate = PopulationEstimate(clips, sampler, loader, self.precise_bn_batches)
            estimate.check(trainer, module)
        lr = self._takeover.lr(trainer, module, recipe)
        warn_of_adaptive_lr(trainer.optimizers, sampler.schedule)
        setup = Setup(sampler, sampler.accumulate, recipe.drop_last, flops, loader.num_workers, ways_out(clips))
        report = RunReport(setup, clock_of(module.device))
        return Run(trainer, sampler, lr, report, EvaluationStatistics(estimate), self.validations_per_phase)

    def _resume(self, recipe: Recipe) -> None:
        if self._checkpoint is not None:
            run = self._run
            run.resume(take_up(self._checkpoint, self._saved or None, run.sampler, recipe.epoch, run.lr.configs))
            self._checkpoint = None  # it holds a whole model

    # --- While training ---

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._run.start_lr()

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._run.sync_lr(trainer.current_epoch, 0)

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        step = self._run.step(batch_idx)
        # Layers with fewer clips than this share statistics with other ranks; the sampler gives all ranks as many.
        set_sub_batch(pl_module, step.sub_batch)
        self._run.report.announce(step)
        log_values(trainer, pl_module, step_values(step))

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        times = self._run.report.ended(trainer.current_epoch, self._run.step(batch_idx), self._run.lr.now)
        log_values(trainer, pl_module, self._run.report.scalars(times, trainer.world_size))
        self._run.statistics.saving = True
        # Whatever the accumulation, the last batch ends an optimizer step.
        following = (trainer.current_epoch + 1, 0) if trainer.is_last_batch else (trainer.current_epoch, batch_idx + 1)
        self._run.sync_lr(*following)

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._run.statistics.saving = True
        # The next epoch has another number of batches, so Lightning must request the loader again. It is the same
        # object, and its workers stay alive.
        reload_every(trainer, 1)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._run.report.finish(trainer)

    # --- Afterwards ---

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._takeover.give_back()
        self._checkpoint = None

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        # There is no `teardown` after an exception; `ModelCheckpoint` may still ask for our state.
        self.teardown(trainer, pl_module, "fit")

    # --- Checkpoints ---

    @override
    def state_dict(self) -> dict[str, Any]:
        """What cannot be computed again, as plain values: checkpoints are loaded with `weights_only`."""
        if self._fit is None:  # as the tuners save and load it, before training
            return {"schedule": None}
        sampler, lr = self._fit.sampler, self._fit.lr
        return {
            **describe_run(sampler, lr.epoch),
            "seed": sampler.seed,
            "ticks": list(lr.ticks),
            "lr_scale": lr.scale,
        }

    @override
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        BaselineLR.without_scale(checkpoint.get("optimizer_states", []))
        if self._fit is not None:
            counters = LoopCounters(checkpoint)
            checkpoint["callbacks"][self.state_key].update(describe_stand(self._fit.sampler, counters.place))
            if counters.place.batch == 0:
                counters.forget_loader()

    @override
    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn != TrainerFn.FITTING or self._saved_in(checkpoint) == {"schedule": None}:
            return  # only the weights are looked at, or it is one that a tuner takes back
        if trainer.strategy.restore_checkpoint_after_setup:
            raise MisconfigurationException(
                f"MultigridCallback plans how to go on before training starts, but {type(trainer.strategy).__name__} "
                "loads checkpoints later. Resume with `strategy='ddp'`."
            )
        self._checkpoint = checkpoint

    def _saved_in(self, checkpoint: dict[str, Any] | None) -> dict[str, Any] | None:
        return None if checkpoint is None else checkpoint.get("callbacks", {}).get(self.state_key)

    @property
    def _saved(self) -> dict[str, Any]:
        return self._saved_in(self._checkpoint) or {}
