"""What of a script means something else under multigrid training, and can't be converted.

There are more epochs than in the script, and their numbers of steps differ. There are fewer steps, and most of them
have many more clips. `docs/differences.md` lists everything; a run says what its script really uses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
from torch.optim import SGD
from torch.optim.lr_scheduler import ReduceLROnPlateau

from lightning_multigrid.lightning import Trainer
from lightning_multigrid.schedule import MultigridSchedule

Change = Callable[[Trainer, MultigridSchedule], str | None]


def tell_changed_meaning(trainer: Trainer, schedule: MultigridSchedule, validates_by_phase: bool = False) -> None:
    """Says each thing that a script uses and that changes meaning, and warns of the one that is unproven."""
    for change in CHANGES:
        said = None if validates_by_phase and change is validation else change(trainer, schedule)
        if said is not None:
            (rank_zero_warn if change is adaptive_lr else rank_zero_info)(said)


def _callbacks(trainer: Trainer, name: str) -> Iterator[Any]:
    """The callbacks of a class of Lightning, of either of its packages, by its name."""
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    return (item for item in callbacks if any(kind.__name__ == name for kind in type(item).__mro__))


def adaptive_lr(trainer: Trainer, schedule: MultigridSchedule) -> str | None:
    """The linear scale is unproven for optimizers other than SGD."""
    used = [optimizer for optimizer in trainer.optimizers if optimizer.param_groups]  # a stand-in has no groups
    adaptive = [type(optimizer).__name__ for optimizer in used if not isinstance(optimizer, SGD)]
    most = max(phase.lr_scale for phase in schedule.phases)
    if not adaptive or schedule.lr_scaling != "linear" or most <= 1:
        return None
    return (
        f"The LR of {adaptive[0]} will be multiplied by up to {most:g}, with the clips of a mini-batch. The paper does "
        "this with SGD; with adaptive optimizers it is unproven. If training diverges, use "
        "`MultigridCallback(lr_scaling='sqrt')` or `lr_scaling='none'`."
    )


def early_stopping(trainer: Trainer, schedule: MultigridSchedule) -> str | None:
    """Patience counts validations, of which a coarse phase may have many."""
    patience = [callback.patience for callback in _callbacks(trainer, "EarlyStopping")]
    if not patience:
        return None
    longest = max(float(phase.end_epoch - phase.start_epoch) for phase in schedule.phases)
    return (
        f"`EarlyStopping(patience={min(patience)})` counts validations of this run. The longest phase has "
        f"{longest:.3g} epochs, and the metric may stand still until a coarse phase ends. Use a larger patience."
    )


def plateau(trainer: Trainer, schedule: MultigridSchedule) -> str | None:
    """So does the patience of a scheduler that looks at a metric."""
    found = [s for c in trainer.lr_scheduler_configs if isinstance(s := c.scheduler, ReduceLROnPlateau)]
    if not found:
        return None
    return (
        f"`ReduceLROnPlateau(patience={found[0].patience})` counts {_epochs(schedule)}, and the metric "
        "may stand still until a coarse phase ends."
    )


def checkpoints(trainer: Trainer, schedule: MultigridSchedule) -> str | None:
    """Checkpoints every so many steps or epochs."""
    for callback in _callbacks(trainer, "ModelCheckpoint"):
        # The key of its state is public, and says its settings.
        every = dict(re.findall(r"'(every_n_\w+)': (\d+)", callback.state_key))
        if int(every.get("every_n_train_steps", 0)):
            fewer = f"steps of this run, which has {schedule.iteration_reduction:.2g} times fewer than the baseline"
            return f"`ModelCheckpoint(every_n_train_steps={every['every_n_train_steps']})` counts {fewer}."
        if int(every.get("every_n_epochs", 0)) > 1:
            return f"`ModelCheckpoint(every_n_epochs={every['every_n_epochs']})` counts {_epochs(schedule)}."
    return None


def validation(trainer: Trainer, schedule: MultigridSchedule) -> str | None:
    """Validations every so many epochs."""
    every = trainer.check_val_every_n_epoch
    if every is None or every == 1:
        return None
    return (
        f"`check_val_every_n_epoch={every}` counts {_epochs(schedule)}. `MultigridCallback(validations_per_phase=...)` "
        "says it in phases."
    )


def weight_average(trainer: Trainer, schedule: MultigridSchedule) -> str | None:
    """Averages of the weights."""
    name = next((type(callback).__name__ for callback in _callbacks(trainer, "WeightAveraging")), None)
    fewer = schedule.iteration_reduction
    return name and (
        f"`{name}` averages over steps of this run, which has {fewer:.2g} times fewer than the baseline. To look back "
        f"over as many clips, raise a decay to the power of {fewer:.2g} (0.999 to {0.999**fewer:.4f})."
    )


def time_limit(trainer: Trainer, schedule: MultigridSchedule) -> str | None:
    """A limit in time may end the run on a coarse grid."""
    if not any(_callbacks(trainer, "Timer")):
        return None
    return (
        "`max_time` is time, as ever. If it ends the run before the plan, the last phases, on fine grids, are missing."
    )


def finetuning(trainer: Trainer, schedule: MultigridSchedule) -> str | None:
    """Layers that a callback thaws at an epoch."""
    name = next((type(callback).__name__ for callback in _callbacks(trainer, "BaseFinetuning")), None)
    return name and f"`{name}` thaws layers at {_epochs(schedule)}."


def _epochs(schedule: MultigridSchedule) -> str:
    return f"epochs of this run, {schedule.epochs} instead of the baseline's {float(schedule.baseline.epochs):g}"


CHANGES: tuple[Change, ...] = (
    adaptive_lr, early_stopping, plateau, checkpoints, validation, weight_average, time_limit, finetuning,
)  # fmt: skip
