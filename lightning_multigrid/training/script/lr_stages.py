"""What a script's LR schedulers say about the baseline: its LR stages, its warm-up."""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

from torch.optim.lr_scheduler import ConstantLR, LinearLR, MultiStepLR, ReduceLROnPlateau, StepLR

from lightning_multigrid.host import LRSchedulerConfig, Trainer
from lightning_multigrid.schedule import EpochLength
from lightning_multigrid.training.trainer.torch_internals import scheduler_parts

# More steps than this are in effect a smooth decay, such as a `StepLR` of one epoch.
_MOST_MILESTONES = 10


class LRStages(NamedTuple):
    """What a scheduler says about the LR stages of the baseline, in epochs."""

    milestones: tuple[Fraction, ...]
    warmup_epochs: Fraction
    stepwise: bool


def epochs_before(trainer: Trainer) -> int:
    """Returns how many epochs a Trainer has done in a `fit` before; the schedulers of this one begin after them."""
    return 0 if trainer.ckpt_path else trainer.current_epoch


def lr_stages(configs: Sequence[LRSchedulerConfig], epoch: EpochLength, epochs: Fraction, before: int = 0) -> LRStages:
    """Returns the LR stages of the user's schedulers; without milestones it is one stage.

    The first scheduler with milestones says what they are, a rising one is a warm-up, and stages are stepwise if no
    scheduler changes the LR within them. `epochs` is the baseline's length, `before` as `epochs_before` returns it.
    """
    warmup, stepwise, chosen = Fraction(0), True, tuple[Fraction, ...]()
    for config in configs:
        if is_plateau(config):  # it goes by a metric
            continue
        milestones = set[Fraction]()
        after_ticks = partial(epoch.after_ticks, interval=config.interval, frequency=config.frequency)
        for scheduler, start, end in scheduler_parts(config.scheduler):
            ticks: Iterable[int] = ()
            if isinstance(scheduler, MultiStepLR):
                ticks = scheduler.milestones
            elif isinstance(scheduler, StepLR):  # one stage above the most tells
                ticks = [stage * scheduler.step_size for stage in range(1, _MOST_MILESTONES + 2)]
            elif _is_warmup(scheduler) and start == 0:
                warmup = max(warmup, after_ticks(int(min(scheduler.total_iters, end))))
            else:
                stepwise = False
            milestones |= {before + after_ticks(start + tick) for tick in ticks if start + tick < end}
        inside = tuple(sorted(milestone for milestone in milestones if 0 < milestone < epochs))
        if len(inside) > _MOST_MILESTONES:
            stepwise = False
        elif not chosen:
            chosen = inside
    first = chosen[0] if chosen else epochs
    return LRStages(chosen, warmup if warmup < first else Fraction(0), stepwise)


def _is_warmup(scheduler: Any) -> bool:
    if isinstance(scheduler, LinearLR):
        return bool(scheduler.start_factor < scheduler.end_factor)
    return isinstance(scheduler, ConstantLR) and scheduler.factor < 1


def has_stages(scheduler: Any) -> bool:
    """Returns whether `lr_stages` reads the plan off a scheduler."""
    return any(isinstance(part, (MultiStepLR, StepLR)) or _is_warmup(part) for part, *_ in scheduler_parts(scheduler))


def is_plateau(config: LRSchedulerConfig) -> bool:
    """Returns whether a scheduler waits for a metric, which only Lightning or the script knows."""
    return config.reduce_on_plateau or isinstance(config.scheduler, ReduceLROnPlateau)
