"""The LR rule of multigrid training: the script's own schedulers on the baseline's clock, times the phase's scale.

`Plan.lr` says both for each step. A *tick* is one `step()` of a scheduler. Lightning ticks a scheduler after epochs or
optimizer steps of the run. Here a scheduler has been ticked, before each step, as often as it would have been by the
corresponding point of a baseline run. `lr_in_step.py` multiplies by the scale.
"""

import math
import sys
from fractions import Fraction
from typing import Any

from torch.optim import Optimizer

from lightning_multigrid.host import LightningModule, MisconfigurationException, Trainer
from lightning_multigrid.reports import LRCurve, LRPoint
from lightning_multigrid.schedule import LRRule, Place, Plan, exact
from lightning_multigrid.training.lr_in_step import LRInStep
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
        self._in_step = [LRInStep(one, self._scales, self._scale_gradient, takeover) for one in trainer.optimizers]
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
        for driven in self.schedulers:
            ticks = self.epoch.ticks(rule.baseline_epoch, driven.interval, driven.frequency)
            for tick in range(driven.ticks + 1, ticks + 1):
                self._tick(driven, tick)
        self.rule = rule
        scales = {"lr": rule.scale, "weight_decay": rule.weight_decay_scale}
        self._scales.update((name, scales[name]) for name in self._scales)

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
