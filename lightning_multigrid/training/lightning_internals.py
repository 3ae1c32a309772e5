"""Everything of Lightning that we use and that is not public: the file to read when Lightning releases."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, Trainer

__all__ = ["LoopCounters", "Place", "log_values", "reload_every", "training_source"]


def log_values(trainer: Trainer, module: LightningModule, values: Mapping[str, float]) -> None:
    """Logs what the loggers will see."""
    # Only where Lightning hands a step's values on to the loggers, as in the other steps they are never seen and cost
    # more than all the rest of the callback. Lightning counts these steps in private (as `LearningRateMonitor` knows).
    # And at the end of an epoch, where `EarlyStopping` and `ModelCheckpoint` may be asked to watch them.
    step, every = trainer.fit_loop.epoch_loop._batches_that_stepped + 1, trainer.log_every_n_steps  # type: ignore[attr-defined]
    seen = every > 0 and step % every == 0
    if (seen or trainer.is_last_batch or trainer.should_stop or trainer.fast_dev_run) and not trainer.barebones:  # type: ignore[attr-defined]
        # As tensors of the CPU: Lightning would send numbers to the device, and wait for it.
        module.log_dict({name: torch.tensor(float(value)) for name, value in values.items()}, batch_size=1)


def _global_seed(trainer: Trainer) -> int:
    """The seed of `seed_everything`, which leaves it in this variable, else one that is drawn on rank 0."""
    given = os.environ.get("PL_GLOBAL_SEED")
    drawn = torch.randint(2**31, ()).item() if given is None else int(given)
    return cast("int", trainer.strategy.broadcast(drawn))


def training_source(trainer: Trainer) -> Any:
    """Where Lightning gets the training loader from; its `instance` may be replaced by a loader.

    Lightning has no public door to a loader that was passed to `fit` (`loops/fit_loop.py`, `FitLoop._data_source`, of
    this name since 2.0). A test fails when it changes.
    """
    source = getattr(trainer.fit_loop, "_data_source", None)
    if source is None or not callable(getattr(source, "dataloader", None)):
        raise MisconfigurationException(
            "MultigridCallback cannot find the training loader in this version of Lightning. Install a version that "
            "the package's requirements name."
        )
    return source


def reload_every(trainer: Trainer, epochs: int) -> None:
    """Makes Lightning request its loaders anew at the start of every so many epochs; 0 is never."""
    # Lightning sets this attribute where a type checker does not see it (`_DataConnector.on_trainer_init`).
    trainer.reload_dataloaders_every_n_epochs = epochs  # type: ignore[attr-defined]


class Place(NamedTuple):
    """The mini-batch that comes next: its epoch, and its number in the epoch, both from 0."""

    epoch: int
    batch: int


class LoopCounters:
    """Lightning's own counters in a checkpoint.

    Their layout is not public (`_FitLoop.state_dict`; `loops/progress.py`). Tests that resume at every step fail when
    it changes.

    Args:
        checkpoint: As Lightning saves and loads it; the counters are changed in it.
    """

    def __init__(self, checkpoint: dict[str, Any]) -> None:
        self._loop = checkpoint["loops"]["fit_loop"]
        self._epochs = self._loop["epoch_progress"]
        self._batches = self._loop["epoch_loop.batch_progress"]

    @property
    def place(self) -> Place:
        """Where it continues."""
        epochs, batches = self._epochs["current"], self._batches["current"]
        if epochs["started"] == epochs["processed"]:
            return Place(epochs["processed"], 0)
        if self._batches["is_last_batch"] and batches["processed"] == batches["ready"]:
            return Place(epochs["processed"] + 1, 0)
        return Place(epochs["processed"], batches["processed"])

    @property
    def optimizer_steps(self) -> int:
        """Since the training was started."""
        progress = self._loop["epoch_loop.automatic_optimization.optim_progress"]
        return int(progress["optimizer"]["step"]["total"]["completed"])

    def close_finished_epoch(self) -> None:
        """Mends where Lightning continues after a checkpoint of the last `on_train_batch_end` of an epoch.

        Lightning takes the epoch for finished if it has as many batches as the *next* one, whose length differs here
        (`loops/training_epoch_loop.py`, `reset`). With the batch counted as completed it closes the epoch either way.
        """
        current = self._batches["current"]
        if self._batches["is_last_batch"] and current["completed"] + 1 == current["processed"] == current["ready"]:
            current["completed"] += 1
            self._batches["total"]["completed"] += 1

    def forget_loader(self) -> None:
        """Drops what keeps a training without the callback from continuing at an epoch's end; see `MultigridLoader`."""
        self._loop["state_dict"].pop("combined_loader", None)

    def move(self, place: Place) -> None:
        """Makes Lightning continue somewhere else, as if a step or an epoch had just ended there."""
        done = dict.fromkeys(("ready", "started", "processed", "completed"), place.epoch)
        for progress in (self._epochs["total"], self._epochs["current"]):
            progress.update(done)
        self._batches["is_last_batch"] = False
        if place.batch:
            for progress in (self._epochs["total"], self._epochs["current"]):
                progress.update(ready=place.epoch + 1, started=place.epoch + 1)
            total = self._batches["total"]["processed"] + place.batch - self._batches["current"]["processed"]
            for progress, batches in ((self._batches["total"], total), (self._batches["current"], place.batch)):
                progress.update(ready=batches, started=batches, processed=batches, completed=batches - 1)
        validation = self._loop["epoch_loop.val_loop.batch_progress"]  # none is under way there
        for progress in (validation["total"], validation["current"]):
            progress.update(dict.fromkeys(progress, 0))
