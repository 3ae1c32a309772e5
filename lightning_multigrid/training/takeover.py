"""What of a script's Trainer and module is other while a multigrid training runs, and is put back afterwards."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from lightning_multigrid.loading import MultigridSampler
from lightning_multigrid.norm import convert_sub_batchnorm, restore_batchnorm
from lightning_multigrid.reports import RunReport
from lightning_multigrid.training.baseline_lr import BaselineLR
from lightning_multigrid.training.lightning_internals import reload_every
from lightning_multigrid.training.recipe import Recipe

__all__ = ["Takeover"]


class Takeover:
    """Takes over, piece by piece, until `give_back`; that undoes the last piece first, and leaves none for an error."""

    def __init__(self) -> None:
        self._undo = ExitStack()

    def give_back(self) -> None:
        """Puts everything back; once more does nothing."""
        self._undo.close()

    def set(self, owner: Any, name: str, value: Any) -> None:
        """An attribute."""
        self._undo.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)

    def _override(self, owner: Any, name: str, method: Callable[..., Any]) -> None:
        """A method, for one object."""
        if name in vars(owner):  # the script's own override, of this object only, too
            self.set(owner, name, method)
        else:
            setattr(owner, name, method)
            self._undo.callback(delattr, owner, name)

    def batchnorm(self, module: nn.Module, sub_batch: int) -> None:
        """The class of plain BatchNorm layers."""
        for layer in module.modules():
            if type(layer) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
                self._undo.callback(restore_batchnorm, convert_sub_batchnorm(layer, sub_batch))

    def lr(self, trainer: Trainer, module: LightningModule, recipe: Recipe) -> BaselineLR:
        """The ticks of the LR schedulers, and the LR."""
        own = module.lr_scheduler_step
        lr = BaselineLR(
            trainer.lr_scheduler_configs, trainer.optimizers, recipe.epoch, lambda scheduler: own(scheduler, None)
        )
        self._undo.callback(lr.remove_scale)

        @wraps(own)
        def lr_scheduler_step(scheduler: Any, metric: Any) -> None:
            # Lightning's ticks. Ours follow the baseline clock instead; a plateau is Lightning's to see, but its
            # arithmetic is on the baseline's LR.
            if isinstance(scheduler, ReduceLROnPlateau):
                with lr.on_baseline():
                    own(scheduler, metric)

        self._override(module, "lr_scheduler_step", lr_scheduler_step)
        return lr

    def bar(self, trainer: Trainer, report: RunReport) -> None:
        """What the progress bar shows."""
        bar = trainer.progress_bar_callback
        if bar is None:
            return
        own = bar.get_metrics

        @wraps(own)
        def get_metrics(trainer: Trainer, module: LightningModule) -> dict[str, Any]:
            return {**own(trainer, module), **report.bar}

        # Lightning's door to the bar's items is this method; logged values would be numbers only.
        self._override(bar, "get_metrics", get_metrics)

    def last_callback(self, trainer: Trainer, callback: Callback) -> None:
        """The end of the Trainer's callbacks."""
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        # Lightning is going through this list; what is added at its end, or taken from there, lets it skip none.
        callbacks.append(callback)
        self._undo.callback(callbacks.remove, callback)

    def trainer(self, trainer: Trainer, sampler: MultigridSampler, recipe: Recipe) -> None:
        """How long the Trainer trains, and how often it validates, logs, and asks for the training loader."""
        schedule = sampler.schedule
        if not trainer.fast_dev_run:  # type: ignore[attr-defined]
            self.set(trainer.fit_loop, "max_epochs", schedule.epochs)
            self.set(trainer.fit_loop.epoch_loop, "max_steps", -1)
            # The limit is in the plan already; Lightning would apply it to our batches once more.
            self.set(trainer, "limit_train_batches", 1.0)
        interval = trainer.val_check_interval
        if isinstance(interval, int) and not isinstance(interval, bool):
            if trainer.check_val_every_n_epoch is None:
                self.set(trainer, "val_check_interval", max(1, round(interval / schedule.iteration_reduction)))
            elif interval <= recipe.epoch.batches:
                self.set(trainer, "val_check_interval", interval / recipe.epoch.batches)
        self.set(trainer, "check_val_every_n_epoch", trainer.check_val_every_n_epoch)  # see `Run.choose_validation`
        if trainer.log_every_n_steps > 0:  # type: ignore[attr-defined]  # else the script wants none
            # As dense in the training as the script asks for, and at least once in the shortest epoch; Lightning counts
            # optimizer steps.
            split = sampler.clips, sampler.accumulate, recipe.drop_last
            batches = min(sum(schedule.count_steps(epoch, *split)) for epoch in range(schedule.epochs))
            every = round(trainer.log_every_n_steps / schedule.iteration_reduction)  # type: ignore[attr-defined]
            self.set(trainer, "log_every_n_steps", max(1, min(every, math.ceil(batches / sampler.accumulate))))
        # Lightning fixes the number of batches when it requests the loader (FitLoop.setup_data), which
        # `configure_optimizers` may have made it do already. -1 makes it request it again, whatever the epoch.
        self._undo.callback(reload_every, trainer, 0)
        reload_every(trainer, -1)
