"""One `fit` of a multigrid training: its plan, its LR, its report, and what its loader asks."""

from __future__ import annotations

import sys
from fractions import Fraction
from functools import partial
from typing import Any

from lightning.pytorch import Trainer
from torch.utils.data import DataLoader

from lightning_multigrid.loading import MultigridSampler, derive_seed, order_of, reseed
from lightning_multigrid.reports import RunReport
from lightning_multigrid.schedule import MultigridSchedule, Step
from lightning_multigrid.training.baseline_lr import BaselineLR
from lightning_multigrid.training.lightning_internals import _global_seed, reload_every
from lightning_multigrid.training.precise_bn import EvaluationStatistics
from lightning_multigrid.training.recipe import Recipe
from lightning_multigrid.training.resume import Continuation

__all__ = ["Run", "make_sampler"]


class Run:
    """What one `fit` needs from hook to hook; to the loader it is the `Host`.

    Args:
        trainer: With its script's settings.
        sampler: The plan, and the order.
        lr: The schedulers, on the baseline's clock.
        report: Notes the steps.
        statistics: What validations and checkpoints are given.
        validations_per_phase: Of the callback.
    """

    def __init__(
        self,
        trainer: Trainer,
        sampler: MultigridSampler,
        lr: BaselineLR,
        report: RunReport,
        statistics: EvaluationStatistics,
        validations_per_phase: int | None,
    ) -> None:
        self.sampler, self.lr, self.report, self.statistics = sampler, lr, report, statistics
        self._trainer = trainer
        self._resumed: Continuation | None = None
        self._validations_per_phase, self._validate_every = validations_per_phase, trainer.check_val_every_n_epoch

    def step(self, batch: int) -> Step:
        """A step of the epoch that is under way."""
        return self.sampler.steps(self._trainer.current_epoch)[batch]

    # --- LR and validation ---

    def resume(self, found: Continuation) -> None:
        """Goes on with the LR schedulers of a checkpoint."""
        self._resumed, self.lr.epoch = found, found.epoch

    def start_lr(self) -> None:
        """Sets the LR before anything is trained."""
        if self._resumed is not None:
            # As it was when the checkpoint was written; Lightning does not know the position yet.
            self.lr.resume(self._resumed.ticks, self._resumed.lr_scale)
        else:
            self.sync_lr(self._trainer.current_epoch, 0)

    def sync_lr(self, epoch: int, batch: int) -> None:
        """Sets the LR of a step; the one after an epoch's last is the first of the next epoch."""
        steps = self.sampler.steps(epoch)
        batch -= batch % self.sampler.accumulate  # the micro-batches of an optimizer step share its LR
        if batch >= len(steps):
            epoch, batch, steps = epoch + 1, 0, self.sampler.steps(epoch + 1)
        position = epoch + Fraction(steps[batch].offset, self.sampler.clips)
        self.lr.sync(self.sampler.schedule.baseline_epoch(position), steps[batch].lr_scale)

    def choose_validation(self) -> None:
        """Says whether this epoch ends with a validation; the last one always does, for the checkpoint that counts."""
        trainer, schedule = self._trainer, self.sampler.schedule
        if self._validations_per_phase is not None:
            validate = trainer.current_epoch in schedule.validation_epochs(self._validations_per_phase)
        elif self._validate_every is not None:
            done = trainer.current_epoch + 1
            validate = done % self._validate_every == 0 or done == schedule.epochs
        else:
            return  # by the number of batches
        trainer.check_val_every_n_epoch = 1 if validate else sys.maxsize

    # --- What the loader asks ---

    def epoch(self) -> int:
        """The epoch."""
        return self._trainer.current_epoch

    def start(self) -> tuple[int, int]:
        """Epoch and batch; prepares that epoch, or what is left of it."""
        # Only when the first batch is asked for does Lightning know the position in every case of resuming, and a run
        # resumed in mid-epoch has no `on_train_epoch_start`.
        epoch, batch = self._trainer.current_epoch, self._trainer.fit_loop.batch_idx + 1
        # Lightning has just requested the training loader; it must not request those for validation again.
        reload_every(self._trainer, 0)
        self.choose_validation()
        self.sync_lr(epoch, batch)
        self.report.started(epoch, batch)
        return epoch, batch

    def waits(self) -> None:
        """The next mini-batch is asked for."""
        self.report.asked()

    def before(self, epoch: int, batch: int) -> None:
        """A mini-batch is handed over."""
        # Augmentation on the device and dropout draw on these. As a function of the position they need no checkpoint,
        # and neither validation nor a restart on other devices changes them.
        reseed(derive_seed(self.sampler.seed, epoch, batch, self._trainer.global_rank))
        self.report.handed()


def make_sampler(
    trainer: Trainer, schedule: MultigridSchedule, recipe: Recipe, loader: DataLoader[Any], seed: int | None
) -> MultigridSampler:
    """The plan of a run on this device, and its order.

    Args:
        trainer: At `on_fit_start`.
        schedule: The schedule.
        recipe: What the script says.
        loader: The user's training loader.
        seed: Of order and augmentation; None takes that of `seed_everything`, or draws one.

    Raises:
        ValueError: If there are fewer data than the first mini-batch needs.
    """
    seed = _global_seed(trainer) if seed is None else seed
    in_order = partial(_in_order, int(recipe.available * trainer.world_size))
    sampler = MultigridSampler(
        schedule,
        in_order if trainer.overfit_batches else order_of(loader, seed),  # type: ignore[attr-defined]
        recipe.planned_clips(schedule),
        seed=seed,
        rank=trainer.global_rank,
        world=trainer.world_size,
        accumulate=trainer.accumulate_grad_batches,
        drop_last=recipe.drop_last,
    )
    sampler.steps(0)
    return sampler


def _in_order(length: int, epoch: int) -> range:
    return range(length)
