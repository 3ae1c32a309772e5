"""The wall clock of a training on this machine, foretold from a short one of the same model, videos and loaders."""

import logging
import math
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, cast

from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_multigrid.cli.forecast import Forecast
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
from lightning_multigrid.schedule import BatchShape, LongCycle, MultigridSchedule, Plan, ShortCycle, duration
from lightning_multigrid.training import MultigridCallback
from lightning_multigrid.video import VideoDataModule, few_videos

_SECONDS = 12.0  # of steps in an epoch: the speed of shared machines goes up and down within a few
_LEAST = 6  # steps on each base shape
_SHARE = 0.1  # of the training's mini-batches that a short training has at most
_VIDEOS = 64  # to train on
_VALIDATED = 32  # mini-batches
Seconds = Mapping[str, float]  # by the kinds of an account


class _Times(ShapeTimes):
    """Times of the steps, without the wait for the first mini-batch of the epoch."""

    first = 0.0

    def add(self, time: StepTime) -> None:
        if time.batch == 0:
            self.first, time = time.waiting, replace(time, waiting=0.0)
        super().add(time)


@dataclass
class _Epoch:
    """What an epoch after the first one took, in seconds: its steps, one validation, and what comes before it."""

    times: _Times
    start: float  # of `fit`
    validation: float
    statistics: float

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


@dataclass(frozen=True)
class Paces:
    """How fast short trainings with the callback and without it were, on the machine's own loaders and videos."""

    multigrid: _Epoch
    baseline: _Epoch

    def step_seconds(self, shapes: Iterable[BatchShape]) -> dict[BatchShape, float]:
        """Seconds of a step on each shape, without waiting for data."""
        return {shape: self.multigrid.times.stepping(shape) for shape in shapes}

    def accounts(self, plan: Plan, validations: tuple[int, int], started: float) -> list[dict[str, float]]:
        """The seconds of the training and, if that is another, of its baseline, whose mini-batches are counted.

        Args:
            plan: What is planned.
            validations: Of the training, and of its baseline.
            started: Seconds that a command takes before its `fit`.
        """
        schedule, steps = plan.schedule, Counter[BatchShape]()
        for epoch in range(schedule.epochs):
            for (_, shape), number in plan.count_shapes(epoch).items():
                steps[shape] += number
        own = self.multigrid.account(steps, schedule.epochs, validations[0])
        own[START] += started
        if schedule.flat:
            return [own]
        of_baseline = {schedule.baseline.shape: plan.baseline_steps}
        baseline = self.baseline.account(of_baseline, math.ceil(schedule.baseline.epochs), validations[1])
        # Both start and validate alike; only the callback estimates statistics.
        alike = {START: own[START], VALIDATION: validations[1] * self.multigrid.validation, STATISTICS: 0.0}
        return [own, baseline | alike]


def foretold(accounts: Sequence[Seconds], ways_out: str) -> str:
    """Says how long a training takes by the clock, and whether that is faster than its baseline."""
    own, *baseline = accounts
    shares = ", ".join(
        f"{kind} {duration(seconds)}" for kind, seconds in own.items() if kind == STEPS or round(seconds)
    )
    told = f"By the clock of this machine about {duration(sum(own.values()))}: {shares}."
    return " ".join([told, *(faster_or_slower(own, of_baseline, ways_out) for of_baseline in baseline)])


def count_validations(plan: Plan, trainer: Trainer, callback: MultigridCallback | None) -> tuple[int, int]:
    """How often the training validates, and how often its baseline, as the Trainer and the callback say."""
    schedule, mini_batches = plan.schedule, plan.baseline_steps
    every, interval = trainer.check_val_every_n_epoch, trainer.val_check_interval
    if every is None:  # so many mini-batches; the callback keeps the number
        return (mini_batches // int(interval),) * 2
    of_epoch = int(mini_batches / schedule.baseline.epochs)
    within = int(1 / interval) if isinstance(interval, float) else max(1, of_epoch // interval)
    baseline = math.floor(schedule.baseline.epochs) // every
    own = baseline
    if callback is not None:
        per_phase = callback.validations_per_phase
        ends = schedule.baseline_epoch_ends(every) if per_phase is None else schedule.validation_epochs(per_phase)
        own = len(ends)
    return own * within, baseline * within


def measure_paces(
    plan: Plan,
    forecast: Forecast,
    callback: MultigridCallback | None,
    trainer: Trainer,
    module: LightningModule,
    data: VideoDataModule,
    devices: int,
    **setting: Any,
) -> Paces:
    """Trains a little on each base shape, with the callback and without; the weights are others afterwards.

    Args:
        plan: What is planned.
        forecast: Its times of steps need only be good enough to choose how many to train.
        callback: The one of the plan.
        trainer: Says how to step and to validate.
        module: What is trained.
        data: Its videos.
        devices: That share the cores of this machine.
        setting: Further arguments of the Trainers.

    Raises:
        Exception: What a module raises on a Trainer without a logger, or on few steps.
    """
    schedule = plan.schedule
    setting |= {name: getattr(trainer, name) for name in ("gradient_clip_val", "gradient_clip_algorithm")}
    setting["accumulate_grad_batches"] = plan.accumulate
    train = _Short(plan, forecast, callback or MultigridCallback.baseline(), module, data, setting, devices)
    own = None if schedule.flat else train(schedule, sum(plan.phase_steps))
    flat = replace(schedule, long_cycle=LongCycle(((1, 1),)), short_cycle=ShortCycle((1,)))
    baseline = train(flat, plan.baseline_steps)
    for epoch in filter(None, (own, baseline)):
        epoch.validation *= _validated(data, plan.world, trainer.limit_val_batches)
    return Paces(own or baseline, baseline)


def _validated(data: VideoDataModule, world: int, limit: float) -> float:
    """How many times what a short training validates a whole validation is, on each device."""
    if data.sources["val"] is None:
        return 0.0
    whole = len(data.val_dataloader())
    device = math.ceil(whole / world)
    limited = int(limit * device) if isinstance(limit, float) else min(limit, device)
    return limited / min(whole, _VALIDATED)


class _SecondEpoch(Callback):
    """Ends a training after two epochs, and notes the second: the first opens files and starts workers."""

    def __init__(self, multigrid: MultigridCallback) -> None:
        self._multigrid = multigrid

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        report = self._multigrid.report
        self._before, report.times = report.account.seconds.copy(), _Times({})

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        report = self._multigrid.report
        spent = {kind: seconds - self._before[kind] for kind, seconds in report.account.seconds.items()}
        self.epoch = _Epoch(
            cast("_Times", report.times), report.account.seconds[START], spent[VALIDATION], spent[STATISTICS]
        )
        trainer.should_stop = trainer.current_epoch == 1


@dataclass(frozen=True)
class _Short:
    """Trains two epochs of a few steps on each base shape of a schedule, on one device."""

    plan: Plan
    forecast: Forecast
    callback: MultigridCallback
    module: LightningModule
    data: VideoDataModule
    setting: Mapping[str, Any]
    devices: int

    def __call__(self, schedule: MultigridSchedule, mini_batches: int) -> _Epoch:
        """Trains on the base shapes of a schedule, whose training has so many mini-batches."""
        baseline = schedule.baseline
        epochs = max(2, math.ceil(baseline.epochs))
        coarse = schedule.long_cycle.factors if len({phase.shape for phase in schedule.phases}) > 1 else ()
        # Each stage goes through the long cycle once, and the first two are an epoch each.
        short = replace(
            schedule,
            baseline=replace(baseline, epochs=epochs, milestones=(1, 2)[: epochs - 1], warmup_epochs=0),
            long_cycle=LongCycle(tuple(dict.fromkeys((*coarse, (1, 1))))),
            epoch_factor=1,
            whole_epochs=False,
            fine_tuning=False,
        )
        own = {name: getattr(self.callback, name) for name in ("follow", "precise_bn_batches", "lr_by_hand")}
        multigrid = MultigridCallback(short, **own)
        second, clips = _SecondEpoch(multigrid), self._clips(short, mini_batches)
        cores = max(1, (os.cpu_count() or 1) // self.devices)
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
            trainer.fit(self.module, few_videos(self.data, _VIDEOS, clips, workers=cores))
        second.epoch.statistics *= self._estimated(float(self.plan.clips)) / self._estimated(clips)
        return second.epoch

    def _estimated(self, clips: float) -> float:
        """How many mini-batches precise BatchNorm takes, of an epoch of so many clips."""
        return max(1.0, min(self.callback.precise_bn_batches or 0, clips // self.plan.schedule.baseline.shape.clips))

    def _clips(self, schedule: MultigridSchedule, mini_batches: int) -> int:
        """Clips of an epoch with whole short cycles on each base shape, for some seconds in all."""
        cycles = [schedule.cycle(shape) for shape in dict.fromkeys(phase.shape for phase in schedule.phases)]
        seconds = fmean(self.forecast.seconds(shape) or 0.0 for cycle in cycles for shape in cycle)
        steps = min(_SECONDS / seconds, _SHARE * mini_batches / 2) / len(cycles)
        rounds = math.ceil(max(_LEAST, steps) / len(cycles[0]))
        return rounds * self.plan.accumulate * sum(shape.clips for cycle in cycles for shape in cycle)


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
