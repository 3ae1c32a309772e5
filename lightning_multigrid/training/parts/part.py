"""What a run is made of."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from lightning_multigrid.host import LightningModule, Trainer
from lightning_multigrid.schedule import Plan, Step
from lightning_multigrid.training.checkpoints.continuation import Continuation, State
from lightning_multigrid.training.trainer.changes import Changes
from lightning_multigrid.training.trainer.lightning_internals import step_is_logged


class Part:
    """Something that acts with the steps of a run. It knows the plan, and no other part.

    Its life: `start`, perhaps `load`; for each epoch `begin`, for each step `before` and `after`, and `end`; `rest`
    after both; `finish` and `close`. Making a part changes nothing. What it changes goes through `changes`, which
    `close` undoes, also after an error at any point.
    """

    def __init__(self, plan: Plan, trainer: Trainer) -> None:
        self.plan, self.trainer, self.changes = plan, trainer, Changes()

    @property
    def module(self) -> LightningModule:
        return self.trainer.lightning_module

    def start(self) -> None:
        """The `fit` begins: the Trainer has the settings, optimizers and schedulers of its script."""

    def load(self, found: Continuation) -> None:
        """The run continues a checkpoint."""

    def begin(self, first: Step) -> None:
        """An epoch begins, or the rest of one: its first mini-batch is needed."""

    def before(self, step: Step, mini_batch: Any) -> None:
        """A step begins."""

    def after(self, step: Step, following: Step) -> None:
        """A step has ended, and which one comes next."""

    def end(self) -> None:
        """An epoch has ended, or the script skips the rest of it."""

    def rest(self) -> None:
        """No step is under way: one has ended, or was left, or the run closes."""

    def finish(self) -> None:
        """The training has ended without an error."""

    def save(self) -> State:
        """Returns what can't be computed again, for the callback's state in a checkpoint."""
        return {}

    def make_ordinary(self, checkpoint: dict[str, Any]) -> None:
        """Makes what a checkpoint has of this part fit for trainings without the callback."""

    def close(self) -> None:
        """Undoes what it has changed."""
        self.rest()
        self.changes.close()


def log_values(trainer: Trainer, values: Callable[[], Mapping[str, float]]) -> None:
    """Logs values in steps that loggers get, and at the end of an epoch, where callbacks may monitor them."""
    # In other steps, logging would cost more than all the rest of the callback.
    seen = step_is_logged(trainer) or trainer.is_last_batch or trainer.should_stop
    if (seen or trainer.fast_dev_run) and not trainer.barebones:  # type: ignore[attr-defined]
        # As tensors of the CPU: Lightning would send numbers to the device, and wait for it.
        tensors = {name: torch.tensor(float(value)) for name, value in values().items()}
        trainer.lightning_module.log_dict(tensors, batch_size=1)
