"""What a run adds to the Trainer: values that are logged, and callbacks."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from lightning_multigrid.host import Callback, Trainer
from lightning_multigrid.training.trainer.changes import Changes
from lightning_multigrid.training.trainer.lightning_internals import step_is_logged


def log_values(trainer: Trainer, values: Callable[[], Mapping[str, float]]) -> None:
    """Logs values in steps that loggers get, and at the end of an epoch, where callbacks may monitor them."""
    # In other steps, logging would cost more than all the rest of the callback.
    seen = step_is_logged(trainer) or trainer.is_last_batch or trainer.should_stop
    if (seen or trainer.fast_dev_run) and not trainer.barebones:  # type: ignore[attr-defined]
        # As tensors of the CPU: Lightning would send numbers to the device, and wait for it.
        tensors = {name: torch.tensor(float(value)) for name, value in values().items()}
        trainer.lightning_module.log_dict(tensors, batch_size=1)


def add_callback(trainer: Trainer, callback: Callback, changes: Changes, first: bool = False) -> None:
    """Adds a callback to the Trainer, as the last or the first one, until `changes` are undone."""
    host: Any = trainer
    # Lightning may be iterating over the list, and would call a callback again if another one came before it.
    host.callbacks = [callback, *host.callbacks] if first else [*host.callbacks, callback]

    def remove() -> None:
        # Lightning may be iterating over the list: if it became shorter, Lightning would skip a callback.
        host.callbacks = [other for other in host.callbacks if other is not callback]

    changes.callback(remove)
