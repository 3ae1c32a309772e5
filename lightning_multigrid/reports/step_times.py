"""Times of steps: how long each waited for the loader and took, by grid.

`StepTimer` notes three moments of a mini-batch: when the loop asked for it, when the loader handed it over, and when
the step ended::

    asked ---- waiting ---- handed ---- stepping (transfer, resampling, forward, backward, optimizer) ---- ended

The time between `ended` and the next `asked` (validation, checkpoints, loggers) counts as neither. On CUDA, Python runs
ahead of the device, so the moments are events in the device's stream: recording them waits for nothing, and they are
read after the device has passed them.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from lightning_multigrid.schedule import BatchShape, ClipShape, Step, text_table


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
    """A step of the plan, and its seconds; `reading` has those that all workers together took for its mini-batch."""

    step: Step
    waiting: float
    stepping: float
    reading: float


@dataclass
class StepTotals:
    """Sums over steps, in seconds."""

    steps: int = 0
    clips: int = 0
    waiting: float = 0.0
    stepping: float = 0.0
    reading: float = 0.0

    @property
    def seconds(self) -> float:
        return self.waiting + self.stepping

    def add(self, time: StepTime) -> None:
        self.steps += 1
        self.clips += time.step.shape.clips
        self.waiting += time.waiting
        self.stepping += time.stepping
        self.reading += time.reading


class StepTimer:
    """Notes the moments of each step. For `reading` see `RunReport`."""

    def __init__(self, clock: Clock, reading: Callable[[], float]) -> None:
        self._clock, self._reading = clock, reading
        self._asked = self._handed = clock.now()
        self._read = 0.0
        self._pending: deque[tuple[Step, float, Any, Any, Any]] = deque()

    def timed(self, mini_batches: Iterator[Any]) -> Iterator[Any]:
        self._asked = self._clock.now()
        for mini_batch in mini_batches:
            self._read, self._handed = self._reading(), self._clock.now()
            yield mini_batch
            self._asked = self._clock.now()

    def ended(self, step: Step) -> None:
        """Notes the end of the step with the mini-batch handed over last; a device has then all of it in its queue."""
        self._pending.append((step, self._read, self._asked, self._handed, self._clock.now()))

    def take(self, wait: bool = False) -> Iterator[StepTime]:
        """Yields the times of the steps that the device has finished since the last call, or `wait`s for all steps."""
        if wait and self._pending:
            self._clock.wait(self._pending[-1][-1])
        while self._pending and self._clock.passed(self._pending[0][-1]):
            step, read, asked, handed, ended = self._pending.popleft()
            yield StepTime(step, self._clock.seconds(asked, handed), self._clock.seconds(handed, ended), read)


@dataclass
class GridTimes:
    """Times of the steps on a grid, on one device."""

    shape: BatchShape  # of the largest mini-batch
    total: StepTotals = field(default_factory=StepTotals)
    pace: StepTotals = field(default_factory=StepTotals)  # of all but the first, which takes longer

    def add(self, time: StepTime) -> None:
        self.shape = max(self.shape, time.step.shape, key=lambda shape: shape.clips)
        if self.total.steps == 1:
            self.pace = StepTotals()
        self.total.add(time)
        self.pace.add(time)


class ShapeTimes:
    """Times of the steps on each grid."""

    def __init__(self) -> None:
        self._grids: dict[ClipShape, GridTimes] = {}
        self.all = StepTotals()

    def add(self, time: StepTime) -> None:
        shape = time.step.shape
        self._grids.setdefault(shape.clip, GridTimes(shape)).add(time)
        self.all.add(time)

    def pace(self, shape: BatchShape) -> StepTotals | None:
        """Returns what a step of this shape takes, if steps on its grid were measured beyond the first."""
        grid = self._grids.get(shape.clip)
        if grid is None or grid.total.steps < 2:
            return None
        share = shape.clips / grid.pace.clips
        return StepTotals(1, shape.clips, share * grid.pace.waiting, share * grid.pace.stepping)

    @property
    def rows(self) -> list[GridTimes]:
        """The times of each grid, coarse to fine."""
        return [self._grids[grid] for grid in sorted(self._grids)]

    def table(self) -> str:
        cells = []
        for name, total in [*((str(row.shape), row.total) for row in self.rows), ("all", self.all)]:
            step, waiting = (f"{1000 * seconds / total.steps:.1f}" for seconds in (total.stepping, total.waiting))
            speed = f"{total.clips / total.seconds:.1f}" if total.seconds else ""
            counts = str(total.steps), str(total.clips), f"{total.seconds:.1f}"
            cells.append([name, *counts, step, waiting, speed])
        return text_table(["", "mini-batches", "clips", "seconds", "ms each", "ms waiting", "clips/s"], cells)
