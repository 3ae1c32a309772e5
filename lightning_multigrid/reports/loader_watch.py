"""Whether the loader is the limit: what a run takes then, what the script alone would take, and what helps."""

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_multigrid.reports.account import LEAST_SECONDS
from lightning_multigrid.reports.step_times import StepTime
from lightning_multigrid.schedule import ClipShape, Plan, counted, duration, three_digits

_BAND = 1.15  # the loader is the limit if a run would be this many times faster without waiting for it
_STEPS, _FEW_STEPS, _MANY_SECONDS = 20, 4, 10.0  # an estimate needs this many steps, or a few long ones
_MOST_FIRST = 16  # mini-batches that are left out as the first of a worker, so that something is said by step 40


@dataclass(frozen=True)
class Stretch:
    """Mini-batches that follow each other, and the clips of all of them, on one device."""

    steps: float
    clips: float

    def seconds(self, step: float, read: float, workers: int) -> float:
        """What the stretch takes if a step takes `step` seconds, and the loader `read` seconds for each sample.

        >>> Stretch(100, 400).seconds(0.5, 0.2, workers=2), Stretch(100, 400).seconds(0.5, 0.2, workers=0)
        (80.0, 130.0)
        """
        stepping, reading = self.steps * step, self.clips * read
        return max(stepping, reading) if workers else stepping + reading  # workers read while the device steps


@dataclass(frozen=True)
class Verdict:
    """Estimated seconds of a run and of the script alone, without validations; and why, if the loader is the limit.

    A baseline that the callback trains is the script alone.
    """

    total: float
    alone: float
    why: str
    is_baseline: bool = False

    def __str__(self) -> str:
        times, verdict = f"{duration(self.total)}", "the limit" if self.why else "fast enough"
        if not self.is_baseline:
            times += f" with MultigridCallback, and about {duration(self.alone)} without it"
        return f"The loader is {verdict}. Without validations, the training takes about {times}. {self.why}".rstrip()


@dataclass(frozen=True)
class Loading:
    """The loader of a plan on each device: its workers, and what makes it faster, in words, best first."""

    plan: Plan
    workers: int
    ways_out: Sequence[str]

    def stretches(self, left: int) -> list[Stretch]:
        """The last mini-batches of the plan, as many as are `left`: a stretch for each phase."""
        found = []
        for phase, planned in reversed([*enumerate(self.plan.phase_steps)]):
            steps, cycle = min(planned, left), self.plan.schedule.cycles[phase]
            clips = sum(shape.clips for shape, _ in cycle) / len(cycle)
            found.append(Stretch(steps, steps * clips))
            left -= steps
        return found[::-1]

    def judge(
        self,
        step: float,
        read: float,
        baseline_read: float | None = None,
        *,
        passed: float = 0.0,
        left: int | None = None,
        of_plan: float = 1.0,
    ) -> Verdict:
        """Estimates a run by the seconds of a step, and those of the loader for each sample.

        Args:
            step: By Eq. 1 all full mini-batches take about as long.
            read: Of all workers together.
            baseline_read: For the baseline's samples, if that is another time.
            passed: Seconds of the run so far.
            left: Mini-batches after them; None for the whole plan.
            of_plan: The share of the plan that the run has, which may continue another one.
        """
        plan, whole = self.plan, sum(self.plan.phase_steps)
        rest = self.stretches(whole if left is None else left)
        seconds = sum(stretch.seconds(step, read, self.workers) for stretch in rest)
        steps = plan.baseline_steps * of_plan
        baseline = Stretch(steps, steps * plan.schedule.baseline.shape.clips)
        alone = baseline.seconds(step, baseline_read or read, self.workers)
        why = ""
        if seconds > _BAND * sum(stretch.steps for stretch in rest) * step:
            most = max(stretch.clips / stretch.steps for stretch in self.stretches(whole) if stretch.steps)
            where = " on each device" if plan.world > 1 else ""
            why = (
                f"With {counted(self.workers, 'worker')}, a sample takes "
                f"{three_digits(1000 * read * max(1, self.workers))} ms, so {three_digits(1 / read)} are read in a "
                f"second{where}, and the steps could take up to {three_digits(most / step)}. What helps, best first: "
                f"{'; '.join(self.ways_out)}."
            )
        return Verdict(passed + seconds, alone, why, plan.schedule.is_baseline)


class LoaderWatch:
    """Says once, early in a run, that the loader is the limit.

    It goes by the seconds that the workers take for a sample, as a few steps tell, and speaks only where steps wait.
    Left out are the first mini-batches of the workers, and the first step on each grid, which take longer than others.
    """

    def __init__(self, loading: Loading) -> None:
        self._loading = loading
        self._grids = set[ClipShape]()
        self._window: list[StepTime] = []
        self._passed, self._steps, self._said = 0.0, 0, False

    def add(self, time: StepTime) -> str | None:
        """Counts a step; returns the sentence if it becomes clear with this step."""
        self._passed, self._steps = self._passed + time.seconds, self._steps + 1
        grid = time.step.shape.clip
        if self._said or self._steps <= min(self._loading.workers, _MOST_FIRST) or grid not in self._grids:
            self._grids.add(grid)
            return None
        self._window.append(time)
        measured, seconds = len(self._window), sum(each.seconds for each in self._window)
        if measured < _STEPS and (measured < _FEW_STEPS or seconds <= _MANY_SECONDS):
            return None
        verdict, waits = self._judge()
        self._window = []
        self._said = bool(verdict.why) and waits and verdict.total >= LEAST_SECONDS
        return f"By {measured} steps: {verdict}" if self._said else None

    def _judge(self) -> tuple[Verdict, bool]:
        """What the last steps say of the run, and whether they have waited."""
        times, plan, workers = self._window, self._loading.plan, self._loading.workers
        waiting, stepping = sum(time.waiting for time in times), sum(time.stepping for time in times)
        clips, reading = (sum(time.step.shape.clips for time in times), sum(time.reading for time in times))
        epoch, batch = times[-1].step.place
        whole, done = sum(plan.phase_steps), epoch * plan.batches_per_epoch + batch + 1
        verdict = self._loading.judge(
            stepping / len(times),
            reading / max(1, workers) / clips,
            passed=self._passed,
            left=whole - done,
            of_plan=(whole - done + self._steps) / whole,
        )
        return verdict, waiting > (_BAND - 1) * stepping
