"""The plan of a training: from what a script says, and from the arguments of `MultigridCallback`."""

import math
from dataclasses import replace
from fractions import Fraction
from itertools import count

from torch import nn

from lightning_multigrid.host import Trainer
from lightning_multigrid.positions import patch_divisors
from lightning_multigrid.schedule import Baseline, BatchShape, Epochs, MultigridSchedule, Plan, exact
from lightning_multigrid.training.arguments import Arguments, schedule_of
from lightning_multigrid.training.script.lr_stages import epochs_before, lr_stages
from lightning_multigrid.training.script.optimizers import auto_lr_scaling, refuse_hidden
from lightning_multigrid.training.script.recipe import Recipe

_MOST = Fraction(1, 4)  # by which the steps of an epoch may be rounded


def make_plan(
    arguments: Arguments,
    trainer: Trainer,
    module: nn.Module,
    recipe: Recipe,
    shape: BatchShape,
    stride: int,
    *,
    seed: int,
    world: int,
) -> Plan:
    """Returns the plan of a training on `world` devices.

    The Trainer has the settings, optimizers and schedulers of its script. `shape` is the baseline's mini-batch, and
    `stride` that of its clips.
    """
    epochs = _epochs_of_try(arguments) if trainer.fast_dev_run else recipe.epochs  # type: ignore[attr-defined]
    schedule = arguments.schedule
    if schedule is None:
        schedule = _inferred(arguments, trainer, module, recipe, Baseline(shape, epochs, stride=stride))
    elif (schedule.baseline.shape, schedule.baseline.epochs) != (shape, epochs):
        raise ValueError(
            f"The schedule is for a baseline of {schedule.baseline.shape} (clips x frames x size) and "
            f"{float(schedule.baseline.epochs):g} epochs, but the script has one of {shape} and {float(epochs):g} "
            "epochs. Make them equal, or leave the schedule to be inferred."
        )
    refuse_hidden(schedule, module, trainer.optimizers)
    return Plan(schedule, recipe.clips, seed, world, trainer.accumulate_grad_batches, recipe.epoch.batches)


def check_steps(plan: Plan, data: object = None) -> None:
    """Refuses epochs of so few steps that their rounding changes the training; `data` may be a data module."""
    off = rounding(plan.unrounded_steps_per_epoch)
    if off <= _MOST:
        return
    # From 2 steps on, all roundings are small enough.
    times = next(times for times in count(2) if rounding(times * plan.unrounded_steps_per_epoch) <= _MOST)
    repeats = getattr(data, "repeats", None)  # of VideoDataModule
    longer = f"torch.utils.data.ConcatDataset([dataset] * {times})" if repeats is None else f"repeats={repeats * times}"
    raise ValueError(
        f"{rounding_text(plan)}. That is too few: rounding to {plan.steps_per_epoch} changes them by {float(off):.0%}, "
        f"and {float(_MOST):.0%} is the most. Make epochs of {times} times the clips, by `{longer}`, and divide "
        f"`max_epochs` by {times}. For a quick try of the baseline, leave out the callback."
    )


def rounding(steps: Fraction) -> Fraction:
    """By which share a number of steps is rounded."""
    return abs(max(1, round(steps)) - steps) / steps


def rounding_text(plan: Plan) -> str:
    """Says how many steps an epoch would have, and why."""
    clips = plan.schedule.clips_per_step * plan.world * plan.accumulate
    return (
        f"An epoch would have {float(plan.unrounded_steps_per_epoch):.2f} optimizer steps, as it makes "
        f"{float(plan.schedule.epoch_factor):g} passes over {plan.clips} clips, and a step has {float(clips):.0f} of "
        "them on average"
    )


def _inferred(
    arguments: Arguments, trainer: Trainer, module: nn.Module, recipe: Recipe, baseline: Baseline
) -> MultigridSchedule:
    stages = lr_stages(trainer.lr_scheduler_configs, recipe.epoch, Fraction(baseline.epochs), epochs_before(trainer))
    warmup = stages.warmup_epochs if arguments.warmup_epochs is None else exact(arguments.warmup_epochs)
    baseline = replace(baseline, warmup_epochs=warmup)  # which refuses one that is too long, before it shifts others
    given = arguments.milestones
    milestones: tuple[Epochs, ...] = stages.milestones if isinstance(given, str) else tuple(given or ())
    # With manual optimization, schedulers are ticked where the script does, without exceptions.
    stepwise = stages.stepwise and bool(stages.milestones) and trainer.lightning_module.automatic_optimization
    if not milestones:
        # One long cycle, and then the fine-tuning phase for as many steps. The LR of each epoch stays the script's.
        half = warmup + (exact(baseline.epochs) - warmup) / 2
        milestones, stepwise = (half,) if arguments.fine_tuning else (), False
    baseline = replace(baseline, milestones=milestones)
    schedule = schedule_of(arguments, baseline, stepwise, patch_divisors(module))
    if arguments.lr_scaling == "auto" and any(phase.lr_scale > 1 for phase in schedule.phases):
        schedule = replace(schedule, lr_scaling=auto_lr_scaling(trainer.optimizers))
    return schedule


def _epochs_of_try(arguments: Arguments) -> Fraction:
    """A length that fits the arguments, for `fast_dev_run`, where the Trainer's own length is 1."""
    if arguments.schedule is not None:
        return Fraction(arguments.schedule.baseline.epochs)
    milestones = arguments.milestones if isinstance(arguments.milestones, list) else []
    return Fraction(math.floor(max(0, *milestones, arguments.warmup_epochs or 0)) + 1)
