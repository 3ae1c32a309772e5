"""The LR rule of multigrid training: the script's own schedulers on the baseline's clock, times the phase's scale.

`Plan.lr` says both for each step. A *tick* is one `step()` of a scheduler. Lightning ticks a scheduler after epochs or
optimizer steps of the run. Here a scheduler has been ticked, before each step, as often as it would have been by the
corresponding point of a baseline run. `lr_in_step.py` multiplies by the scale.
"""

import math
import sys
from collections.abc import Callable
from fractions import Fraction
from functools import partial, wraps
from typing import Any

from torch.optim import Optimizer

from lightning_multigrid.host import LightningModule, MisconfigurationException, Trainer
from lightning_multigrid.reports import LRCurve, LRPoint
from lightning_multigrid.schedule import LRRule, Place, Plan, exact
from lightning_multigrid.training.lr_in_step import LRInStep
from lightning_multigrid.training.lr_stages import is_plateau
from lightning_multigrid.training.parts import Part, log_values
from lightning_multigrid.training.resume import Continuation
from lightning_multigrid.training.scheduler_calls import Driven, SchedulerCalls, driven_schedulers
from lightning_multigrid.training.takeover import Takeover


class BaselineLR(Part):
    """Keeps the script's schedulers on the baseline's clock, and scales the LR within optimizer steps.

    Outside of `Optimizer.step`, `param_groups` hold the baseline's LR: for schedulers, callbacks, checkpoints, and
    whatever a script computes or writes. The same holds for the weight decay, if it is scaled.
    """

    def __init__(
        self,
        plan: Plan,
        trainer: Trainer,
        module: LightningModule,
        takeover: Takeover,
        curve: LRCurve | None = None,
        weight_decay: bool = False,
        by_hand: bool = False,
    ) -> None:
        self._plan, self._trainer, self._module, self._curve = plan, trainer, module, curve
        self.schedulers = driven_schedulers(trainer)
        self.epoch = plan.baseline_epoch  # in which the schedulers count: the checkpoint's, if there is one
        self.rule = LRRule(Fraction(0), 1.0, 1.0)
        self._scales = {"lr": 1.0, "weight_decay": 1.0} if weight_decay else {"lr": 1.0}
        self._place = plan.start
        self._baseline: dict[str, int | None] = {
            "max_epochs": trainer.max_epochs,
            "max_steps": trainer.max_steps,
            "num_training_batches": self.epoch.batches,
            "estimated_stepping_batches": self.epoch.ticks(exact(plan.schedule.baseline.epochs), "step", frequency=1),
        }
        # What the Trainer says of this run where Lightning would say something else.
        quick: bool = trainer.fast_dev_run  # type: ignore[attr-defined]
        self.run: dict[str, int | None] = {} if quick else {"estimated_stepping_batches": plan.optimizer_steps}
        self._said = self.run  # while a scheduler ticks, the baseline's
        own_clock = not by_hand and not (plan.schedule.flat and plan.schedule.epoch_factor == 1)
        refuse_other = partial(_refuse_by_hand, type(module).__name__) if own_clock else _accept
        self._in_step = [
            LRInStep(one, self._scales, self._scale_gradient, refuse_other, takeover) for one in trainer.optimizers
        ]
        for config in trainer.lr_scheduler_configs:
            if is_plateau(config):  # it lowers the LR after a validation, by what it counted of them
                takeover.subclass(config.scheduler, {"step": self._noting(type(config.scheduler).step)})
        self.calls: SchedulerCalls | None = None
        if module.automatic_optimization:
            for driven in self.schedulers:  # Lightning must not tick them, too
                takeover.set_attribute(driven.config, "frequency", sys.maxsize)
        else:
            self.calls = SchedulerCalls(plan, trainer, self.schedulers, takeover)
        names = ("current_epoch", "global_step", *self._baseline)
        takeover.subclass(trainer, {name: self._saying(getattr(type(trainer), name), name) for name in names})

    def _saying(self, own: property, name: str) -> property:
        return property(lambda trainer: self._said[name] if name in self._said else own.__get__(trainer))

    def _noting(self, step: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(step)
        def stepped(scheduler: Any, *arguments: Any, **named: Any) -> Any:
            result = step(scheduler, *arguments, **named)
            self._note()
            return result

        return stepped

    def _note(self) -> None:
        for one in self._in_step:
            one.note_lr()

    # --- The clock ---

    def begin(self, place: Place) -> None:
        if self.calls is not None:
            self.calls.begin(place)
        self.go_to(self._plan.lr(place))

    def before(self, place: Place, mini_batch: Any) -> None:
        self._place = place
        if place == self._plan.whole(place):
            for one in self._in_step:
                one.used = None
        for optimizer in self._trainer.optimizers:
            if self.rule.scale != 1 and any(group.get("lr") is None for group in optimizer.param_groups):
                raise MisconfigurationException(
                    f"MultigridCallback scales the `lr` of all parameter groups, but one of {type(optimizer).__name__} "
                    "has none. Give the optimizer a number as `lr`, or the callback `lr_scaling='none'`."
                )

    def after(self, place: Place) -> None:
        if self._curve is not None:
            lr = self.in_use
            self._curve.add(LRPoint(float(self._plan.position(place)), lr, self.coming / self.rule.scale))
            log_values(self._trainer, self._module, lambda: {"multigrid/lr": lr})
        self.go_to(self._plan.lr(self._plan.after(place)))

    @property
    def in_use(self) -> float:
        """The LR in use of the first parameter group, in this optimizer step; 0 if there is none."""
        used = next((one.used for one in self._in_step if one.used is not None), None)
        return self.coming if used is None else float(used)

    @property
    def coming(self) -> float:
        """The LR that the next update uses, of the first parameter group; 0 if there is none."""
        groups = (group for optimizer in self._trainer.optimizers for group in optimizer.param_groups)
        return float(next((group["lr"] for group in groups if group.get("lr") is not None), 0.0)) * self.rule.scale

    def go_to(self, rule: LRRule) -> None:
        """Brings every scheduler to a baseline epoch, and sets the scale of the next step."""
        for one in self._in_step:
            one.check_lr()
        for driven in self.schedulers:
            ticks = self.epoch.ticks(rule.baseline_epoch, driven.interval, driven.frequency)
            for tick in range(driven.ticks + 1, ticks + 1):
                self._tick(driven, tick)
        self.rule = rule
        scales = {"lr": rule.scale, "weight_decay": rule.weight_decay_scale}
        self._scales.update((name, scales[name]) for name in self._scales)
        self._note()

    def _tick(self, driven: Driven, tick: int) -> None:
        at = self.epoch.after_ticks(tick, driven.interval, driven.frequency)
        # Lightning ticks before it counts the epoch, and after it has counted the optimizer step.
        steps = self.epoch.ticks(at, "step", frequency=1)
        self._said = {**self._baseline, "current_epoch": math.ceil(at) - 1, "global_step": steps}
        try:
            if self.calls is None:
                self._module.lr_scheduler_step(driven.scheduler, None)
            else:
                self.calls.step(driven.scheduler)
        finally:
            self._said = self.run
        driven.ticks = tick

    def _scale_gradient(self, optimizer: Optimizer) -> None:
        """Scales the gradient of an optimizer step with the tail of an epoch (`MultigridSchedule.gradient_scale`)."""
        # torch also makes the state of an optimizer by a step, before the first mini-batch.
        scale = self._plan.gradient_scale(self._place)
        if scale != 1:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.mul_(scale)

    # --- Checkpoints ---

    def state_dict(self) -> dict[str, Any]:
        ticks, intervals = [one.ticks for one in self.schedulers], [one.interval for one in self.schedulers]
        return {"ticks": ticks, "intervals": intervals}

    def resume(self, found: Continuation) -> None:
        """Takes over schedulers that a checkpoint has ticked already."""
        self.epoch, self._place = found.epoch, found.place
        for driven, ticks in zip(self.schedulers, found.ticks, strict=True):
            driven.ticks = ticks
        for driven, interval in zip(self.schedulers, found.intervals, strict=False):
            driven.interval = interval
        if self.run:
            self.run["estimated_stepping_batches"] = self._plan.optimizer_steps + found.steps_elsewhere


def _accept(before: float, now: float) -> None:
    pass


def _refuse_by_hand(module: str, before: float, now: float) -> None:
    raise MisconfigurationException(
        f"{module}, or a callback, has written the LR: {now:.6g} in the place of {before:.6g}. Whatever it counts by, "
        "the steps and epochs of this run are not the baseline's. Leave it to a scheduler, which is kept on the "
        "baseline's clock:\n"
        "    def configure_optimizers(self):\n"
        "        optimizer = ...\n"
        "        return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: ...)]\n"
        "Or, if it goes by the share that is done of `trainer.max_epochs` or `trainer.estimated_stepping_batches`, "
        "which are this run's, say so: `MultigridCallback(lr_by_hand='run')`."
    )
