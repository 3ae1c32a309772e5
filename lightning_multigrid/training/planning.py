"""The plan of a training: from what a script says, and from the arguments of `MultigridCallback`.

`fit` and the command `plan` make the same one.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction

from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import nn
from torch.optim import Optimizer

from lightning_multigrid.host import MisconfigurationException, Trainer
from lightning_multigrid.positions import patch_divisors
from lightning_multigrid.schedule import Baseline, BatchShape, LRScaling, MultigridSchedule, Place, Plan
from lightning_multigrid.training.arguments import Arguments, schedule_of
from lightning_multigrid.training.lr_in_step import with_held
from lightning_multigrid.training.lr_stages import lr_stages
from lightning_multigrid.training.recipe import Recipe

# How names of classes begin whose LR grows linearly with the batch, such as timm's `SGDW`, bitsandbytes' `SGD8bit` and
# Apex's `FusedSGD`. LARS is among them by its authors (You et al. 2017).
_LINEAR = re.compile("(a|fused)?sgd|lar[sc]", re.IGNORECASE)
_GROWTH = {"linear": "grows with", "sqrt": "grows with the square root of", "none": "is not scaled with"}


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
    _warn_of_linear_lr(schedule, trainer.optimizers)
    clips, accumulate = recipe.planned_clips(schedule), trainer.accumulate_grad_batches
    start = Place(trainer.current_epoch, 0)  # of a second `fit`, not 0
    plan = Plan(schedule, clips, seed, world, accumulate, recipe.drop_last, recipe.epoch.batches, start)
    for epoch in sorted({int(phase.start_epoch) for phase in schedule.phases}):
        plan.steps(epoch)  # refuses too few clips
    return plan


def _inferred(
    arguments: Arguments, trainer: Trainer, module: nn.Module, recipe: Recipe, baseline: Baseline
) -> MultigridSchedule:
    stages = lr_stages(trainer.lr_scheduler_configs, recipe.epoch, Fraction(baseline.epochs))
    own = None if arguments.milestones is None else tuple(arguments.milestones)
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


# --- How the LR grows ---


def lr_rule(arguments: Arguments, schedule: MultigridSchedule, optimizers: Iterable[Optimizer]) -> str:
    """Says how the LR grows with the clips of a mini-batch, and why."""
    if all(phase.shape.clips == schedule.baseline.shape.clips for phase in schedule.phases):
        return "The LR is the baseline's: every base shape has its clips."
    auto = arguments.schedule is None and arguments.lr_scaling == "auto"
    names = " and ".join(dict.fromkeys(type(optimizer).__name__ for optimizer in _used(optimizers)))
    why = f"the rule for {names or 'SGD'}" if auto else f"as `lr_scaling={schedule.lr_scaling!r}` says"
    decay = "" if arguments.weight_decay_scaling == "none" else " The weight decay keeps its timescale in clips."
    return f"The LR {_GROWTH[schedule.lr_scaling]} the clips of the base shape, {why}.{decay}"


def auto_lr_scaling(optimizers: Iterable[Optimizer]) -> LRScaling:
    """Returns how the LR of optimizers grows with the clips of a mini-batch; refuses optimizers of both kinds.

    Steps of SGD are as long as the gradient, so the LR grows linearly (Sec. 3.2). Adam and its kin divide their steps
    by the size of past gradients, of which noise is a part that falls with the clips: the LR grows with the square root
    (Malladi et al. 2022, arXiv 2205.10287; LAMB by its authors).
    """
    rules: dict[LRScaling, str] = {}
    for optimizer in _used(optimizers):
        rule, name = _rule_of(optimizer), type(optimizer).__name__
        if rule is None:
            rank_zero_warn(
                f"MultigridCallback doesn't know how the LR of {name} grows with the clips of a mini-batch, and takes "
                "their square root. Give `MultigridCallback(lr_scaling=...)`: linear, sqrt or none."
            )
        rules.setdefault(rule or "sqrt", name)
    if len(rules) > 1:
        raise MisconfigurationException(
            f"The LR of {rules['linear']} grows linearly with the clips of a mini-batch, that of {rules['sqrt']} with "
            "their square root, and a plan has one scale. Give `MultigridCallback(lr_scaling=...)` for both: 'sqrt' is "
            "the careful choice."
        )
    return next(iter(rules), "linear")


def _rule_of(optimizer: Optimizer) -> LRScaling | None:
    for one in with_held(optimizer):
        if any(_LINEAR.match(kind.__name__) for kind in type(one).__mro__):
            return "linear"
        # Adam, LAMB, Lion, Muon, Adafactor and all others that divide their steps have one of these settings.
        if {"betas", "eps"} & getattr(one, "defaults", {}).keys():
            return "sqrt"
    return None


def _used(optimizers: Iterable[Optimizer]) -> list[Optimizer]:
    return [optimizer for optimizer in optimizers if optimizer.param_groups]  # Lightning's stand-in has no groups


def _warn_of_linear_lr(schedule: MultigridSchedule, optimizers: Iterable[Optimizer]) -> None:
    most = max(phase.lr_scale for phase in schedule.phases)
    others = [type(optimizer).__name__ for optimizer in _used(optimizers) if _rule_of(optimizer) == "sqrt"]
    if schedule.lr_scaling == "linear" and most > 1 and others:
        rank_zero_warn(
            f"The LR of {others[0]} will be multiplied by up to {most:g}, in proportion to the clips of a mini-batch. "
            "This is right for SGD; Adam and its kin lose accuracy or diverge. Leave `lr_scaling` out of "
            "`MultigridCallback`, or give `lr_scaling='sqrt'` to the schedule."
        )
