"""The plan of a training: from what a script says, and from the arguments of `MultigridCallback`.

`fit` and the command `plan` make the same one.
"""

import math
from dataclasses import replace
from fractions import Fraction

from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
from torch import nn

from lightning_multigrid.host import Trainer
from lightning_multigrid.positions import patch_divisors
from lightning_multigrid.schedule import Baseline, BatchShape, Epochs, MultigridSchedule, Plan, exact
from lightning_multigrid.training.arguments import Arguments, schedule_of
from lightning_multigrid.training.script.lr_stages import lr_stages
from lightning_multigrid.training.script.optimizers import auto_lr_scaling, warn_of_linear_lr
from lightning_multigrid.training.script.recipe import Recipe


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
    """Returns the plan of a training on `world` devices; refuses too few clips for the first mini-batch.

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
    warn_of_linear_lr(schedule, trainer.optimizers)
    clips, accumulate = recipe.planned_clips(schedule), trainer.accumulate_grad_batches
    plan = Plan(schedule, clips, seed, world, accumulate, recipe.drop_last, recipe.epoch.batches)
    for phase in schedule.phases:
        plan.refuse_few_clips(int(phase.start_epoch))
    if trainer.fast_dev_run:  # type: ignore[attr-defined]
        return plan
    largest = accumulate * max(grid.clips for grid in schedule.grids)
    if not plan.phase_steps[-1]:
        rank_zero_warn(
            "The last phase, on the baseline's shape, gets no step: it begins within the last step of the training. "
            "Give more data or epochs, or a smaller `batch_size` or `accumulate_grad_batches`."
        )
    if accumulate > 1 and largest > clips:
        rank_zero_info(
            f"{accumulate} mini-batches of the coarsest grid have {largest} clips, more than an epoch of "
            f"{float(clips):g}, so its optimizer steps have fewer. Use a smaller `accumulate_grad_batches`, or more "
            "data."
        )
    return plan


def _inferred(
    arguments: Arguments, trainer: Trainer, module: nn.Module, recipe: Recipe, baseline: Baseline
) -> MultigridSchedule:
    stages = lr_stages(trainer.lr_scheduler_configs, recipe.epoch, Fraction(baseline.epochs))
    if stages.late and not trainer.fast_dev_run:  # type: ignore[attr-defined]
        after = ", ".join(f"{float(milestone):g}" for milestone in stages.late)
        rank_zero_info(f"Milestones of the LR that the training does not reach: epoch {after} of the baseline.")
    own: tuple[Epochs, ...] | None = None if arguments.milestones is None else tuple(arguments.milestones)
    if arguments.one_pass:
        own = (exact(baseline.epochs) / 2,)
    warmup = stages.warmup_epochs if arguments.warmup_epochs is None else arguments.warmup_epochs
    baseline = replace(baseline, milestones=stages.milestones if own is None else own, warmup_epochs=warmup)
    schedule = schedule_of(arguments, baseline, stages.stepwise, patch_divisors(module))
    if arguments.lr_scaling == "auto" and any(phase.lr_scale > 1 for phase in schedule.phases):
        schedule = replace(schedule, lr_scaling=auto_lr_scaling(trainer.optimizers))
    return schedule


def _epochs_of_try(arguments: Arguments) -> Fraction:
    """A length that fits the arguments, for `fast_dev_run`, where the Trainer's own length is 1."""
    if arguments.schedule is not None:
        return Fraction(arguments.schedule.baseline.epochs)
    return Fraction(math.floor(max(0, *(arguments.milestones or ()), arguments.warmup_epochs or 0)) + 1)
