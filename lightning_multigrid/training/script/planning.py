"""The plan of a training: from what a script says, and from the arguments of `MultigridCallback`.

`fit` and the command `plan` make the same one.
"""

import math
from dataclasses import replace
from fractions import Fraction
from itertools import count

from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import nn

from lightning_multigrid.host import Trainer, tell
from lightning_multigrid.positions import patch_divisors
from lightning_multigrid.schedule import NEVER, Baseline, BatchShape, Epochs, MultigridSchedule, Plan, exact
from lightning_multigrid.training.arguments import Arguments, schedule_of
from lightning_multigrid.training.script.lr_stages import epochs_before, lr_stages
from lightning_multigrid.training.script.optimizers import auto_lr_scaling, refuse_hidden, warn_of_linear_lr
from lightning_multigrid.training.script.recipe import Recipe

# How far the steps of an epoch may be rounded before it is said, and refused.
_SAID, _REFUSED = Fraction(1, 20), Fraction(1, 4)


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
    else:
        _tell_held_lr(schedule, trainer, recipe)
    refuse_hidden(schedule, module, trainer.optimizers)
    warn_of_linear_lr(schedule, trainer.optimizers)
    of_epoch = trainer.accumulate_grad_batches, recipe.epoch.batches
    return Plan(schedule, recipe.clips, seed, world, *of_epoch)


def check_steps(plan: Plan) -> None:
    """Refuses epochs of too few steps for a plan, and says what few steps or clips do to it."""
    _check_rounding(plan)
    _tell_few(plan)


def _check_rounding(plan: Plan) -> None:
    """Refuses epochs of so few steps that their rounding changes the training, and says a smaller rounding."""
    wanted, steps = plan.unrounded_steps_per_epoch, plan.steps_per_epoch
    off = _rounding(wanted)
    if off <= _SAID:
        return
    text = (
        f"An epoch would have {float(wanted):.2f} optimizer steps, as it makes {float(plan.schedule.epoch_factor):g} "
        f"passes over {plan.clips} clips, and a step has {float(_clips_per_step(plan)):.0f} of them on average"
    )
    ways = "`accumulate_grad_batches` or `batch_size`" if plan.accumulate > 1 else "`batch_size`"
    if off > _REFUSED:
        times = next(times for times in count(2) if _rounding(times * wanted) <= _REFUSED)  # from 2 steps on, all are
        raise ValueError(
            f"{text}. That is too few: rounding to {steps} changes them by {float(off):.0%}, and {float(_REFUSED):.0%} "
            f"is the most. Use 1/{times} of {ways}, or epochs of {times} times the clips, with `max_epochs` divided by "
            f"{times}: `torch.utils.data.ConcatDataset([dataset] * {times})`. For a quick try of the baseline, leave "
            "out the callback."
        )
    tell(f"{text}: they are rounded to {steps}, by {float(off):.0%}. A smaller {ways} rounds less.")


def _rounding(steps: Fraction) -> Fraction:
    """Returns by which share a number of steps is rounded."""
    return abs(max(1, round(steps)) - steps) / steps


def _clips_per_step(plan: Plan) -> Fraction:
    return plan.schedule.clips_per_step * plan.world * plan.accumulate


def _tell_few(plan: Plan) -> None:
    """Says what few steps or few clips do to a plan."""
    if not plan.phase_steps[-1]:
        rank_zero_warn(
            "The last phase, on the baseline's shape, gets no step: it begins within the last step of the training. "
            "Give more data or epochs, or a smaller `batch_size` or `accumulate_grad_batches`."
        )
    largest = plan.world * plan.accumulate * max(grid.clips for grid in plan.schedule.grids)
    if largest > plan.clips:
        tell(
            f"A step of the coarsest grid takes {largest} clips, more than the {plan.clips} of a pass over the data: "
            "some of them come twice in it."
        )


def _inferred(
    arguments: Arguments, trainer: Trainer, module: nn.Module, recipe: Recipe, baseline: Baseline
) -> MultigridSchedule:
    before = epochs_before(trainer)
    stages = lr_stages(trainer.lr_scheduler_configs, recipe.epoch, Fraction(baseline.epochs), before)
    if stages.late and not trainer.fast_dev_run:  # type: ignore[attr-defined]
        after = ", ".join(f"{float(milestone):g}" for milestone in stages.late if milestone < NEVER)
        which = f"epoch {after}" if after else "those of a scheduler whose `frequency` is above the steps of an epoch"
        says = f"The training does not reach these milestones of the LR: {which}."
        if arguments.fine_tuning and not (stages.milestones or arguments.milestones):
            says += " So the plan is the one for an LR without stages: one long cycle, then the fine-tuning phase."
        tell(says)
    warmup = stages.warmup_epochs if arguments.warmup_epochs is None else exact(arguments.warmup_epochs)
    baseline = replace(baseline, warmup_epochs=warmup)  # which refuses one that is too long, before it shifts others
    milestones: tuple[Epochs, ...] = stages.milestones if arguments.milestones is None else tuple(arguments.milestones)
    # With manual optimization, schedulers are ticked where the script does, without exceptions.
    stepwise = stages.stepwise and bool(stages.milestones) and trainer.lightning_module.automatic_optimization
    if arguments.one_pass or not milestones:
        # One long cycle, and then the fine-tuning phase for as many steps. The LR of each epoch stays the script's.
        half = warmup + (exact(baseline.epochs) - warmup) / 2
        milestones, stepwise = (half,) if arguments.fine_tuning else (), False
    baseline = replace(baseline, milestones=milestones)
    schedule = schedule_of(arguments, baseline, stepwise, patch_divisors(module))
    if arguments.lr_scaling == "auto" and any(phase.lr_scale > 1 for phase in schedule.phases):
        schedule = replace(schedule, lr_scaling=auto_lr_scaling(trainer.optimizers))
    return schedule


def _tell_held_lr(schedule: MultigridSchedule, trainer: Trainer, recipe: Recipe) -> None:
    """Says that a given schedule holds the LR, where the script's may change it smoothly."""
    baseline, configs = schedule.baseline, trainer.lr_scheduler_configs
    if schedule.holds_lr and not lr_stages(configs, recipe.epoch, Fraction(baseline.epochs)).stepwise:
        start, end = float(baseline.milestones[-1]), float(baseline.epochs)
        tell(
            f"The schedule is `stepwise`: from epoch {start:g} to {(start + end) / 2:g}, in the first half of the "
            "fine-tuning phase, the LR stays that of the stage before. This is right for an LR that falls in "
            "steps, but a scheduler of the script may change it within a stage. For such an LR, give "
            "`MultigridSchedule(..., stepwise=False)`."
        )


def _epochs_of_try(arguments: Arguments) -> Fraction:
    """A length that fits the arguments, for `fast_dev_run`, where the Trainer's own length is 1."""
    if arguments.schedule is not None:
        return Fraction(arguments.schedule.baseline.epochs)
    return Fraction(math.floor(max(0, *(arguments.milestones or ()), arguments.warmup_epochs or 0)) + 1)
