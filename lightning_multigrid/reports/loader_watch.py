"""Whether the loader is the limit: what a run takes then, what the script alone would take, and what helps."""

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_multigrid.reports.account import LEAST_SECONDS
from lightning_multigrid.reports.step_times import StepTime, StepTotals
from lightning_multigrid.schedule import ClipShape, Plan, counted, duration, three_digits

_BAND = 1.15  # the loader is the limit if a run would be this many times faster without waiting for it
_STEPS, _FEW_STEPS, _MANY_SECONDS = 20, 4, 10.0  # an estimate needs this many steps, or a few long ones
_MOST_FIRST = 16  # mini-batches that are left out as the first of a worker, so that something is said by step 40


def seconds_of(steps: int, clips: float, step: float, read: float, workers: int) -> float:
    """What steps take with all their clips, if each takes `step` seconds, and the loader `read` seconds for a sample.

    >>> seconds_of(100, 400, step=0.5, read=0.2, workers=2), seconds_of(100, 400, step=0.5, read=0.2, workers=0)
    (80.0, 130.0)
    """
    stepping, reading = steps * step, clips * read
    return max(stepping, reading) if workers else stepping + reading  # workers read while the device steps


@dataclass(frozen=True)
class Verdict:
    """Estimated seconds of a training and of the script alone, without validations; why, if the loader is the limit."""

    total: float
    alone: float
    why: str
    is_baseline: bool = False  # then the training is the script alone

    def __str__(self) -> str:
        times, verdict = duration(self.total), "the limit" if self.why else "fast enough"
        if not self.is_baseline:
            times += f" with MultigridCallback, and about {duration(self.alone)} without it"
        return f"The loader is {verdict}. Without validations, the training takes about {times}. {self.why}".rstrip()


@dataclass(frozen=True)
class Loading:
    """The loader of a plan on each device: its workers, and what makes it faster, in words, best first."""

    plan: Plan
    workers: int
    ways_out: Sequence[str]

    def judge(self, step: float, read: float, baseline_read: float | None = None) -> Verdict:
        """Estimates a whole training by the seconds of a step, and those of all workers together for a sample.

        By Eq. 1 all full mini-batches take about as long. `baseline_read` is for the baseline's samples, if that is
        another time.
        """
        plan, steps = self.plan, self.plan.baseline_steps
        means = [sum(shape.clips for shape, _ in cycle) / len(cycle) for cycle in plan.schedule.cycles]
        phases = list(zip(plan.phase_steps, means, strict=True))
        seconds = sum(seconds_of(n, n * clips, step, read, self.workers) for n, clips in phases)
        clips_alone = steps * plan.schedule.baseline.shape.clips
        alone = seconds_of(steps, clips_alone, step, baseline_read or read, self.workers)
        why = ""
        if seconds > _BAND * sum(plan.phase_steps) * step:
            most = max(clips for n, clips in phases if n)
            where = " on each device" if plan.world > 1 else ""
            why = (
                f"With {counted(self.workers, 'worker')}, a sample takes "
                f"{three_digits(1000 * read * max(1, self.workers))} ms, so {three_digits(1 / read)} are read in a "
                f"second{where}, and the steps could take up to {three_digits(most / step)}. What helps, best first: "
                f"{'; '.join(self.ways_out)}."
            )
        return Verdict(seconds, alone, why, plan.schedule.is_baseline)


class LoaderWatch:
    """Says once, early in a run, that the loader is the limit.

    It goes by the seconds that the workers take for a sample, as a few steps tell, and speaks only where steps wait.
    Left out are the first mini-batches of the workers, and the first step on each grid, which take longer than others.
    """

    def __init__(self, loading: Loading) -> None:
        self._loading = loading
        self._grids = set[ClipShape]()
        self._window = StepTotals()
        self._steps, self._said = 0, False

    def add(self, time: StepTime) -> str | None:
        """Counts a step; returns the sentence if it becomes clear with this step."""
        self._steps, grid = self._steps + 1, time.step.shape.clip
        if self._said or self._steps <= min(self._loading.workers, _MOST_FIRST) or grid not in self._grids:
            self._grids.add(grid)
            return None
        last = self._window
        last.add(time)
        if last.steps < _STEPS and (last.steps < _FEW_STEPS or last.seconds <= _MANY_SECONDS):
            return None
        self._window = StepTotals()
        read = last.reading / max(1, self._loading.workers) / last.clips
        verdict = self._loading.judge(last.stepping / last.steps, read)
        waits = last.waiting > (_BAND - 1) * last.stepping
        self._said = bool(verdict.why) and waits and verdict.total >= LEAST_SECONDS
        return f"By {last.steps} steps: {verdict}" if self._said else None
