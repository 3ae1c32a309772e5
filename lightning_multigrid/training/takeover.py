"""What the callback changes in the Trainer and the module during `fit`, and puts back afterwards."""

import math
from contextlib import ExitStack
from functools import partial, wraps
from types import new_class
from typing import Any, cast

from torch import nn

from lightning_multigrid.host import Callback, LightningModule, Trainer, is_a
from lightning_multigrid.norm import TemporaryConversion
from lightning_multigrid.reports import ClosingWords, RunReport
from lightning_multigrid.schedule import Plan
from lightning_multigrid.training import lightning_internals as internals


class Takeover(ExitStack):
    """A stack of temporary changes. `close` undoes them in reverse order, and carries on if undoing one fails."""

    def set_attribute(self, owner: Any, name: str, value: Any) -> None:
        """Sets an attribute until `close`; then a method that comes from the class is the class's again."""
        known = name in vars(owner)
        undo = partial(setattr, owner, name, vars(owner)[name]) if known else partial(delattr, owner, name)
        setattr(owner, name, value)
        self.callback(undo)

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
        conversion = TemporaryConversion()
        conversion.convert(module, sub_batch)
        self.callback(conversion.end)

    def __reduce__(self) -> Any:
        return type(self), ()  # copies and pickles of what holds it have taken nothing over

    def subclass(self, owner: Any, members: dict[str, Any]) -> None:
        """Gives one object other methods and properties, by a subclass: copies and pickles of it are the class's."""
        own = type(owner)
        self.callback(setattr, owner, "__class__", own)

        def reduce(one: Any, _: Any) -> Any:
            # The first argument of what makes the copy is its class.
            made = cast("tuple[Any, ...]", super(type(one), one).__reduce_ex__(1))  # later ones check the class
            return (made[0], (own, *made[1][1:]), *made[2:])

        names = {"__module__": own.__module__, "__qualname__": own.__qualname__, "__reduce_ex__": reduce}
        owner.__class__ = new_class(own.__name__, (own,), exec_body=lambda space: space.update(names | members))

    def show_on_bar(self, trainer: Trainer, report: RunReport) -> None:
        """Shows items of a report on the progress bar, and what it tells on the way above the bar."""
        bar: Any = trainer.progress_bar_callback
        self.add_callback(trainer, ClosingWords(report))
        if bar is None:
            return
        if trainer.is_global_zero:
            report.tell = bar.print
        own = bar.get_metrics

        @wraps(own)
        def get_metrics(trainer: Trainer, module: LightningModule) -> dict[str, Any]:
            # Metrics of the sanity check say nothing, and the logger's version would not leave room for the script's.
            of_script = {} if trainer.sanity_checking else own(trainer, module)
            return {**report.bar, **{name: value for name, value in of_script.items() if name != "v_num"}}

        # Items that are text can only come from this method; what is logged for the bar must be a number.
        self.set_attribute(bar, "get_metrics", get_metrics)

    def add_callback(self, trainer: Trainer, callback: Callback) -> None:
        """Adds a callback, which comes last until another one is added."""
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        callbacks.append(callback)

        def remove() -> None:
            # Lightning may be iterating over the list: if it became shorter, Lightning would skip a callback.
            rest = [other for other in trainer.callbacks if other is not callback]  # type: ignore[attr-defined]
            trainer.callbacks = rest  # type: ignore[attr-defined]

        self.callback(remove)

    def configure_trainer(self, trainer: Trainer, plan: Plan) -> None:
        """Sets how long the Trainer trains, and how often it validates and logs."""
        schedule, epoch = plan.schedule, plan.baseline_epoch
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
        if trainer.log_every_n_steps > 0:  # type: ignore[attr-defined]  # 0: the script logs no steps
            # As often in all (in optimizer steps) as the script asks for, and at least once in the shortest epoch.
            batches = min(plan.batches_of(number) for number in range(plan.epochs))
            every = round(trainer.log_every_n_steps / schedule.iteration_reduction)  # type: ignore[attr-defined]
            every = max(1, min(every, math.ceil(batches / plan.accumulate)))
            self.set_attribute(trainer, "log_every_n_steps", every)
