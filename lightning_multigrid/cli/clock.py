"""The wall clock of a training on this machine, foretold from a short one of the same model, videos and loaders."""

import logging
import math
import os
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader

from lightning_multigrid.cli.forecast import Forecast
from lightning_multigrid.cli.plan import Preview
from lightning_multigrid.reports import (
    START,
    STATISTICS,
    STEPS,
    VALIDATION,
    WAITING,
    ShapeTimes,
    StepTime,
    faster_or_slower,
)
from lightning_multigrid.schedule import BatchShape, LongCycle, MultigridSchedule, ShortCycle, duration
from lightning_multigrid.training import MultigridCallback
from lightning_multigrid.video import VideoDataModule

_SECONDS = 3.0  # of training on each base shape
_LEAST = 6  # steps on each
_VIDEOS = 64  # to train on
_VALIDATED = 32  # mini-batches
Setting = Mapping[str, Any]  # arguments of a Trainer


@dataclass
class _Epoch:
    """What an epoch after the first one took, in seconds."""

    times: "_Times"
    validation: float  # a whole one, and what is estimated before it
    statistics: float
    start: float  # of `fit`

    def account(self, steps: Mapping[BatchShape, int], epochs: int, validations: int) -> dict[str, float]:
        """Seconds of so many mini-batches of each shape, epochs and validations."""
        stepping = sum(number * self.times.stepping(shape) for shape, number in steps.items())
        whole = sum(number * self.times.step_seconds(shape) for shape, number in steps.items())
        return {
            START: self.start,
            STEPS: stepping,
            WAITING: whole - stepping + epochs * self.times.first,
            VALIDATION: validations * self.validation,
            STATISTICS: validations * self.statistics,
        }


class _Times(ShapeTimes):
    """Times of the steps, without the wait for the first mini-batch of the epoch."""

    first = 0.0

    def add(self, time: StepTime) -> None:
        if time.batch == 0:
            self.first, time = time.waiting, replace(time, waiting=0.0)
        super().add(time)


class _SecondEpoch(Callback):
    """Ends a training after two epochs, and notes the second: the first opens files and starts workers."""

    def __init__(self, multigrid: MultigridCallback) -> None:
        self._multigrid = multigrid
        self.validation = self._since = 0.0

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._multigrid.report.times = self.times = _Times({})

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._since = time.perf_counter()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.validation = time.perf_counter() - self._since

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trainer.should_stop = trainer.current_epoch == 1


@dataclass(frozen=True)
class Paces:
    """How fast short trainings with the callback and without it were, on the machine's own loaders and videos."""

    multigrid: "_Epoch"
    baseline: "_Epoch"

    def step_seconds(self, shapes: Iterable[BatchShape]) -> dict[BatchShape, float]:
        """Seconds of a step on each shape, without waiting for data."""
        return {shape: self.multigrid.times.stepping(shape) for shape in shapes}

    def foretell(self, plan: Preview, validations: int, started: float, ways_out: str) -> str:
        """Says how long the training and its baseline take by the clock, whose steps are counted.

        `started` are the seconds that a command takes before its `fit`.
        """
        schedule, steps = plan.schedule, Counter[BatchShape]()
        for epoch in range(schedule.epochs):
            for (_, shape), number in plan.plan.count_shapes(epoch).items():
                steps[shape] += number
        own = self.multigrid.account(steps, schedule.epochs, validations)
        own[START] += started
        shares = ", ".join(
            f"{kind} {duration(seconds)}" for kind, seconds in own.items() if kind == STEPS or round(seconds)
        )
        told = f"By the clock of this machine about {duration(sum(own.values()))}: {shares}."
        if schedule.flat:
            return told
        of_baseline = {schedule.baseline.shape: plan.baseline_steps or 0}
        baseline = self.baseline.account(of_baseline, math.ceil(schedule.baseline.epochs), validations)
        return f"{told} {faster_or_slower(own, baseline | {START: baseline[START] + started}, ways_out)}"


def measure_paces(
    plan: Preview,
    forecast: Forecast,
    callback: MultigridCallback | None,
    module: LightningModule,
    data: VideoDataModule,
    setting: Setting,
) -> Paces:
    """Trains a little on each base shape, with the callback and without; the weights are others afterwards.

    The times of steps of the forecast need only be good enough to choose how many to train.
    """
    schedule = plan.schedule
    train = _Short(forecast, callback or MultigridCallback.baseline(), module, data, setting, plan.world)
    baseline = train(replace(schedule, long_cycle=LongCycle(((1, 1),)), short_cycle=ShortCycle((1,))))
    return Paces(baseline if schedule.flat else train(schedule), replace(baseline, statistics=0.0))


@dataclass(frozen=True)
class _Short:
    """Trains two epochs of a few steps on each base shape of a schedule, on one device."""

    forecast: Forecast
    callback: MultigridCallback
    module: LightningModule
    data: VideoDataModule
    setting: Setting
    world: int

    def __call__(self, schedule: MultigridSchedule) -> _Epoch:
        baseline = schedule.baseline
        epochs = max(2, math.ceil(baseline.epochs))
        # Each stage goes through the long cycle once, and the first two are an epoch each.
        short = replace(
            schedule,
            baseline=replace(baseline, epochs=epochs, milestones=(1, 2)[: epochs - 1], warmup_epochs=0),
            long_cycle=LongCycle(tuple(dict.fromkeys((*schedule.long_cycle.factors, (1, 1))))),
            epoch_factor=1,
            whole_epochs=False,
            fine_tuning=False,
        )
        own = {name: getattr(self.callback, name) for name in ("follow", "precise_bn_batches", "lr_by_hand")}
        multigrid = MultigridCallback(short, **own)
        second = _SecondEpoch(multigrid)
        data = self._data(short)
        with _quiet():
            trainer = Trainer(
                max_epochs=epochs,
                devices=1,
                callbacks=[multigrid, second],
                limit_val_batches=_VALIDATED,
                num_sanity_val_steps=0,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                **self.setting,
            )
            trainer.fit(self.module, data)
        share = 1.0
        if data.sources["val"] is not None:
            share = max(1.0, len(data.val_dataloader()) / self.world / _VALIDATED)
        spent = multigrid.report.account.seconds
        return _Epoch(second.times, share * second.validation, spent[STATISTICS] / 2, spent[START])

    def _data(self, schedule: MultigridSchedule) -> VideoDataModule:
        """The data with epochs of a few videos, again and again, and no more workers than a device has cores."""
        cycles = [schedule.cycle(shape) for shape in dict.fromkeys(phase.shape for phase in schedule.phases)]
        seconds = fmean(self.forecast.seconds(shape) or 0.0 for cycle in cycles for shape in cycle)
        steps = max(_LEAST, math.ceil(_SECONDS / seconds)) * self.setting["accumulate_grad_batches"]
        clips = math.ceil(steps * sum(fmean(shape.clips for shape in cycle) for cycle in cycles))
        data = copy(self.data)
        data.num_workers = data.num_workers and max(1, min(data.num_workers, (os.cpu_count() or 1) // self.world))
        loader = data.train_dataloader()
        videos = len(loader.dataset)  # type: ignore[arg-type]
        few = range(0, videos, max(1, videos // _VIDEOS))[:_VIDEOS]
        visits = [few[visit % len(few)] for visit in range(-(-clips // data.repeats)) for _ in range(data.repeats)]
        data.train_dataloader = lambda: DataLoader(  # type: ignore[method-assign]
            loader.dataset,
            loader.batch_size,
            sampler=visits,
            collate_fn=loader.collate_fn,
            num_workers=data.num_workers,
            persistent_workers=data.num_workers > 0,
            pin_memory=loader.pin_memory,
        )
        return data


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what Lightning and a callback say of a training."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
