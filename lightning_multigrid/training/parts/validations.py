"""When a run validates, and what goes by its validations: as in the baseline, at the same points of its clock."""

import sys
from collections.abc import Set
from typing import Any

from lightning_multigrid.host import Trainer, is_a
from lightning_multigrid.schedule import Plan, Step
from lightning_multigrid.training.checkpoints.continuation import Continuation
from lightning_multigrid.training.parts.part import Part
from lightning_multigrid.training.script.lr_stages import is_plateau
from lightning_multigrid.training.trainer import lightning_internals as internals

_NEVER = sys.maxsize  # for Lightning's rule `(current_epoch + 1) % every == 0`


class Validations(Part):
    """Makes validations as many as in the baseline, at the same points of its clock, or about `per_phase` in a phase.

    `EarlyStopping`, `ModelCheckpoint` and `ReduceLROnPlateau` act where they would in the baseline, or count the
    validations of the phases. There is a validation after the last epoch, for the checkpoint that counts.
    `EarlyStopping` begins to lose its patience in the last phase.
    """

    def __init__(self, plan: Plan, trainer: Trainer, per_phase: int | None) -> None:
        super().__init__(plan, trainer)
        self._every: int | None = trainer.check_val_every_n_epoch  # the script's
        if per_phase is not None and self._every is None:
            raise ValueError(
                "`validations_per_phase` counts validations at the ends of epochs, so with "
                "`Trainer(check_val_every_n_epoch=None)`, which counts mini-batches, it would have no effect. Leave "
                "one of them out."
            )
        self._chosen = [] if per_phase is None else sorted(plan.schedule.validation_epochs(per_phase))
        callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
        self._stopping = [one for one in callbacks if is_a(one, "callbacks.EarlyStopping")]
        self._saving = [one for one in callbacks if is_a(one, "callbacks.ModelCheckpoint")]
        self._plateaus = [one for one in trainer.lr_scheduler_configs if is_plateau(one) and one.interval == "epoch"]
        self._holds = not plan.schedule.constant_shape
        self._last_phase = len(plan.schedule.phases) - 1
        self._held: dict[Any, int] = {}  # the patience of each `EarlyStopping`, while it does not count
        self._counts: list[tuple[Any, str, Set[int], tuple[Any, Any]]] = []  # owner, name, epochs that are due, values

    @property
    def baseline_per_own(self) -> float:
        """How many validations the baseline has for each one of this run."""
        if self._every is None or self.trainer.fast_dev_run:  # type: ignore[attr-defined]
            return 1.0  # mini-batches decide
        epochs = int(self.plan.schedule.baseline.epochs)
        return max(1, epochs // self._every) / len(self._ends(1 if self._chosen else self._every))

    def _ends(self, number: int) -> Set[int]:
        """The epochs that end with every `number`-th validation or epoch of the baseline."""
        if self._chosen:
            return {*self._chosen[number - 1 :: number], self._chosen[-1]}
        return self.plan.schedule.baseline_epoch_ends(number)

    def start(self) -> None:
        trainer, changes = self.trainer, self.changes
        interval = trainer.val_check_interval
        if isinstance(interval, int) and not isinstance(interval, bool):
            if self._every is None:
                interval = max(1, round(interval / self.plan.schedule.iteration_reduction))
            elif interval <= self.plan.baseline_length.batches:
                interval = interval / self.plan.baseline_length.batches
            changes.set_attribute(trainer, "val_check_interval", interval)
        if self._every is not None:
            self._count(trainer, "check_val_every_n_epoch", self._ends(1 if self._chosen else self._every), (1, _NEVER))
        for stopping in self._stopping:
            name = internals.CHECKS_AT_EPOCH_END
            if getattr(stopping, name):
                self._count(stopping, name, self._ends(1), (True, False))
        for saving in self._saving:
            number = saving.every_n_epochs
            if number:  # else it counts steps, or time
                # It names that number, and checkpoints are found by it.
                changes.subclass(saving, {"state_key": saving.state_key})
                self._count(saving, internals.EVERY_N_EPOCHS, self._ends(number), (1, _NEVER))
        for config in self._plateaus:
            self._count(config, "frequency", self._ends(config.frequency), (1, _NEVER))
        self._set_for(trainer.current_epoch)

    def _count(self, owner: Any, name: str, ends: Set[int], values: tuple[Any, Any]) -> None:
        self.changes.set_attribute(owner, name, getattr(owner, name))
        self._counts.append((owner, name, ends, values))

    def _set_for(self, epoch: int) -> None:
        if self.trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        for owner, name, ends, (due, otherwise) in self._counts:
            setattr(owner, name, due if epoch in ends else otherwise)

    def load(self, found: Continuation) -> None:
        self._set_for(found.epoch)

    def begin(self, first: Step) -> None:
        self._set_for(first.place.epoch)
        if self._holds and first.phase < self._last_phase:
            self._hold()

    def before(self, step: Step, mini_batch: Any) -> None:
        if self._held and step.phase == self._last_phase:
            self._release()

    # --- The patience of `EarlyStopping` ---

    def _hold(self) -> None:
        for stopping in self._stopping:
            if stopping.patience != _NEVER:
                self._held[stopping] = stopping.patience
                stopping.patience = _NEVER

    def _release(self) -> None:
        while self._held:
            stopping, patience = self._held.popitem()
            stopping.patience, stopping.wait_count = patience, 0

    def make_ordinary(self, checkpoint: dict[str, Any]) -> None:
        for stopping, patience in self._held.items():
            state = checkpoint["callbacks"].get(stopping.state_key)
            if state is not None:
                state.update(wait_count=0, patience=patience)

    def close(self) -> None:
        self._release()
        super().close()
