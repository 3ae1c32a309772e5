"""Times of steps: how long each waited for the loader and how long it took; whether the loader is the limit.

Three moments of a mini-batch are noted: when the loop asked for it, when the loader handed it over, and when the step
was over::

    asked ---- waiting ---- handed ---- stepping (transfer, resampling, forward, backward, optimizer) ---- ended

What comes between `ended` and the next `asked` (validation, checkpoints, loggers) is neither. On CUDA, where Python
runs ahead of the device, the moments are events in its stream: they are recorded without waiting for anything, and
read when the device has passed them.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from lightning_multigrid.schedule import BatchShape, Step

__all__ = ["Clock", "CudaClock", "HostClock", "LoaderLimit", "LoaderWatch", "StepTime", "StepTimer", "clock_of"]

# The loader is called the limit when steps would be this much faster without waiting.
_BAND = 1.15
_LEAST_STEPS = 12
_LEAST_WAITING = 0.5  # seconds; what is less is not worth a sentence


class Clock(Protocol):
    """Notes moments, and tells the time between two of them."""

    def now(self) -> Any:
        """A moment."""
        ...

    def passed(self, moment: Any) -> bool:
        """Whether the moment has come."""
        ...

    def seconds(self, start: Any, end: Any) -> float:
        """Time between two moments that have come."""
        ...

    def wait(self, moment: Any) -> None:
        """Waits until the moment has come."""
        ...


class HostClock:
    """The time of the process: exact on a CPU, where a step is over when its Python is."""

    def now(self) -> float:
        return time.perf_counter()

    def passed(self, moment: float) -> bool:
        return True

    def seconds(self, start: float, end: float) -> float:
        return end - start

    def wait(self, moment: float) -> None:
        pass


class CudaClock:
    """The time of a CUDA device, by events in its current stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def now(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def passed(self, moment: torch.cuda.Event) -> bool:
        return bool(moment.query())  # type: ignore[no-untyped-call]

    def seconds(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return float(start.elapsed_time(end)) / 1000

    def wait(self, moment: torch.cuda.Event) -> None:
        moment.synchronize()


def clock_of(device: torch.device) -> Clock:
    """The clock of a device; of those other than CUDA it is the process's, which smears over several steps."""
    return CudaClock(device) if device.type == "cuda" else HostClock()


@dataclass(frozen=True)
class StepTime:
    """A step and its times.

    Args:
        step: The step of the plan.
        batch: Its place among those that this iteration of the loader has handed over, from 0.
        waiting: Seconds for which it waited for the loader.
        stepping: Seconds that it took from there on.
    """

    step: Step
    batch: int
    waiting: float
    stepping: float


class StepTimer:
    """Notes the moments of each step.

    Args:
        clock: Of the device that trains.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._asked = self._handed = clock.now()
        self._batch = -1
        self._pending: deque[tuple[Step, int, Any, Any, Any]] = deque()

    def started(self) -> None:
        """The loop starts to iterate the loader and asks for its first mini-batch."""
        self._batch = -1
        self._asked = self._clock.now()

    def asked(self) -> None:
        """The loop asks for the next mini-batch."""
        self._asked = self._clock.now()

    def handed(self) -> None:
        """The loader hands it over."""
        self._batch += 1
        self._handed = self._clock.now()

    def ended(self, step: Step) -> None:
        """The step with it is over, or all of it is in the queue of the device."""
        self._pending.append((step, self._batch, self._asked, self._handed, self._clock.now()))

    def take(self, wait: bool = False) -> Iterator[StepTime]:
        """Times of the steps that the device has finished and that were not taken before, in order.

        Args:
            wait: Wait for those that are under way.
        """
        if wait and self._pending:
            self._clock.wait(self._pending[-1][-1])
        while self._pending and self._clock.passed(self._pending[0][-1]):
            step, batch, asked, handed, ended = self._pending.popleft()
            waiting, stepping = self._clock.seconds(asked, handed), self._clock.seconds(handed, ended)
            yield StepTime(step, batch, waiting, stepping)


@dataclass(frozen=True)
class LoaderLimit:
    """A loader that is slower than the device.

    Args:
        needed: Clips per second that the device would take.
        given: Clips per second that the loader gives.
        workers: Of the loader.
    """

    needed: float
    given: float
    workers: int

    @property
    def workers_needed(self) -> int:
        """Workers that would be as fast as the device, if as many of them are as much faster.

        >>> LoaderLimit(needed=310, given=120, workers=8).workers_needed
        21
        """
        return math.ceil(max(1, self.workers) * self.needed / self.given)

    def sentence(self, shape: BatchShape, limited: float, unlimited: float, ways_out: str) -> str:
        """What is said of it.

        Args:
            shape: Largest mini-batch of the phase.
            limited: Speed-up over the baseline at the loader's speed.
            unlimited: Speed-up if the loader keeps up.
            ways_out: What else than workers would help, to follow their number.
        """
        cpus = os.cpu_count() or 1
        machine = f" (this machine has {cpus} CPUs)" if self.workers_needed > cpus else ""
        return (
            f"The loader is the limit: the {shape.clips}-clip phase needs {self.needed:.0f} clips/s on each device, "
            f"the loader gives {self.given:.0f} ({_workers(self.workers)}): expect {limited:.1f}x, not "
            f"{unlimited:.1f}x. {_workers(self.workers_needed)}{machine}{ways_out} would close it."
        )


def _workers(number: int) -> str:
    return "1 worker" if number == 1 else f"{number} workers"


class LoaderWatch:
    """Compares waiting with stepping in a phase.

    With workers, clips are loaded while the device steps, so that it waits only for what they are slower. Without, all
    loading is waiting.

    Args:
        workers: Of the loader.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._phase = -1
        self._check_at = 0

    def add(self, time: StepTime) -> LoaderLimit | None:
        """Counts a step; the limit, if with this step it is clear that there is one. It is told once per phase."""
        if time.step.phase != self._phase:
            self._phase = time.step.phase
            self._steps, self._clips, self._waiting, self._stepping = 0, 0, 0.0, 0.0
            self._seen: set[BatchShape] = set()
            self._check_at = max(_LEAST_STEPS, 6 * self.workers)
        # The first mini-batch of each worker comes late whenever an epoch starts, and the first step on a grid takes
        # longer (memory, choice of kernels).
        starting = time.batch < max(1, self.workers) or time.step.shape.clip not in self._seen
        self._seen.add(time.step.shape.clip)
        if starting or not self._check_at:
            return None
        self._steps += 1
        self._clips += time.step.shape.clips
        self._waiting += time.waiting
        self._stepping += time.stepping
        if self._steps < self._check_at:
            return None
        if self._waiting < _LEAST_WAITING or self._waiting + self._stepping < _BAND * self._stepping:
            self._check_at *= 2
            return None
        self._check_at = 0
        loading = self._waiting + (self._stepping if self.workers else 0.0)
        return LoaderLimit(self._clips / self._stepping, self._clips / loading, self.workers)
