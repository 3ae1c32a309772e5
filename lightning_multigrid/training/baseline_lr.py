"""The LR rule of multigrid training: the user's own schedulers on the baseline's clock, times the phase's scale.

The clock is `MultigridSchedule.baseline_epoch`; the scale is `Phase.lr_scale`; `Fit.sync_lr` passes both before each
step. A weight decay is scaled in the same way, if the user asks for it.

A *tick* is one `step()` of a scheduler. Lightning ticks a scheduler after epochs or optimizer steps of the run. At each
step here, a scheduler has been ticked as often as it would have been by the corresponding point of a baseline run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from fractions import Fraction
from functools import partialmethod
from numbers import Real
from operator import is_not
from typing import Any, NamedTuple

from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ConstantLR, LinearLR, MultiStepLR, ReduceLROnPlateau, StepLR

from lightning_multigrid.lightning import LRSchedulerConfig, MisconfigurationException
from lightning_multigrid.training.torch_internals import scheduler_parts

# Where the paper's Kinetics recipe decays its LR, as shares of the training (Sec. 4).
_KINETICS_MILESTONES = (Fraction(44, 112), Fraction(72, 112), Fraction(92, 112))
# More steps than this are in effect a smooth decay, such as a `StepLR` of one epoch.
_MOST_MILESTONES = 10
# What is scaled in a parameter group, with its name in messages.
_NAMES = {"lr": "LR", "weight_decay": "weight decay"}


@dataclass(frozen=True)
class BaselineEpoch:
    """An epoch of the baseline on one device, in mini-batches."""

    batches: int
    accumulate: int = 1  # mini-batches per optimizer step; the last step of an epoch may have fewer

    @property
    def optimizer_steps(self) -> int:
        return math.ceil(self.batches / self.accumulate)

    def _tick_every(self, frequency: int) -> int:
        # Lightning: `(batch_idx + 1) % frequency == 0`, and only after optimizer steps.
        return math.lcm(frequency, self.accumulate)

    def _ticks_per_epoch(self, frequency: int) -> int:
        # If `accumulate` does not divide the batches, the last optimizer step of an epoch comes early.
        early = self.batches % self.accumulate != 0 and self.batches % frequency == 0
        return self.batches // self._tick_every(frequency) + early

    def ticks(self, epoch: Fraction, interval: str, frequency: int) -> int:
        """Returns the ticks that a scheduler has had by a baseline epoch."""
        whole = math.floor(epoch)
        if interval == "epoch":
            return whole // frequency
        done = math.floor((epoch - whole) * self.batches)
        return whole * self._ticks_per_epoch(frequency) + done // self._tick_every(frequency)

    def after_ticks(self, ticks: int, interval: str, frequency: int) -> Fraction:
        """Returns the baseline epoch at which a scheduler has had this many ticks."""
        if interval == "epoch":
            return Fraction(ticks * frequency)
        per_epoch = self._ticks_per_epoch(frequency)
        if not per_epoch:
            return Fraction(10**9)  # never: an epoch has fewer batches than `frequency`
        if ticks == 0:
            return Fraction(0)
        whole, before = divmod(ticks - 1, per_epoch)
        return whole + Fraction(min((before + 1) * self._tick_every(frequency), self.batches), self.batches)


class LRStages(NamedTuple):
    """What a scheduler says about the LR stages of the baseline, in epochs."""

    milestones: tuple[Fraction, ...]
    warmup_epochs: Fraction
    stepwise: bool


def lr_stages(configs: Sequence[LRSchedulerConfig], epoch: BaselineEpoch, epochs: Fraction) -> LRStages:
    """Returns the LR stages of the user's schedulers, else those of the paper's Kinetics recipe, in proportion."""
    # The first scheduler with milestones wins; a rising one is a warm-up. `epochs` is the baseline's length.
    warmup = Fraction(0)
    for config in configs:
        milestones, stepwise = set[Fraction](), True
        for scheduler, offset in scheduler_parts(config.scheduler):
            ticks: Iterable[int] = ()
            if isinstance(scheduler, MultiStepLR):
                ticks = scheduler.milestones
            elif isinstance(scheduler, StepLR):
                stages = range(1, math.ceil(epochs * max(epoch.batches, 1) / scheduler.step_size) + 1)
                ticks = [stage * scheduler.step_size for stage in stages]
            elif _is_warmup(scheduler) and offset == 0:
                warmup = max(warmup, epoch.after_ticks(scheduler.total_iters, config.interval, config.frequency))
            else:
                stepwise = False
            milestones.update(epoch.after_ticks(offset + tick, config.interval, config.frequency) for tick in ticks)
        inside = tuple(sorted(milestone for milestone in milestones if 0 < milestone < epochs))
        if 0 < len(inside) <= _MOST_MILESTONES:
            return LRStages(inside, warmup if warmup < inside[0] else Fraction(0), stepwise)
    warmup = warmup if warmup < epochs else Fraction(0)
    # A warm-up that is longer than the first of the paper's stages comes before all stages.
    start = warmup if warmup >= _KINETICS_MILESTONES[0] * epochs else Fraction(0)
    return LRStages(tuple(start + share * (epochs - start) for share in _KINETICS_MILESTONES), warmup, stepwise=False)


def _is_warmup(scheduler: Any) -> bool:
    if isinstance(scheduler, LinearLR):
        return bool(scheduler.start_factor < scheduler.end_factor)
    return isinstance(scheduler, ConstantLR) and scheduler.factor < 1


class ScaledLR(float):
    """The LR (or weight decay) in use. It knows the baseline's, and so does what a script computes from it.

    A script that writes `group["lr"] * 0.1` means a tenth of the baseline's LR, one that writes 0.1 the baseline's LR.
    So `max(group["lr"], 0.1)` compares the baseline's; only `==` compares the LR in use.
    """

    baseline: float

    def __new__(cls, value: float, baseline: float) -> ScaledLR:
        lr = super().__new__(cls, value)
        lr.baseline = baseline
        return lr

    def __reduce__(self) -> tuple[Any, ...]:
        return float, (float(self),)  # what a script saves must load without this package

    def _compute(self, operator: Callable[[float, Any], Any], other: Any) -> Any:
        if isinstance(other, Real) and not isinstance(other, float):  # of NumPy, for instance
            other = float(other)
        value, baseline = operator(self, other), operator(self.baseline, baseline_of(other))
        return ScaledLR(value, baseline) if type(value) is float else baseline

    __add__ = __radd__ = partialmethod(_compute, float.__add__)
    __mul__ = __rmul__ = partialmethod(_compute, float.__mul__)
    __sub__, __rsub__ = partialmethod(_compute, float.__sub__), partialmethod(_compute, float.__rsub__)
    __truediv__, __rtruediv__ = partialmethod(_compute, float.__truediv__), partialmethod(_compute, float.__rtruediv__)
    __lt__, __le__ = partialmethod(_compute, float.__lt__), partialmethod(_compute, float.__le__)
    __gt__, __ge__ = partialmethod(_compute, float.__gt__), partialmethod(_compute, float.__ge__)


def baseline_of(state: Any, number: Callable[[ScaledLR], float] = lambda lr: lr.baseline) -> Any:
    """Returns a copy of nested dicts, lists and tuples that has a plain number, the baseline's, for each LR in use."""
    if isinstance(state, dict):
        whole = copy(state)  # with the attributes of a model's state dict
        dict.update(whole, {key: baseline_of(value, number) for key, value in state.items()})  # that of a Counter adds
        return whole
    if type(state) in (list, tuple):
        return type(state)(baseline_of(value, number) for value in state)
    return number(state) if isinstance(state, ScaledLR) else state


def put_baseline(checkpoint: dict[str, Any]) -> None:
    """Puts the baseline's LR in place of each one in use that a script or a callback keeps in a checkpoint."""
    # What optimizers have computed from the LR in use, such as a sum of LRs, stays: see `BaselineLR.without_scale`.
    if "optimizer_states" in checkpoint:
        checkpoint["optimizer_states"] = baseline_of(checkpoint["optimizer_states"], float)
    checkpoint.update(baseline_of(checkpoint))


class BaselineLR:
    """Keeps the schedulers on the baseline's clock and the LR of every parameter group at the phase's scale.

    `param_groups["lr"]` is the LR in use at each optimizer step, also if the script adds a group or writes an LR.
    `state_dict` of an optimizer has the baseline's, so that checkpoints also fit a plain training. The same holds for
    the weight decay, if it is scaled.

    `tick` steps a scheduler once, as the module would. `baseline` is what the Trainer answers in the baseline run, by
    the names of its properties, and `run` what it answers in this run, where Lightning would answer something else.
    `scale_gradient` is called before each step of an optimizer, after its gradients have been clipped.
    """

    def __init__(
        self,
        configs: Sequence[LRSchedulerConfig],
        optimizers: Sequence[Optimizer],
        epoch: BaselineEpoch,
        tick: Callable[[Any], None],
        baseline: dict[str, Any],
        run: dict[str, Any],
        weight_decay: bool = False,
    ) -> None:
        self.configs = [config for config in configs if not is_plateau(config)]
        self.intervals: list[str] = [config.interval for config in self.configs]
        self.optimizers, self.epoch, self.tick = list(optimizers), epoch, tick
        self.ticks = [0] * len(self.configs)
        self.scales = {"lr": 1.0, "weight_decay": 1.0} if weight_decay else {"lr": 1.0}
        self.now = 0.0  # the LR in use of the first parameter group; 0 if there is no optimizer
        self.baseline, self.run = baseline, run
        self.answers = run  # while a scheduler ticks, the baseline's
        self.forget_calls()
        self.scale_gradient: Callable[[Optimizer], None] = lambda optimizer: None
        self._warned: set[str] = set()
        self._tensors: dict[Tensor, float] = {}  # the baseline's value of each tensor in use
        self._in_use: list[Any] = []  # the values that were set last, in the order of `_scaled`
        self._stepping: set[Optimizer] = set()

    def _scaled(self) -> list[tuple[dict[str, Any], str]]:
        """Every group with each name of a value in it that is scaled."""
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        return [(group, name) for group in groups for name in self.scales if group.get(name) is not None]

    def _set(self, values: list[float]) -> None:
        for (group, name), value in zip(self._scaled(), values, strict=True):
            # Compiled and capturable optimizers keep the LR in a tensor, which must stay the same object.
            if isinstance(group[name], Tensor):
                group[name].fill_(value)
            else:
                group[name] = value

    @contextmanager
    def on_baseline(self) -> Iterator[None]:
        """Within it, every group holds the baseline's LR."""
        self.remove_scale()
        try:
            yield
        finally:
            self._apply_scale()

    def remove_scale(self) -> None:
        self._set([self._baseline(group[name], name) for group, name in self._scaled()])

    def _baseline(self, value: Any, name: str) -> float:
        """The baseline's value of one in a group, also if the script has just written it."""
        if isinstance(value, ScaledLR):
            return value.baseline
        if not isinstance(value, Tensor):
            self._say_taken(name, value)
            return float(value)
        written, scale = float(value), self.scales[name]
        known = written if scale == 1 else self._tensors.get(value, math.nan)
        if math.isclose(written, known * scale, rel_tol=1e-6):  # a tensor may be of float32
            return known
        # What is called on the way out must have nothing to refuse, and must find the baseline's LR.
        self.scales = dict.fromkeys(self.scales, 1.0)
        for tensor, baseline in self._tensors.items():
            tensor.fill_(baseline)
        raise MisconfigurationException(
            f"The script sets an {_NAMES[name]} that is in a tensor to {written:g}, and MultigridCallback can't "
            "tell whether it is the baseline's or computed from the one in use. Give the optimizer a number as "
            f"`{name}`, or let `configure_optimizers` return a scheduler."
        )

    def _say_taken(self, name: str, value: float) -> None:
        if name in self._warned or self.scales[name] == 1:
            return
        self._warned.add(name)
        steps = "estimated_stepping_batches"
        rank_zero_warn(
            f"The script sets the {_NAMES[name]} itself, now to {value:g}. MultigridCallback takes this as the "
            f"baseline's and multiplies it by the phase's scale, now {self.scales[name]:g}. If the script computes it "
            f"from `global_step` or `current_epoch`, it counts this run ({self.run.get(steps, 'a few')} optimizer "
            f"steps) and not the baseline ({self.baseline[steps]}): let `configure_optimizers` return a scheduler, or "
            f"compute it from `global_step / trainer.{steps}`."
        )

    def _apply_scale(self) -> None:
        found = [(float(group[name]), self.scales[name], group[name]) for group, name in self._scaled()]
        self._tensors = {value: baseline for baseline, _, value in found if isinstance(value, Tensor)}
        self._set([ScaledLR(baseline * scale, baseline) for baseline, scale, _ in found])
        self._in_use = [group[name] for group, name in self._scaled()]
        self.now = found[0][0] * found[0][1] if found else 0.0

    def _scale_written(self) -> None:
        # By identity, as to read a tensor would make the host wait for the device.
        values = [group[name] for group, name in self._scaled()]
        if len(values) != len(self._in_use) or any(map(is_not, values, self._in_use)):
            self.remove_scale()
            self._apply_scale()

    def before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Scales gradients, and what the script has written since the last step: a pre-hook of `Optimizer.step`."""
        if optimizer in self._stepping:  # `step` of a subclass has called that of its base class
            return None
        self._stepping.add(optimizer)
        self._scale_written()
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self.scale_gradient(optimizer)
            return None

        def run() -> Any:  # `training_step`, clipping of gradients, and many other hooks run in the closure
            loss = closure()
            self._scale_written()
            self.scale_gradient(optimizer)
            return loss

        return args[:1], {**kwargs, "closure": run}

    def after_step(self, optimizer: Optimizer, *_: Any) -> None:
        """A post-hook of `Optimizer.step`."""
        self._stepping.discard(optimizer)

    def without_scale(self, _: Optimizer, state: dict[str, Any]) -> None:
        """Puts the baseline's LR into a state that is saved: a post-hook of `Optimizer.state_dict`."""
        for group in state["param_groups"]:
            for name, value in group.items():
                if name not in {*self.scales, "initial_lr"}:
                    group[name] = baseline_of(value, float)
                elif isinstance(value, Tensor) and name in self.scales:
                    group[name] = value.new_tensor(self._baseline(value, name))
                else:
                    group[name] = baseline_of(value)

    def resume(self, ticks: Sequence[int], intervals: Sequence[str], scale: float) -> None:
        """Takes over schedulers that have had these ticks, and scales the LR, which is the baseline's now."""
        self.ticks, self.scales["lr"] = list(ticks), scale
        self.intervals = list(intervals or self.intervals)
        self._apply_scale()

    def sync(self, epoch: Fraction, scale: float, weight_decay_scale: float = 1.0) -> None:
        """Brings every scheduler to a baseline epoch, and every group to a scale."""
        self._stepping.clear()  # of a step that an error has ended
        # Schedulers compute the next LR from that of the group, so the scale must be off while they tick.
        with self.on_baseline():
            for place, config in enumerate(self.configs):
                for _ in range(self.epoch.ticks(epoch, self.intervals[place], config.frequency) - self.ticks[place]):
                    self._tick(place)
            scales = {"lr": scale, "weight_decay": weight_decay_scale}
            self.scales = {name: scales[name] for name in self.scales}

    def _tick(self, place: int) -> None:
        config, ticks = self.configs[place], self.ticks[place] + 1
        at = self.epoch.after_ticks(ticks, self.intervals[place], config.frequency)
        # Lightning ticks before it counts the epoch, and after it has counted the optimizer step.
        steps = self.epoch.ticks(at, "step", frequency=1)
        self.answers = {**self.baseline, "current_epoch": math.ceil(at) - 1, "global_step": steps}
        try:
            self.tick(config.scheduler)
        finally:
            self.answers = self.run
        self.ticks[place] = ticks

    # --- Manual optimization: the script's own calls of `scheduler.step()` ---

    def called(self, scheduler: Any, arguments: bool, epoch: int, batch: int, last: bool) -> None:
        """Notes a script's call of a scheduler's `step`, which does nothing else; refuses one at the wrong time."""
        place = next(place for place, config in enumerate(self.configs) if config.scheduler is scheduler)
        frequency = self.configs[place].frequency
        if (epoch, batch, last, self.ticks[place], frequency) == (0, 0, False, 0, 1) and not _has_stages(scheduler):
            self.intervals[place] = "step"  # scripts need not say so to Lightning, but this call does
        due = (batch + 1) % frequency == 0 if self.intervals[place] == "step" else last
        if arguments or batch < 0 or not due:
            raise self._misplaced(place, f"after mini-batch {batch} of epoch {epoch}" + " with arguments" * arguments)
        self._calls[place] += 1

    def forget_calls(self) -> None:
        self._calls = [0] * len(self.configs)

    def judge_calls(self, epoch: int, batches: int) -> None:
        """Refuses schedulers that the script did not step as often in an epoch as their interval says."""
        for place, config in enumerate(self.configs):
            by_step, every = self.intervals[place] == "step", config.frequency
            if self._calls[place] != (batches // every if by_step else (epoch + 1) % every == 0):
                raise self._misplaced(place, f"{self._calls[place]} time(s) in epoch {epoch}")

    def _misplaced(self, place: int, when: str) -> MisconfigurationException:
        config = self.configs[place]
        return MisconfigurationException(
            f"The script called `step` of {type(config.scheduler).__name__} {when}. MultigridCallback steps schedulers "
            f"on the baseline's clock, so it must know how often the script does, and expected a call after every "
            f"{self.intervals[place]} whose number {config.frequency} divides. Let `configure_optimizers` return "
            '`{"scheduler": ..., "interval": "step" or "epoch", "frequency": ...}`, and call `step()` at '
            "the end of each such mini-batch or epoch, without arguments."
        )


def is_plateau(config: LRSchedulerConfig) -> bool:
    """Returns whether a scheduler waits for a metric, which only Lightning or the script knows."""
    return config.reduce_on_plateau or isinstance(config.scheduler, ReduceLROnPlateau)


def _has_stages(scheduler: Any) -> bool:
    """Whether `lr_stages` reads the plan off a scheduler."""
    return any(isinstance(part, (MultiStepLR, StepLR)) or _is_warmup(part) for part, _ in scheduler_parts(scheduler))
