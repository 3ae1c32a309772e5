"""What is said of a training before its first step, by `fit` and by `plan`: all of it is put together here."""

from collections.abc import Iterable, Iterator

from lightning_utilities.core.rank_zero import rank_zero_warn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from lightning_multigrid.host import Trainer, callbacks_of, tell
from lightning_multigrid.norm import tracking_layers
from lightning_multigrid.schedule import MultigridSchedule, Plan, counted, exact
from lightning_multigrid.training.arguments import Arguments
from lightning_multigrid.training.script.lr_stages import epochs_before, lr_stages
from lightning_multigrid.training.script.optimizers import decays_apart, own_warmups, rule_of, with_groups, with_held
from lightning_multigrid.training.script.planning import rounding, rounding_text
from lightning_multigrid.training.trainer.lightning_internals import counted_checkpoints

_SAID = 0.05  # by how much the steps of an epoch may be rounded before it is said
_FEW = 20  # mini-batches: two horizons of BatchNorm's default momentum
_GROWTH = {"linear": "grows with", "sqrt": "grows with the square root of", "none": "is not scaled with"}


def tell_plan(arguments: Arguments, trainer: Trainer, plan: Plan, following: Iterable[str] = ()) -> None:
    """Says what a plan does, and what of the script means something else. `following` names positions."""
    tell_notes(arguments, trainer, plan)
    has_statistics = bool(tracking_layers(trainer.lightning_module))
    if not plan.schedule.is_baseline:
        for text in _changed_meaning(trainer, plan.schedule):
            tell(text)
        if has_statistics and arguments.precise_bn_batches is None:
            _tell_first_validations(trainer, plan)
    tell(lr_rule(arguments, plan.schedule, trainer.optimizers))
    if has_statistics:
        tell(_statistics(plan))
    if following:
        tell(f"Positions follow the grid: {', '.join(following)}.")


def tell_notes(arguments: Arguments, trainer: Trainer, plan: Plan) -> None:
    """Says what of a plan may not be meant."""
    schedule, optimizers = plan.schedule, trainer.optimizers
    if not trainer.fast_dev_run:  # type: ignore[attr-defined]
        _tell_few(plan)
    epochs = exact(schedule.baseline.epochs)
    smooth = not lr_stages(trainer.lr_scheduler_configs, plan.baseline_length, epochs).stepwise
    if arguments.schedule is not None and schedule.holds_lr and smooth:
        start = float(schedule.baseline.milestones[-1])
        tell(
            f"The schedule is `stepwise`: from epoch {start:g} to {(start + float(epochs)) / 2:g}, in the first half "
            "of the fine-tuning phase, training keeps the LR of the stage before. For an LR that does not fall in "
            "steps, give `MultigridSchedule(..., stepwise=False)`."
        )
    most = max(phase.lr_scale for phase in schedule.phases)
    others = [type(one).__name__ for one in with_groups(optimizers) if rule_of(one) == "sqrt"]
    if schedule.lr_scaling == "linear" and most > 1 and others:
        rank_zero_warn(
            f"The LR of {others[0]} will be multiplied by up to {most:g}, in proportion to the clips of a mini-batch. "
            "This is right for SGD; Adam and similar optimizers lose accuracy or diverge. Leave `lr_scaling` out of "
            "`MultigridCallback`, or give `lr_scaling='sqrt'` to the schedule."
        )
    if before := epochs_before(trainer):
        tell(
            f"This `fit` goes on at epoch {before} of a plan of {float(epochs):g} epochs, with the phases from there "
            "on. For a plan of its own, give it a new Trainer."
        )
    steps = plan.baseline_length.ticks(epochs, "step", frequency=1)
    counting = [*own_warmups(optimizers), *counted_checkpoints(trainer)]
    for name, value in counting if steps != plan.optimizer_steps else ():
        tell(
            f"{name} counts the {plan.optimizer_steps} steps of this run. If it means the {steps} of the script, "
            f"give {max(1, round(value * plan.optimizer_steps / steps))} for the same share of the training."
        )


def lr_rule(arguments: Arguments, schedule: MultigridSchedule, optimizers: Iterable[Optimizer]) -> str:
    """Says how the LR grows with the clips of a mini-batch, and why."""
    if all(phase.shape.clips == schedule.baseline.shape.clips for phase in schedule.phases):
        return "The LR is the baseline's: every base shape has its clips."
    auto, used = arguments.schedule is None and arguments.lr_scaling == "auto", with_groups(optimizers)
    names = " and ".join(dict.fromkeys(type(optimizer).__name__ for optimizer in used))
    why = f"the rule for {names or 'SGD'}" if auto else f"as `lr_scaling={schedule.lr_scaling!r}` says"
    groups = [(one, group) for optimizer in used for one in with_held(optimizer) for group in one.param_groups]
    apart = schedule.lr_scaling == "sqrt" and any(decays_apart(one, group) for one, group in groups)
    decay = " So does the weight decay." if apart else ""
    betas = " The betas are those of a step." if any("betas" in group for _, group in groups) else ""
    return f"The LR {_GROWTH[schedule.lr_scaling]} the clips of the base shape, {why}.{decay}{betas}"


def _tell_few(plan: Plan) -> None:
    off = rounding(plan.unrounded_steps_per_epoch)
    if off > _SAID:
        tell(f"{rounding_text(plan)}: they are rounded to {plan.steps_per_epoch}, by {float(off):.0%}.")
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


def _changed_meaning(trainer: Trainer, schedule: MultigridSchedule) -> Iterator[str]:
    """Says what of the script means something else, and surprises most; `docs/differences.md` has all of it."""
    parts = *vars(trainer.lightning_module).values(), *trainer.lightning_module.children()
    averages = [*callbacks_of(trainer, "WeightAveraging"), *(p for p in parts if "ModelEma" in type(p).__name__)]
    schedulers = (config.scheduler for config in trainer.lr_scheduler_configs)
    plateaus = [scheduler for scheduler in schedulers if isinstance(scheduler, ReduceLROnPlateau)]
    used = [*averages, *plateaus]
    if used:
        names = ", ".join(dict.fromkeys(f"`{type(one).__name__}`" for one in used))
        fewer = schedule.iteration_reduction
        example = f"{fewer:.2g}, for instance 0.999 as {0.999**fewer:.4g}"
        decay = f" To look back over as many epochs, write a decay d as d**{example}." if averages else ""
        yield (
            f"{names}: what counts steps, or compares metrics of several epochs, means something else in this run. Its "
            f"epochs are the script's, with {fewer:.2g} times fewer steps, and the first phases are coarse.{decay} "
            "See `docs/differences.md` in the repository."
        )
    if callbacks_of(trainer, "EarlyStopping"):
        start = float(schedule.phases[-1].start_epoch)
        yield (
            f"The patience of `EarlyStopping` counts in the last phase, from epoch {start:g} on. Before, metrics may "
            "stand still while the grids are coarse."
        )


def _tell_first_validations(trainer: Trainer, plan: Plan) -> None:
    tries = trainer.fast_dev_run  # type: ignore[attr-defined]
    if trainer.enable_validation and not tries and plan.batches_per_epoch < _FEW:
        number = counted(plan.batches_per_epoch, "step" if plan.accumulate == 1 else "mini-batch")
        scale = plan.schedule.phases[0].lr_scale
        tell(
            f"The first epoch has {number}, and begins at {scale:.3g} times the baseline's LR. BatchNorm's running "
            "statistics can't follow weights that change so fast, so the metrics of the first validations say little "
            "about the weights. `MultigridCallback(precise_bn_batches=10)` re-estimates the statistics before each "
            "validation."
        )


def _statistics(plan: Plan) -> str:
    clips, script = plan.schedule.sub_batch, plan.schedule.baseline.shape.clips
    beside = "" if clips == script else f", the script's over {script}"
    fewer = " (all of a mini-batch that has fewer)" if script * plan.world < clips else ""
    more = ", in the short cycle over more" if plan.schedule.has_short_cycle else ""
    return f"BatchNorm has statistics over {counted(clips, 'clip')}{fewer}{more}{beside}."
