"""`EarlyStopping` waits for the last phase."""

import sys
from typing import Any

from lightning_multigrid.host import Trainer, callbacks_of
from lightning_multigrid.schedule import Plan, Step
from lightning_multigrid.training.trainer.changes import Changes


class Patience:
    """Holds the patience of `EarlyStopping` until the last phase, as metrics may stand still while grids are coarse."""

    def __init__(self, plan: Plan, trainer: Trainer) -> None:
        self._stopping = [] if plan.schedule.is_baseline else callbacks_of(trainer, "EarlyStopping")
        self._plan, self._last_phase = plan, len(plan.schedule.phases) - 1
        self._held: dict[Any, int] = {}  # the patience of each, while it does not count

    def start(self, changes: Changes) -> None:
        changes.callback(self._release)

    def hold(self, following: Step) -> None:
        """Holds it if no step of the last phase is before this one: also in a validation in between."""
        done = following.place.epoch * self._plan.batches_per_epoch + following.place.batch
        for stopping in self._stopping:
            if done <= sum(self._plan.phase_steps[:-1]) and stopping.patience != sys.maxsize:
                self._held[stopping] = stopping.patience
                stopping.patience = sys.maxsize

    def release(self, step: Step) -> None:
        """Lets it count from the first step of the last phase on."""
        if self._held and step.phase == self._last_phase:
            self._release()

    def _release(self) -> None:
        while self._held:
            stopping, patience = self._held.popitem()
            stopping.patience, stopping.wait_count = patience, 0

    def make_ordinary(self, checkpoint: dict[str, Any]) -> None:
        """Makes a checkpoint fit for trainings without the callback."""
        for stopping, patience in self._held.items():
            state = checkpoint["callbacks"].get(stopping.state_key)
            if state is not None:
                state.update(wait_count=0, patience=patience)
