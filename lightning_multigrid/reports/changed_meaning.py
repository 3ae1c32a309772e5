"""What of a script means something else under multigrid training, and can't be converted.

`docs/script.md` lists everything; a run says what surprises most, if its script uses it.
"""

from collections.abc import Iterator
from typing import Any

from lightning_utilities.core.rank_zero import rank_zero_info
from torch.optim.lr_scheduler import ReduceLROnPlateau

from lightning_multigrid.host import Trainer, is_a
from lightning_multigrid.schedule import MultigridSchedule

_FEW_STEPS = 20  # two horizons of BatchNorm's default momentum


def tell_changed_meaning(trainer: Trainer, schedule: MultigridSchedule) -> None:
    """Says each thing that a script uses and that changes meaning."""
    for said in _changed(trainer, schedule):
        rank_zero_info(said)


def tell_few_steps(trainer: Trainer, steps: int, scale: float) -> None:
    """Says what the first validations mean, if epochs have few steps. `scale` is the LR's in the first phase."""
    if trainer.enable_validation and steps < _FEW_STEPS:
        rank_zero_info(
            f"The first epoch has {steps} steps, at {scale:g} times the baseline's LR. BatchNorm's running statistics "
            "can't follow weights that change so fast, so the metrics of the first validations say little about the "
            "weights. `MultigridCallback(precise_bn_batches=10)` re-estimates the statistics before each validation."
        )


def _changed(trainer: Trainer, schedule: MultigridSchedule) -> Iterator[str]:
    fewer = schedule.iteration_reduction
    patience = [callback.patience for callback in _callbacks(trainer, "EarlyStopping")]
    if patience and not schedule.constant_shape:
        last = schedule.phases[-1]
        yield (
            f"`EarlyStopping(patience={min(patience)})` counts only in the last phase, from epoch "
            f"{float(last.start_epoch):.2f} to {float(last.end_epoch):g}: before it, the metric may stand still until "
            "a coarse phase ends. Its thresholds and its check for finite values hold throughout."
        )
    module = trainer.lightning_module
    of_timm = [part for part in (*vars(module).values(), *module.children()) if "ModelEma" in type(part).__name__]
    for average in [*_callbacks(trainer, "WeightAveraging"), *of_timm][:1]:
        yield (
            f"`{type(average).__name__}` averages over steps of this run, which has {fewer:.2g} times fewer than the "
            f"baseline. To look back over as many clips, raise a decay to the power of {fewer:.2g} (0.999 to "
            f"{0.999**fewer:.4f})."
        )
    for callback in _callbacks(trainer, "BaseFinetuning")[:1]:
        yield (
            f"`{type(callback).__name__}` thaws layers at epochs of this run, {schedule.epochs} instead of the "
            f"baseline's {float(schedule.baseline.epochs):g}."
        )
    schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
    for plateau in [scheduler for scheduler in schedulers if isinstance(scheduler, ReduceLROnPlateau)][:1]:
        name = f"`ReduceLROnPlateau(patience={plateau.patience})`"
        yield f"{name} may see its metric stand still until a coarse phase ends."


def _callbacks(trainer: Trainer, name: str) -> list[Any]:
    return [callback for callback in trainer.callbacks if is_a(callback, f"callbacks.{name}")]  # type: ignore[attr-defined]
