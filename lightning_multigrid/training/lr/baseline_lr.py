"""The LR rule of multigrid training: the script's own schedulers at the baseline's epochs, times the phase's scale.

A `Step` says both. A *tick* is one `step()` of a scheduler. Lightning ticks it after epochs or optimizer steps of the
run. Here it has been ticked, before each step, as often as it would have been by that point of a baseline run.
"""

import math
import sys
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial, wraps
from typing import Any

from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR, MultiplicativeLR

from lightning_multigrid.host import LRSchedulerConfig, MisconfigurationException, Trainer
from lightning_multigrid.schedule import EpochLength, Place, Plan, Step, exact
from lightning_multigrid.training.checkpoints.continuation import State
from lightning_multigrid.training.lr.lr_in_step import LRInStep
from lightning_multigrid.training.script.lr_stages import epochs_before, has_stages, is_plateau
from lightning_multigrid.training.trainer.changes import Changes
from lightning_multigrid.training.trainer.torch_internals import scheduler_parts


class _ClockedScheduler:
    """A scheduler, after what it is ticked in the script, and how often it has been ticked.

    With manual optimization, the script ticks it by calls of `step`. A call within a training step stands for as many
    calls as the step stands for mini-batches of the baseline, any other for itself. What is less than a tick is kept.
    """

    def __init__(self, config: LRSchedulerConfig) -> None:
        self.config, self.scheduler = config, config.scheduler
        self.interval: str = config.interval
        self.frequency = config.frequency
        self.ticks = Fraction(0)

    def ticks_within(self, last: bool, share: Fraction, batches: int, given: bool) -> Fraction:
        """Returns the ticks of a call, with arguments if `given`, in a step that stands for a `share` of batches."""
        # In the `last` step of its epoch, which has this many `batches`, a script may step a scheduler of epochs.
        of_epochs, name = self.interval == "epoch", type(self.scheduler).__name__
        if given:
            raise MisconfigurationException(
                f"The script called `step` of {name} with arguments in a mini-batch, so nothing says whether they "
                "count the mini-batches of this run. Call it without arguments, or in `on_train_epoch_end`. A "
                "scheduler that needs a count, as timm's `step_update` does, needs automatic optimization: call it in "
                "`lr_scheduler_step`, where `self.global_step` counts the baseline's steps."
            )
        if of_epochs and (batches == 1 < share or (not last and has_stages(self.scheduler))):
            raise MisconfigurationException(
                f"The script called `step` of {name} in a mini-batch, but did not say so when the training was "
                'planned. If it does after each mini-batch, let `configure_optimizers` return `{"scheduler": ..., '
                '"interval": "step"}`; if after each epoch, call `step()` in `on_train_epoch_end`.'
            )
        if not last:
            self.interval = "step"  # scripts need not say so to Lightning, but this call does
        return share if self.interval == "step" else Fraction(1)


class BaselineLR:
    """Keeps the script's schedulers at the baseline's epochs, and scales the LR within optimizer steps (`LRInStep`).

    Outside of these, `param_groups` hold the baseline's LR, for whatever a script computes or writes. `by_hand` says
    that it writes LRs that go by this run.
    """

    def __init__(self, plan: Plan, trainer: Trainer, by_hand: bool = False) -> None:
        self._plan, self._trainer, self._module = plan, trainer, trainer.lightning_module
        configs = trainer.lr_scheduler_configs  # those of a plateau wait for a metric, and have no clock
        self._schedulers = [_ClockedScheduler(config) for config in configs if not is_plateau(config)]
        self._epoch = plan.baseline_length  # in which the schedulers count: the checkpoint's, if there is one
        begins = plan.step(Place(epochs_before(trainer), 0)).baseline_epoch
        for clocked in self._schedulers:  # as Lightning's: those of a second `fit` begin with it
            clocked.ticks = Fraction(self._epoch.ticks(begins, clocked.interval, clocked.frequency))
        # What the Trainer answers while schedulers are ticked, whoever asks: a scheduler may hold the Trainer itself.
        self._answers: dict[str, Any] = {
            "limit_train_batches": trainer.limit_train_batches,
            "max_epochs": trainer.max_epochs,
            "max_steps": trainer.max_steps,
            "num_training_batches": self._epoch.batches,
            "estimated_stepping_batches": self._epoch.ticks(exact(plan.schedule.baseline.epochs), "step", frequency=1),
            "current_epoch": 0,
            "global_step": 0,
        }
        self._answering = _answering(type(trainer), self._answers)
        refuse = partial(_refuse_by_hand, type(self._module).__name__)
        decays = plan.schedule.lr_scaling == "sqrt"  # so that a step's decay times its LR grows with the clips
        self._in_step = LRInStep(trainer.optimizers, None if by_hand else refuse, decays)
        self._manual = not self._module.automatic_optimization
        self._within = False  # a step, with all that comes before the next one but validations and the epoch's end
        self._goes_on = False  # the epoch, after the last step that has ended; also where the run is stopped

    def start(self, changes: Changes) -> None:
        self._in_step.start(changes)
        for config in self._trainer.lr_scheduler_configs:
            if is_plateau(config):  # it lowers the LR after a validation, by what it counted of them
                changes.subclass(config.scheduler, {"step": self._noting(type(config.scheduler).step)})
        for clocked in self._schedulers:
            if self._manual:
                kind = type(clocked.scheduler)
                own = {name: getattr(kind, name) for name in ("step", "step_update") if hasattr(kind, name)}  # timm's
                calls = {name: self._noting(self._by_hand(clocked, step)) for name, step in own.items()}
                changes.subclass(clocked.scheduler, calls)
            else:  # Lightning must not tick it as well
                changes.set_attribute(clocked.config, "frequency", sys.maxsize)

    def _noting(self, step: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(step)
        def stepped(*arguments: Any, **named: Any) -> Any:
            self._in_step.check()
            result = step(*arguments, **named)
            self._in_step.note()
            return result

        return stepped

    def _by_hand(self, clocked: _ClockedScheduler, step: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(step)
        def call(*arguments: Any, **named: Any) -> None:
            before = math.floor(clocked.ticks)
            clocked.ticks += self._ticks_of_call(clocked, given=len(arguments) > 1 or bool(named))
            for tick in range(before + 1, math.floor(clocked.ticks) + 1):
                self._tick(clocked, tick, partial(step, *arguments, **named))

        return call

    def _ticks_of_call(self, clocked: _ClockedScheduler, given: bool) -> Fraction:
        if self._within and self._trainer.training:
            last, batches = self._trainer.is_last_batch, self._plan.batches_per_epoch
            return clocked.ticks_within(last, Fraction(self._epoch.batches, batches), batches, given)
        # An epoch that a run is stopped in goes on when the run does, and ends then.
        return Fraction(not (self._goes_on and self._trainer.training and self._trainer.should_stop))

    # --- The clock ---

    def begin(self, first: Step) -> None:
        self._within = self._goes_on = False
        self._prepare(first)

    def check(self, step: Step) -> None:
        self._within, self._goes_on = True, False
        if step.starts_update:
            self._in_step.used = None
        for optimizer in self._trainer.optimizers:
            if step.lr_scale != 1 and any(group.get("lr") is None for group in optimizer.param_groups):
                raise MisconfigurationException(
                    f"MultigridCallback scales the `lr` of all parameter groups, but one of {type(optimizer).__name__} "
                    "has none. Give the optimizer a number as `lr`, or the callback `lr_scaling='none'`."
                )

    def go_on(self, following: Step) -> None:
        self._goes_on = following.place.batch != 0
        if not self._goes_on:
            self._in_step.may_be_written = True
        self._prepare(following)

    def end(self) -> None:
        """An epoch has ended, so its LR may be written by hand."""
        self._within, self._in_step.may_be_written = False, True

    def in_use(self, step: Step) -> float:
        """The LR of the last update, or of this step if it makes none."""
        used = self._in_step.used
        return float(self.baseline_lr * step.lr_scale if used is None else used)

    @property
    def baseline_lr(self) -> float | Tensor:
        """The baseline's LR that the next update has before the scale, of the first parameter group; 0 if none has."""
        groups = (group for optimizer in self._trainer.optimizers for group in optimizer.param_groups)
        return next((group["lr"] for group in groups if group.get("lr") is not None), 0.0)

    def _prepare(self, step: Step) -> None:
        self._in_step.check()
        if not self._manual:
            self.go_to(step.baseline_epoch)
        self._in_step.scale = step.lr_scale
        self._in_step.note()

    def go_to(self, baseline_epoch: Fraction) -> None:
        """Brings every scheduler to an epoch of the baseline."""
        for clocked in self._schedulers:
            ticks = self._epoch.ticks(baseline_epoch, clocked.interval, clocked.frequency)
            for tick in range(math.floor(clocked.ticks) + 1, ticks + 1):
                self._tick(clocked, tick, partial(self._module.lr_scheduler_step, clocked.scheduler, None))
                clocked.ticks = Fraction(tick)

    def _tick(self, clocked: _ClockedScheduler, tick: int, step: Callable[[], Any]) -> None:
        at = self._epoch.after_ticks(tick, clocked.interval, clocked.frequency)
        # Lightning ticks before it counts the epoch, and after it has counted the optimizer step.
        steps = self._epoch.ticks(at, "step", frequency=1)
        self._answers.update(current_epoch=math.ceil(at) - 1, global_step=steps)
        own = type(self._trainer)
        self._trainer.__class__ = self._answering
        try:
            step()
        finally:
            self._trainer.__class__ = own

    # --- Checkpoints ---

    def save(self) -> State:
        return {
            "ticks": [[*one.ticks.as_integer_ratio()] for one in self._schedulers],
            "intervals": [one.interval for one in self._schedulers],
            "baseline_epoch_batches": [self._epoch.batches, self._epoch.accumulate],
        }

    def make_ordinary(self, checkpoint: dict[str, Any]) -> None:
        """Makes a checkpoint fit for trainings without the callback."""
        # Lightning writes a checkpoint wherever SLURM's signal finds it, also in the middle of an update.
        own = {(id(noted.group), noted.name): noted.value for noted in self._in_step.before}
        for optimizer, state in zip(self._trainer.optimizers, checkpoint.get("optimizer_states", ()), strict=False):
            for group, saved in zip(optimizer.param_groups, state.get("param_groups", ()), strict=False):
                saved.update({name: own[id(group), name] for name in saved if (id(group), name) in own})

    def load(self, state: State) -> None:
        if len(state["ticks"]) != len(self._schedulers):
            raise MisconfigurationException(
                f"The checkpoint has {len(state['ticks'])} LR scheduler(s), and "
                f"`configure_optimizers` returns {len(self._schedulers)} now, so it is not known how far each is. "
                "Return the schedulers of the checkpoint, or start a new training from its weights."
            )
        for clocked, ticks, interval in zip(self._schedulers, state["ticks"], state["intervals"], strict=True):
            clocked.ticks, clocked.interval = Fraction(*ticks), interval
        epoch = EpochLength(*state["baseline_epoch_batches"])
        self._refuse_functions(epoch.optimizer_steps, self._epoch.optimizer_steps)
        self._epoch = epoch

    def _refuse_functions(self, before: int, now: int) -> None:
        """Refuses functions of this run's steps, if the schedulers go on in those of the checkpoint's baseline."""
        by_step = [one for one in self._schedulers if one.interval == "step"]
        for part in (part for one in by_step for part, *_ in scheduler_parts(one.scheduler)):
            if before != now and isinstance(part, (LambdaLR, MultiplicativeLR)):
                raise MisconfigurationException(
                    f"An epoch of the checkpoint's baseline has {before} optimizer steps, and one of this script's has "
                    f"{now}. Schedulers go on in the checkpoint's steps, but the function of a {type(part).__name__} "
                    "is not in a checkpoint, so it may count this script's. Keep the clips and the product of "
                    "`batch_size`, devices and `accumulate_grad_batches`, or start a new training from its weights."
                )


def _answering(own: type[Trainer], answers: Mapping[str, Any]) -> type[Trainer]:
    """A Trainer with these answers, which refuses to give what has only the numbers of this run."""

    def answer(name: str, _: Trainer) -> Any:
        return answers[name]

    def refuse(name: str, trainer: Trainer) -> Any:
        asks = sys._getframe(1).f_globals.get("__name__", "")
        if name in vars(trainer) and asks.startswith(("lightning.", "pytorch_lightning.")):
            return vars(trainer)[name]
        raise MisconfigurationException(
            f"A scheduler, or `lr_scheduler_step`, reads `trainer.{name}`, which counts the mini-batches of multigrid "
            "training. Schedulers count the baseline's: read `trainer.num_training_batches`, "
            "`trainer.estimated_stepping_batches`, `trainer.global_step` or `trainer.current_epoch`, which say them "
            "there."
        )

    members = {name: property(partial(answer, name)) for name in answers}
    members |= {name: property(partial(refuse, name)) for name in ("fit_loop", "train_dataloader")}
    return type(own.__name__, (own,), {"__module__": own.__module__, **members})


def _refuse_by_hand(module: str, name: str, before: Any, now: Any) -> None:
    what = "the LR" if name == "lr" else f"`{name}` of a parameter group"
    values = [str(value) if isinstance(value, (tuple, list)) else f"{float(value):.6g}" for value in (now, before)]
    raise MisconfigurationException(
        f"{module}, or a callback, has written {what} within an epoch: {values[0]}, it was {values[1]}. If it "
        "depends on a count of steps, this run has other steps than the baseline. Write it at the start of an epoch, "
        "or leave it to a scheduler, which is stepped at the baseline's epochs:\n"
        "    def configure_optimizers(self):\n"
        "        optimizer = ...\n"
        "        return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: ...)]\n"
        "Or, if it goes by the epoch, or by the share that is done of `trainer.estimated_stepping_batches`, read when "
        "it is written, when that is this run's, say so: `MultigridCallback(lr_by_hand='run')`."
    )
