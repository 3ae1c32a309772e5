"""What of a script means something else under multigrid training, and can't be converted.

`docs/differences.md` lists everything; a run names what surprises most, if its script uses it.
"""

from datetime import timedelta

from torch.optim.lr_scheduler import ReduceLROnPlateau

from lightning_multigrid.host import Trainer, callbacks_of, tell
from lightning_multigrid.schedule import MultigridSchedule, Plan, counted

_FEW = 20  # mini-batches: two horizons of BatchNorm's default momentum


def tell_changed_meaning(trainer: Trainer, schedule: MultigridSchedule) -> None:
    """Names what a script uses and that changes meaning."""
    module = trainer.lightning_module
    parts, schedulers = (
        (*vars(module).values(), *module.children()),
        (c.scheduler for c in trainer.lr_scheduler_configs),
    )
    averages = [*callbacks_of(trainer, "WeightAveraging"), *(p for p in parts if "ModelEma" in type(p).__name__)]
    plateaus = [scheduler for scheduler in schedulers if isinstance(scheduler, ReduceLROnPlateau)]
    used = [*averages, *callbacks_of(trainer, "EarlyStopping"), *plateaus]
    if used:
        names = ", ".join(dict.fromkeys(f"`{type(one).__name__}`" for one in used))
        fewer = schedule.iteration_reduction
        example = f"{fewer:.2g}, for instance 0.999 as {0.999**fewer:.4g}"
        decay = f" To look back over as many epochs, write a decay d as d**{example}." if averages else ""
        tell(
            f"{names}: what counts steps, or compares metrics of several epochs, means something else in this run. Its "
            f"epochs are the script's, with {fewer:.2g} times fewer steps, and the first phases are coarse.{decay} "
            "See `docs/differences.md` in the repository."
        )
    timers = callbacks_of(trainer, "Timer")
    left = timers[0].time_remaining("train") if timers else None
    if left is not None and len(schedule.phases) > 1:
        tell(
            f"The time limit of {timedelta(seconds=round(left))} changes no phase: they are shares of "
            f"{float(schedule.baseline.epochs):g} epochs, and a training that it ends earlier lacks the last ones, on "
            "the baseline's grid. Give as many `max_epochs` as the time allows."
        )


def tell_few_steps(trainer: Trainer, plan: Plan) -> None:
    """Says what the first validations mean, if epochs have few mini-batches."""
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
