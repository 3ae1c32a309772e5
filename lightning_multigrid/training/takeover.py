"""What the callback changes in the Trainer and the module during `fit`, and puts back afterwards."""

import math
from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from types import new_class
from typing import Any

from rich.progress import BarColumn, ProgressColumn, TextColumn
from torch import nn

from lightning_multigrid.lightning import Callback, LightningModule, LRSchedulerConfig, Trainer, above_bar, is_a
from lightning_multigrid.loading import MultigridSampler
from lightning_multigrid.norm import Loan
from lightning_multigrid.reports import ClosingWords, RunReport
from lightning_multigrid.training import lightning_internals as internals
from lightning_multigrid.training.baseline_lr import BaselineEpoch, BaselineLR, is_plateau, put_baseline
from lightning_multigrid.training.recipe import Recipe


def _narrow_columns(theme: Any) -> list[ProgressColumn]:
    """The columns of Lightning's bar of Rich that leave room for ours on 80 characters, without times of the epoch."""
    style, done = theme.progress_bar, theme.progress_bar_finished
    return [
        TextColumn("{task.description}"),
        BarColumn(8, complete_style=style, finished_style=done, pulse_style=theme.progress_bar_pulse),
        TextColumn("{task.completed:.0f}/{task.total}", style=theme.batch_progress),
    ]


class Takeover(ExitStack):
    """A stack of temporary changes. `close` undoes them in reverse order, and carries on if undoing one fails."""

    def set_attribute(self, owner: Any, name: str, value: Any) -> None:
        """Sets an attribute until `close`; then a method that comes from the class is the class's again."""
        if name in vars(owner):
            self.callback(setattr, owner, name, getattr(owner, name))
        else:
            self.callback(delattr, owner, name)
        setattr(owner, name, value)

    def attach(self, trainer: Trainer, module: LightningModule) -> None:
        """Makes a Trainer answer `configure_optimizers` as in `fit`, without one. The command `plan` uses it."""
        parts = [part for part in module.modules() if is_a(part, "LightningModule")]
        for owner in (trainer, trainer.state, trainer.strategy, trainer.fit_loop, *parts):
            self.callback(vars(owner).update, dict(vars(owner)))
            self.callback(vars(owner).clear)  # comes before `update`
        internals.attach(trainer, module)

    def replace_loader(self, trainer: Trainer, loader: Any) -> None:
        """Gives Lightning another training loader, which it requests at the next opportunity."""
        self.set_attribute(internals.training_source(trainer), "instance", loader)
        # Lightning fixes the number of batches when it requests the loader (`FitLoop.setup_data`), and
        # `configure_optimizers` may have made it do that already.
        self.callback(internals.reload_every, trainer, 0)
        internals.reload_every(trainer, -1)

    def convert_batchnorm(self, module: nn.Module, sub_batch: int) -> None:
        loan = Loan()
        loan.convert(module, sub_batch)
        self.callback(loan.end)

    def drive_lr(
        self, trainer: Trainer, module: LightningModule, recipe: Recipe, steps: int, weight_decay: bool
    ) -> BaselineLR:
        """Takes the LR and the ticks of its schedulers away from Lightning, for a run of `steps` optimizer steps."""
        baseline = {
            "max_epochs": trainer.max_epochs,
            "max_steps": trainer.max_steps,
            "num_training_batches": recipe.epoch.batches,
            "estimated_stepping_batches": recipe.epoch.ticks(recipe.epochs, "step", frequency=1),
        }
        run = {} if trainer.fast_dev_run else {"estimated_stepping_batches": steps}  # type: ignore[attr-defined]
        own = module.lr_scheduler_step

        def tick(scheduler: Any) -> None:
            if module.automatic_optimization:
                own(scheduler, None)
            else:
                super(type(scheduler), scheduler).step()  # type: ignore[misc]  # its own: see `_take_calls`

        configs = trainer.lr_scheduler_configs
        lr = BaselineLR(configs, trainer.optimizers, recipe.epoch, tick, baseline, run, weight_decay)
        self.callback(lr.remove_scale)
        for optimizer in trainer.optimizers:
            self.callback(optimizer.register_step_pre_hook(lr.before_step).remove)
            self.callback(optimizer.register_step_post_hook(lr.after_step).remove)
            self.callback(optimizer.register_state_dict_post_hook(lr.without_scale).remove)

        @wraps(own)
        def lr_scheduler_step(scheduler: Any, metric: Any) -> None:
            # Lightning's ticks do nothing, as ours follow the baseline's clock. But only Lightning knows the metric of
            # a plateau, so it ticks that scheduler, which then computes with the baseline's LR.
            if all(scheduler is not config.scheduler for config in lr.configs):
                lr.on_baseline()(own)(scheduler, metric)

        self.set_attribute(module, "lr_scheduler_step", lr_scheduler_step)
        # They make groups at `float(group["lr"])`, which knows no scale.
        for one in [one for one in trainer.callbacks if is_a(one, "callbacks.BaseFinetuning")]:  # type: ignore[attr-defined]
            self.set_attribute(one, "on_train_epoch_start", lr.on_baseline()(one.on_train_epoch_start))
        save = module.on_save_checkpoint

        def on_save_checkpoint(checkpoint: dict[str, Any]) -> None:
            save(checkpoint)
            put_baseline(checkpoint)

        self.set_attribute(module, "on_save_checkpoint", on_save_checkpoint)  # comes after those of all callbacks
        if not module.automatic_optimization:
            for config in configs:
                self._take_calls(trainer, config, lr)

        def answer(name: str) -> property:
            of_trainer = getattr(type(trainer), name)
            return property(lambda self: lr.answers[name] if name in lr.answers else of_trainer.__get__(self))

        self._subclass(trainer, {name: answer(name) for name in ("current_epoch", "global_step", *baseline)})
        return lr

    def _take_calls(self, trainer: Trainer, config: LRSchedulerConfig, lr: BaselineLR) -> None:
        """Takes over the methods by which a script with manual optimization steps a scheduler."""
        plateau = is_plateau(config)

        def method(name: str) -> Callable[..., None]:
            def call(scheduler: Any, *args: Any, **kwargs: Any) -> None:
                if plateau:
                    lr.on_baseline()(getattr(super(type(scheduler), scheduler), name))(*args, **kwargs)
                else:
                    place = trainer.current_epoch, internals.batch_index(trainer), trainer.is_last_batch
                    lr.called(scheduler, bool(args or kwargs), *place)

            return call

        names = [name for name in ("step", "step_update") if hasattr(config.scheduler, name)]  # timm has both
        self._subclass(config.scheduler, {name: method(name) for name in names})

    def _subclass(self, owner: Any, members: dict[str, Any]) -> None:
        """Gives one object other methods and properties, by a subclass: they are not in its `state_dict`."""
        own = type(owner)
        self.callback(setattr, owner, "__class__", own)
        names = {"__module__": own.__module__, "__qualname__": own.__qualname__}
        owner.__class__ = new_class(own.__name__, (own,), exec_body=lambda space: space.update(names | members))

    def show_on_bar(self, trainer: Trainer, report: RunReport) -> None:
        """Shows items of a report on the progress bar; until the bar is gone, messages appear above it."""
        bar: Any = trainer.progress_bar_callback
        messages = ExitStack()
        messages.enter_context(above_bar(bar))
        trainer.callbacks.append(ClosingWords(report, messages))  # type: ignore[attr-defined]  # see `add_last_callback`
        if bar is None:
            return
        own = bar.get_metrics

        @wraps(own)
        def get_metrics(trainer: Trainer, module: LightningModule) -> dict[str, Any]:
            # Metrics of the sanity check say nothing, and the logger's version would not leave room for the script's.
            of_script = {} if trainer.sanity_checking else own(trainer, module)
            return {**report.bar, **{name: value for name, value in of_script.items() if name != "v_num"}}

        # Items that are text can only come from this method; what is logged for the bar must be a number.
        self.set_attribute(bar, "get_metrics", get_metrics)
        package = type(bar).__module__.partition(".")[0]
        if is_a(bar, "callbacks.RichProgressBar") and package in ("lightning", "pytorch_lightning"):
            self.set_attribute(bar, "configure_columns", lambda trainer: _narrow_columns(bar.theme))

    def add_last_callback(self, trainer: Trainer, callback: Callback) -> None:
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        # Lightning is iterating over this list. If its end changes, Lightning skips no callback.
        callbacks.append(callback)
        self.callback(callbacks.remove, callback)

    def configure_trainer(self, trainer: Trainer, sampler: MultigridSampler, epoch: BaselineEpoch) -> None:
        """Sets how long the Trainer trains, and how often it validates and logs."""
        schedule = sampler.schedule
        if not trainer.fast_dev_run:  # type: ignore[attr-defined]
            # The plan already has `limit_train_batches`; Lightning would apply it to our batches once more.
            for owner, name, value in internals.loop_limits(trainer, schedule.epochs):
                self.set_attribute(owner, name, value)
        interval = trainer.val_check_interval
        if isinstance(interval, int) and not isinstance(interval, bool):
            if trainer.check_val_every_n_epoch is None:
                interval = max(1, round(interval / schedule.iteration_reduction))
            elif interval <= epoch.batches:
                interval = interval / epoch.batches
            self.set_attribute(trainer, "val_check_interval", interval)
        # `Fit.choose_validation` changes this one in each epoch.
        self.set_attribute(trainer, "check_val_every_n_epoch", trainer.check_val_every_n_epoch)
        if trainer.log_every_n_steps > 0:  # type: ignore[attr-defined]  # 0: the script logs no steps
            # As often in all (in optimizer steps) as the script asks for, and at least once in the shortest epoch.
            split = sampler.clips, sampler.accumulate, sampler.drop_last
            batches = min(sum(schedule.count_steps(number, *split)) for number in range(schedule.epochs))
            every = round(trainer.log_every_n_steps / schedule.iteration_reduction)  # type: ignore[attr-defined]
            every = max(1, min(every, math.ceil(batches / sampler.accumulate)))
            self.set_attribute(trainer, "log_every_n_steps", every)
