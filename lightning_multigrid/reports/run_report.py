"""Follows a run: how long the rest takes, whether the loader slows it down, and how fast it was in the end."""

import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from lightning_multigrid.host import Trainer, tell
from lightning_multigrid.reports.account import LEAST_SECONDS, REST, STEPS, WAITING, Account, faster_or_slower
from lightning_multigrid.reports.loader_watch import LoaderWatch, Loading
from lightning_multigrid.reports.step_times import Clock, ShapeTimes, StepTimer, StepTotals
from lightning_multigrid.schedule import BatchShape, Step, duration


class RunReport:
    """Notes the steps of a run, and reports them.

    `account` has been running since the `fit` began. `reading` returns the seconds that all workers together took to
    read the last mini-batch.
    """

    def __init__(self, loading: Loading, clock: Clock, account: Account, reading: Callable[[], float]) -> None:
        self._plan, self._schedule = loading.plan, loading.plan.schedule
        self._timer, self.account = StepTimer(clock, reading), account
        self._watch = LoaderWatch(loading)
        self._steps, self._left = 0, 0  # mini-batches of this run so far, and after them
        self._position = Fraction(0)
        self._began: float | None = None
        self._whole = False  # whether the run has begun at the start of its plan
        self._phase = -1  # the phase that was announced last
        self._shape = self._schedule.baseline.shape
        self._widest = max(len(_compact(shape)) for shape in (self._shape, *self._schedule.grids))
        self.times = ShapeTimes()
        self.tell: Callable[[str], None] = tell  # on the way; with a progress bar, above it
        self._closing: list[str] = []  # messages for the time when the progress bar is gone

    def begin(self, first: Step) -> None:
        self.account.turn(WAITING)
        if self._began is None:
            self._position = self._plan.position(first.place)
            self._began, self._whole, self._shape = time.perf_counter(), self._position == 0, first.shape
        done = first.place.epoch * self._plan.batches_per_epoch + first.place.batch
        self._left = self._plan.optimizer_steps * self._plan.accumulate - done

    def timed(self, mini_batches: Iterator[Any]) -> Iterator[Any]:
        for mini_batch in self._timer.timed(mini_batches):
            self.account.turn(STEPS)
            yield mini_batch
            self.account.turn(WAITING)

    def announce(self, step: Step, baseline_lr: Any) -> None:
        """Says a phase that begins. `baseline_lr` is a number or a tensor, which is read only then."""
        self._shape = step.shape
        if step.phase != self._phase:
            self._phase, phases, left = step.phase, self._schedule.phases, self.seconds_left
            phase, lr = phases[step.phase], float(baseline_lr) * step.lr_scale
            self.tell(
                f"Phase {step.phase + 1} of {len(phases)}: {phase.shape}, epochs {phase.interval}, LR from {lr:.3g}, "
                f"scale {phase.lr_scale:.3g}." + ("" if left is None else f" About {duration(left)} left.")
            )

    def ended(self, step: Step, following: Step) -> StepTotals:
        """Notes the end of a step; returns the times of the steps that the device has finished since the last call."""
        self._timer.ended(step)
        self.account.turn(REST)
        self._steps, self._left = self._steps + 1, self._left - 1
        self._position = self._plan.position(following.place)
        return self._take(wait=False)

    def scalars(self, total: StepTotals, world: int) -> dict[str, float]:
        """Returns what is logged of finished steps: clips per second of all devices, share of waiting, time left."""
        values, left = {}, self.seconds_left
        if total.seconds:
            values["multigrid/clips_per_second"] = total.clips * world / total.seconds
            values["multigrid/waiting"] = total.waiting / total.seconds
        if left is not None:
            values["multigrid/hours_left"] = left / 3600
        return values

    def _take(self, wait: bool) -> StepTotals:
        taken = StepTotals()
        for step_time in self._timer.take(wait):
            taken.add(step_time)
            self.times.add(step_time)
            if (said := self._watch.add(step_time)) is not None:
                self.tell(said)
        return taken

    @property
    def bar(self) -> dict[str, str]:
        """The items of the progress bar, which are as wide in all steps of a run."""
        left = self.seconds_left
        minutes, seconds = divmod(round(left or 0), 60)
        clock = "-:--:--" if left is None else f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
        return {"grid": _compact(self._shape).ljust(self._widest), "left": clock}

    @property
    def seconds_left(self) -> float | None:
        """The estimated time until the end, with validation and the like; None before the first step."""
        if self._began is None or not self._steps:
            return None
        # By Eq. 1 all full mini-batches take about as long.
        return (time.perf_counter() - self._began) / self._steps * max(0, self._left)

    def finish(self, trainer: Trainer) -> None:
        """Notes how fast the run was, for `close` to say; loggers get scalars."""
        self.tell = self._closing.append  # the bar may be gone
        self._take(wait=True)
        self.account.turn(REST)
        self.account.split(self.times.all.stepping, self.times.all.waiting)
        if self._left > 0 and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            self.stopped()
        if not self.times.all.steps:
            return
        table = f"Time per shape of mini-batch (clips x frames x size), on one device:\n{self.times.table()}"
        self._closing += [table, str(self.account)]
        speedup = self._speedup()
        scalars = {f"multigrid/seconds/{kind}": seconds for kind, seconds in self.account.seconds.items()}
        if speedup is not None:
            scalars["multigrid/speedup"] = speedup
        for logger in trainer.loggers:
            logger.log_metrics(scalars, step=trainer.global_step)

    def stopped(self) -> None:
        """Notes that the run ends before its plan, if it has begun."""
        if self._phase < 0:
            return
        schedule, phases = self._schedule, len(self._schedule.phases)
        name = "fine-tuning" if schedule.fine_tuning else "the last phase"
        missing = f"{name} not reached" if self._phase + 1 < phases else "in the last one"
        self._closing.append(
            f"Stopped in phase {self._phase + 1} of {phases}, at epoch {float(self._position):.2f} of "
            f"{float(schedule.baseline.epochs):g}: {missing}."
        )

    def close(self) -> None:
        while self._closing:
            tell(self._closing.pop(0))

    def _speedup(self) -> float | None:
        step = self.times.pace(self._schedule.baseline.shape)
        known = not self._schedule.is_baseline and self._whole and self._left <= 0
        if step is None or not known or self.account.wall < LEAST_SECONDS:
            return None
        steps = self._plan.baseline_steps
        baseline = self.account.of_baseline(steps * step.stepping, steps * step.waiting)
        would_take = sum(baseline.values())
        self._closing.append(
            f"{faster_or_slower(self.account.seconds, baseline)} The baseline's wall clock is {steps} steps of "
            f"{1000 * step.seconds:.1f} ms, as measured on its grid, and {duration(would_take - steps * step.seconds)} "
            "for all else."
        )
        return would_take / self.account.wall


def _compact(shape: BatchShape) -> str:
    return str(shape).replace(" ", "")
