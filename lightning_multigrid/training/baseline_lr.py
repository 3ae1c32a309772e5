"""The LR rule of multigrid training: the user's own schedulers on the baseline's clock, times the phase's scale.

The clock is `MultigridSchedule.baseline_epoch`; the scale is `Phase.lr_scale`; `Fit.sync_lr` passes both before each
step.

A *tick* is one `step()` of a scheduler. Lightning ticks a scheduler after epochs or optimizer steps of the run. At each
step here, a scheduler has been ticked as often as it would have been by the corresponding point of a baseline run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ConstantLR, LinearLR, MultiStepLR, ReduceLROnPlateau, StepLR

from lightning_multigrid.lightning import LRSchedulerConfig
from lightning_multigrid.training.torch_internals import scheduler_parts

# Where the paper's Kinetics recipe decays its LR, as shares of the training (Sec. 4).
_KINETICS_MILESTONES = (Fraction(44, 112), Fraction(72, 112), Fraction(92, 112))
# More steps than this are in effect a smooth decay, such as a `StepLR` of one epoch.
_MOST_MILESTONES = 10
_BASELINE_LR = "multigrid_baseline_lr"


@dataclass(frozen=True)
class BaselineEpoch:
    """An epoch of the baseline on one device.

    Args:
        batches: Mini-batches.
        accumulate: Mini-batches per optimizer step; the last step of an epoch may have fewer.
    """

    batches: int
    accumulate: int = 1

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps of an epoch."""
        return math.ceil(self.batches / self.accumulate)

    def after_optimizer_steps(self, steps: int) -> Fraction:
        """Returns the baseline epoch at which this many optimizer steps are done.

        >>> BaselineEpoch(batches=10, accumulate=4).after_optimizer_steps(5)
        Fraction(9, 5)
        """
        return self.after_ticks(steps, "step", frequency=1)

    def _tick_every(self, frequency: int) -> int:
        # Lightning: `(batch_idx + 1) % frequency == 0`, and only after optimizer steps.
        return math.lcm(frequency, self.accumulate)

    def _ticks_per_epoch(self, frequency: int) -> int:
        # If `accumulate` does not divide the batches, the last optimizer step of an epoch comes early.
        early = self.batches % self.accumulate != 0 and self.batches % frequency == 0
        return self.batches // self._tick_every(frequency) + early

    def ticks(self, epoch: Fraction, interval: str, frequency: int) -> int:
        """Returns the ticks that a scheduler has had by a baseline epoch.

        >>> BaselineEpoch(batches=10, accumulate=4).ticks(Fraction(9, 5), "step", frequency=1)
        5
        """
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
    """Returns the LR stages of the user's schedulers, else those of the paper's Kinetics recipe, in proportion.

    `MultiStepLR` and `StepLR` have milestones, a rising `LinearLR` or `ConstantLR` is a warm-up, also inside
    `SequentialLR` and `ChainedScheduler`. The first scheduler with milestones wins. `epochs` is the baseline's length.
    """
    warmup = Fraction(0)
    for config in configs:
        milestones: set[Fraction] = set()
        stepwise = True
        for scheduler, offset in scheduler_parts(config.scheduler):

            def position(ticks: int, offset: int = offset, config: LRSchedulerConfig = config) -> Fraction:
                return epoch.after_ticks(offset + ticks, config.interval, config.frequency)

            if isinstance(scheduler, MultiStepLR):
                milestones.update(position(tick) for tick in scheduler.milestones)
            elif isinstance(scheduler, StepLR):
                stages = range(1, math.ceil(epochs * max(epoch.batches, 1) / scheduler.step_size) + 1)
                milestones.update(position(stage * scheduler.step_size) for stage in stages)
            elif _is_warmup(scheduler) and offset == 0:
                warmup = max(warmup, position(scheduler.total_iters))
            else:
                stepwise = False
        inside = tuple(sorted(milestone for milestone in milestones if 0 < milestone < epochs))
        if 0 < len(inside) <= _MOST_MILESTONES:
            return LRStages(inside, warmup if warmup < inside[0] else Fraction(0), stepwise)
    if warmup >= epochs:
        warmup = Fraction(0)
    # A warm-up that is longer than the first of the paper's stages comes before all stages.
    start = warmup if warmup >= _KINETICS_MILESTONES[0] * epochs else Fraction(0)
    return LRStages(tuple(start + share * (epochs - start) for share in _KINETICS_MILESTONES), warmup, stepwise=False)


def _is_warmup(scheduler: Any) -> bool:
    if isinstance(scheduler, LinearLR):
        return bool(scheduler.start_factor < scheduler.end_factor)
    return isinstance(scheduler, ConstantLR) and scheduler.factor < 1


class BaselineLR:
    """Keeps the schedulers on the baseline's clock and the LR of every parameter group at the phase's scale.

    `param_groups["lr"]` is the LR in use, also if something adds a group or writes an LR while training. Beside it,
    each group keeps the baseline's LR, without the scale.

    Args:
        configs: The schedulers as Lightning holds them. `ReduceLROnPlateau` is left to Lightning.
        optimizers: The optimizers whose parameter groups are scaled.
        epoch: An epoch of the baseline.
        tick: Steps a scheduler once, as the module would.
    """

    def __init__(
        self,
        configs: Sequence[LRSchedulerConfig],
        optimizers: Sequence[Optimizer],
        epoch: BaselineEpoch,
        tick: Callable[[Any], None],
    ) -> None:
        self.configs = [config for config in configs if not isinstance(config.scheduler, ReduceLROnPlateau)]
        self.optimizers, self.epoch, self.tick = optimizers, epoch, tick
        self.ticks = [0] * len(self.configs)
        self.scale = 1.0
        self._warned = False

    def _groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @property
    def now(self) -> float:
        """The LR in use of the first parameter group; 0 if there is no optimizer."""
        return next((float(group["lr"]) for group in self._groups()), 0.0)

    @contextmanager
    def on_baseline(self) -> Iterator[None]:
        """Within it, every group holds the baseline's LR."""
        self.remove_scale()
        try:
            yield
        finally:
            self._apply_scale()

    def remove_scale(self) -> None:
        """Gives every group the baseline's LR."""
        for group in self._groups():
            baseline = group.pop(_BASELINE_LR, None)
            # The tolerance is for an LR in a float32 tensor.
            if baseline is not None and math.isclose(float(group["lr"]), baseline * self.scale, rel_tol=1e-6):
                _set_lr(group, baseline)
                continue
            if baseline is not None and not self._warned:
                self._warned = True
                rank_zero_warn(
                    f"Something other than an LR scheduler set the LR to {float(group['lr']):g}. This is now the LR in "
                    f"use at a multigrid scale of {self.scale:g}, and is scaled on from there. If it is a warm-up, let "
                    "`configure_optimizers` return a scheduler for it (for instance `LinearLR`)."
                )
            _set_lr(group, float(group["lr"]) / self.scale)

    def _apply_scale(self) -> None:
        for group in self._groups():
            group[_BASELINE_LR] = float(group["lr"])
            _set_lr(group, group[_BASELINE_LR] * self.scale)

    def resume(self, ticks: Sequence[int], scale: float) -> None:
        """Takes over schedulers that have had these ticks, and scales the LR, which is the baseline's now."""
        self.ticks, self.scale = list(ticks), scale
        self._apply_scale()

    def sync(self, epoch: Fraction, scale: float) -> None:
        """Brings every scheduler to a baseline epoch, and every group to a scale."""
        # Schedulers compute the next LR from that of the group, so the scale must be off while they tick.
        with self.on_baseline():
            for place, config in enumerate(self.configs):
                for _ in range(self.epoch.ticks(epoch, config.interval, config.frequency) - self.ticks[place]):
                    self.tick(config.scheduler)
                    self.ticks[place] += 1
            self.scale = scale

    @staticmethod
    def without_scale(optimizer_states: Sequence[dict[str, Any]]) -> None:
        """Puts the baseline's LR into optimizer states that are saved, so that they also fit a plain training."""
        for state in optimizer_states:
            for group in state.get("param_groups", []):  # rank 0 alone may have them, of a sharded model
                baseline = group.pop(_BASELINE_LR, None)
                if baseline is not None:
                    group["lr"] = group["lr"].new_tensor(baseline) if isinstance(group["lr"], Tensor) else baseline


def _set_lr(group: dict[str, Any], lr: float) -> None:
    # Compiled and capturable optimizers keep the LR in a tensor, which must stay the same object.
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(lr)
    else:
        group["lr"] = lr
