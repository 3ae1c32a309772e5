"""Times of steps: how long each waited for the loader and took, by grid, and whether the loader is the limit.

`StepTimer` notes three moments of a mini-batch: when the loop asked for it, when the loader handed it over, and when
the step ended::

    asked ---- waiting ---- handed ---- stepping (transfer, resampling, forward, backward, optimizer) ---- ended

The time between `ended` and the next `asked` (validation, checkpoints, loggers) counts as neither. On CUDA, Python runs
ahead of the device, so the moments are events in the device's stream: recording them waits for nothing, and they are
read after the device has passed them.
"""

import math
import os
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from lightning_multigrid.schedule import BatchShape, Step, duration, text_table

# The loader is called the limit if steps would be this many times faster without waiting.
_BAND = 1.15
_LEAST_STEPS = 12
_LEAST_WAITING = 0.5  # seconds; less is not worth a sentence
_OPENING = 30.0  # seconds of the first pass over a dataset, whose files are then opened and indexed


class Clock:
    """Notes moments: on CUDA as events in the device's stream, elsewhere as the time of the process.

    That is exact on a CPU, where a step ends when its Python does; on other accelerators it smears steps.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device if device.type == "cuda" else None

    def now(self) -> Any:
        if self._device is None:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def passed(self, moment: Any) -> bool:
        return self._device is None or bool(moment.query())

    def seconds(self, start: Any, end: Any) -> float:
        """Returns the time between two moments that the device has passed."""
        return float(end - start if self._device is None else start.elapsed_time(end) / 1000)

    def wait(self, moment: Any) -> None:
        if self._device is not None:
            moment.synchronize()


@dataclass(frozen=True)
class StepTime:
    """A step of the plan, the number of its mini-batch in this iteration over the loader (from 0), and its seconds."""

    step: Step
    batch: int
    waiting: float
    stepping: float


@dataclass
class StepTotals:
    """Sums over steps, in seconds."""

    steps: int = 0
    clips: int = 0
    waiting: float = 0.0
    stepping: float = 0.0

    @property
    def seconds(self) -> float:
        return self.waiting + self.stepping

    def add(self, time: StepTime) -> None:
        self.steps += 1
        self.clips += time.step.shape.clips
        self.waiting += time.waiting
        self.stepping += time.stepping


class StepTimer:
    """Notes the moments of each step, by the clock of the device that trains."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._asked = self._handed = clock.now()
        self._batch = -1
        self._pending: deque[tuple[Step, int, Any, Any, Any]] = deque()

    def timed(self, mini_batches: Iterator[Any]) -> Iterator[Any]:
        """Yields mini-batches, and notes when each was asked for and handed over."""
        self._asked = self._clock.now()
        for batch, mini_batch in enumerate(mini_batches):
            self._batch, self._handed = batch, self._clock.now()
            yield mini_batch
            self._asked = self._clock.now()

    def ended(self, step: Step) -> None:
        """Notes the end of the step with the mini-batch handed over last; a device has then all of it in its queue."""
        self._pending.append((step, self._batch, self._asked, self._handed, self._clock.now()))

    def take(self, wait: bool = False) -> Iterator[StepTime]:
        """Yields the times of the steps that the device has finished since the last call, or `wait`s for all steps."""
        if wait and self._pending:
            self._clock.wait(self._pending[-1][-1])
        while self._pending and self._clock.passed(self._pending[0][-1]):
            step, batch, asked, handed, ended = self._pending.popleft()
            waiting, stepping = self._clock.seconds(asked, handed), self._clock.seconds(handed, ended)
            yield StepTime(step, batch, waiting, stepping)


@dataclass
class GridTimes:
    """Times of the steps on a grid, on one device.

    `total` sums over all of them, `pace` over all but the first one, which takes longer. `shape` is that of the largest
    mini-batch.
    """

    shape: BatchShape
    total: StepTotals = field(default_factory=StepTotals)
    pace: StepTotals = field(default_factory=StepTotals)

    @property
    def step(self) -> float:
        return self.total.stepping / self.total.steps

    def add(self, time: StepTime) -> None:
        self.shape = max(self.shape, time.step.shape, key=lambda shape: shape.clips)
        if self.total.steps == 1:
            self.pace = StepTotals()
        self.total.add(time)
        self.pace.add(time)


class ShapeTimes:
    """Times of the steps on each grid: measured, and before the first step on a grid the mean of others.

    By Eq. 1 all full mini-batches have about as many points, b t s^2, and take about as long; others in proportion.
    """

    def __init__(self) -> None:
        self._grids: dict[BatchShape, GridTimes] = {}
        self.all = StepTotals()

    def add(self, time: StepTime) -> None:
        shape = time.step.shape
        self._grids.setdefault(shape.clip, GridTimes(shape)).add(time)
        self.all.add(time)

    def __bool__(self) -> bool:
        return bool(self._grids)

    def measured(self, shape: BatchShape) -> bool:
        """Returns whether steps were measured on the grid of a shape beyond the first."""
        return shape.clip in self._grids and self._grids[shape.clip].total.steps > 1

    def expected(self, shape: BatchShape) -> StepTotals:
        """Returns what a step takes: measured on its grid, else the mean of all grids."""
        grid = self._grids.get(shape.clip)
        seen = self._grids.values() if grid is None else [grid]
        share = shape.points / sum(one.pace.clips * one.shape.clip.points for one in seen)
        waiting, stepping = sum(one.pace.waiting for one in seen), sum(one.pace.stepping for one in seen)
        return StepTotals(1, shape.clips, share * waiting, share * stepping)

    @property
    def rows(self) -> list[GridTimes]:
        """The times of each grid, coarse to fine."""
        return sorted(self._grids.values(), key=lambda grid: (grid.shape.frames, grid.shape.size))

    def table(self) -> str:
        cells = []
        for name, total in [*((str(row.shape), row.total) for row in self.rows), ("all", self.all)]:
            step, waiting = (f"{1000 * seconds / total.steps:.1f}" for seconds in (total.stepping, total.waiting))
            speed = f"{total.clips / total.seconds:.1f}" if total.seconds else ""
            counts = str(total.steps), str(total.clips), f"{total.seconds:.1f}"
            cells.append([name, *counts, step, waiting, speed])
        return text_table(["", "steps", "clips", "seconds", "ms/step", "ms waiting", "clips/s"], cells)


@dataclass(frozen=True)
class LoaderLimit:
    """A loader that gives fewer clips per second than the device needs."""

    needed: float
    given: float
    workers: int

    @property
    def workers_needed(self) -> int:
        """Workers that would be as fast as the device, if the loader's speed grows with their number.

        >>> LoaderLimit(needed=310, given=120, workers=8).workers_needed
        21
        """
        return math.ceil(max(1, self.workers) * self.needed / self.given)

    def sentence(self, lost: float, ways_out: str) -> str:
        """Says so, with the seconds that it costs in the rest of the training, and what would mend it."""
        cpus, workers = os.cpu_count() or 1, _workers(self.workers_needed)
        mended = f"{workers}, or {ways_out}, would mend it."
        if self.workers_needed > cpus:
            mended = f"That needs {workers}, and this machine has {cpus} CPUs: {ways_out} would help."
        limit = (
            f"The loader is the limit: this phase needs {self.needed:.0f} clips/s on each device, the loader gives "
            f"{self.given:.0f} ({_workers(self.workers)})."
        )
        if not self.workers:
            limit = (
                f"Without workers no step runs while clips are loaded: in this phase steps take {self.needed:.0f} "
                f"clips/s on each device, and loading {self.given:.0f}."
            )
        waiting = f"At that speed, about {duration(lost)} of the rest of the training will be waiting."
        return f"{limit} {waiting} {mended}"


def _workers(number: int) -> str:
    return "1 worker" if number == 1 else f"{number} workers"


class LoaderWatch:
    """Compares waiting with stepping in each phase, until the loader has been the limit of one.

    Workers load clips while the device steps, so the loop waits only for the time by which the workers are slower.
    Without workers, all loading is waiting. A file that is read for the first time takes longer than ever after: the
    first pass over the dataset is looked at only if it is a long one.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._phase = -1
        self._totals, self._seen = StepTotals(), set[BatchShape]()  # of the phase: its steps, and their grids
        self._look_at = 0  # after how many steps of the phase
        self._told = False
        self._passes, self._seconds = 0, 0.0  # over the dataset

    def add(self, time: StepTime) -> LoaderLimit | None:
        """Counts a step; returns the limit if it becomes clear with this step."""
        if time.step.phase != self._phase:
            self._phase, self._look_at = time.step.phase, max(_LEAST_STEPS, 6 * self.workers)
            self._totals, self._seen = StepTotals(), set()
        totals, grid = self._totals, time.step.shape.clip
        # The first mini-batch of each worker comes late whenever an epoch starts, and the first step on a grid takes
        # longer (memory, choice of kernels).
        starting = time.batch < max(1, self.workers) or grid not in self._seen
        self._seen.add(grid)
        self._passes += time.batch == 0
        self._seconds += time.waiting + time.stepping
        opening = self._passes < 2 and self._seconds < _OPENING
        if starting or opening or self._told:
            return None
        totals.add(time)
        if totals.steps < self._look_at:
            return None
        if totals.waiting < _LEAST_WAITING or totals.seconds < _BAND * totals.stepping:
            self._look_at *= 2
            return None
        self._told = True
        loading = totals.seconds if self.workers else totals.waiting
        return LoaderLimit(totals.clips / totals.stepping, totals.clips / loading, self.workers)
