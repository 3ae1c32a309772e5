"""What counts epochs counts the baseline's: validations, and what goes by them."""

import sys
from collections.abc import Set
from functools import cache

from lightning_multigrid.host import Trainer, is_a
from lightning_multigrid.schedule import Plan
from lightning_multigrid.training.lightning_internals import checks_in
from lightning_multigrid.training.lr_stages import is_plateau
from lightning_multigrid.training.takeover import Takeover


def count_baseline_epochs(plan: Plan, trainer: Trainer, takeover: Takeover, per_phase: int | None = None) -> float:
    """Makes validations as many as in the baseline, at the same points of its clock, or about `per_phase` in a phase.

    `EarlyStopping`, `ModelCheckpoint` and `ReduceLROnPlateau` act where they would in the baseline, or count the
    validations of the phases. There is a validation after the last epoch, for the checkpoint that counts.
    Returns how many validations the baseline has for each one of this run.
    """
    every = trainer.check_val_every_n_epoch
    if every is None or trainer.fast_dev_run:  # type: ignore[attr-defined]
        return 1.0  # mini-batches decide
    schedule = plan.schedule
    chosen = [] if per_phase is None else sorted(schedule.validation_epochs(per_phase))

    @cache
    def ends(number: int) -> Set[int]:
        return {*chosen[number - 1 :: number], chosen[-1]} if chosen else schedule.baseline_epoch_ends(number)

    def counting(epochs: Set[int]) -> property:
        """Every how many epochs, for Lightning's rule `(current_epoch + 1) % every == 0`."""
        return property(lambda _: 1 if trainer.current_epoch in epochs else sys.maxsize)

    name = "check_val_every_n_epoch"

    def now(trainer: Trainer) -> int | None:
        own: int | None = vars(trainer)[name]  # a script may set it while `fit` runs
        return own and (1 if trainer.current_epoch in ends(1 if chosen else own) else sys.maxsize)

    takeover.subclass(trainer, {name: property(now, lambda trainer, value: vars(trainer).update({name: value}))})
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if is_a(callback, "callbacks.EarlyStopping", "callbacks.ModelCheckpoint"):
            takeover.subclass(callback, checks_in(callback, lambda number: trainer.current_epoch in ends(number)))
    for config in filter(is_plateau, trainer.lr_scheduler_configs):
        if config.interval == "epoch":
            takeover.subclass(config, {"frequency": counting(ends(config.frequency))})
    return max(1, int(schedule.baseline.epochs) // every) / len(ends(1 if chosen else every))
