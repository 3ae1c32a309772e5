"""Calls a function for many tasks in worker processes: one that dies or hangs costs its task, not the others.

`multiprocessing` would import the user's main module in every worker, and its workers hold each other's pipes open, so
that they outlive a parent that is killed. These are fresh interpreters, each with two pipes to the parent and nothing
else; one whose parent is gone ends with its next sign of life.
"""

from __future__ import annotations

import os
import pkgutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

_BEAT_SECONDS = 0.5
# A worker may take so long to start.
_START_SECONDS = 300.0
# Workers find modules where the parent does, and not in the folder that they start in.
_START = (
    "import sys; sys.path[:] = sys.argv[2:]; from lightning_multigrid.prepare.workers import serve; serve(sys.argv[1])"
)


@dataclass(frozen=True)
class TaskFailure:
    """Why a task has no result: it raised an error, or its process died or hung."""

    reason: str


def run_tasks(
    function: str, tasks: Iterable[Any], workers: int, timeout: float
) -> Generator[tuple[Any, Any], None, None]:
    """Calls a function for each task, and yields (task, result) as they finish; a result may be a `TaskFailure`.

    The function, "package.module:name", takes a task, and a function to call as a sign of life. A worker that gives
    none for `timeout` seconds is ended. Tasks are taken one by one, as workers become free; they and the results must
    be picklable. With 0 workers the function is called here, without a timeout.
    """
    if not workers:
        call = pkgutil.resolve_name(function)
        for task in tasks:
            yield task, _result(call, task, lambda: None)
        return
    busy: dict[Any, _Worker] = {}  # by the ends of the pipes from which their results come
    idle: list[_Worker] = []
    started: list[_Worker] = []

    def results(most_busy: int) -> Iterator[tuple[Any, Any]]:
        """Yields results until at most so many workers are busy."""
        while len(busy) > most_busy:
            for worker in _finished(busy):
                yield worker.task, worker.result
                if worker.alive:
                    idle.append(worker)

    try:
        for task in tasks:
            while idle:  # one may have died since its last task, which is not the fault of this task
                worker = idle.pop()
                if worker.start(task):
                    break
            else:
                worker = _Worker(function, timeout)
                started = [other for other in started if other.alive] + [worker]
                if not worker.start(task):
                    yield task, worker.result
                    continue
            busy[worker.output] = worker
            yield from results(workers - 1)
        yield from results(0)
    finally:
        for worker in started:
            worker.end()


def _finished(busy: dict[Any, _Worker]) -> list[_Worker]:
    """Waits for a while; takes out the workers that have finished their task, or failed at it."""
    rest = min(worker.deadline for worker in busy.values()) - time.monotonic()
    done = [busy[output] for output in wait(list(busy), max(0.0, rest)) if busy[output].take()]
    now = time.monotonic()
    done += [worker for worker in busy.values() if worker not in done and now > worker.deadline and worker.give_up()]
    for worker in done:
        del busy[worker.output]
    return done


class _Worker:
    """A process, and its task."""

    def __init__(self, function: str, timeout: float) -> None:
        self._timeout = timeout
        self._is_ready = False
        tasks, self._input = Pipe(duplex=False)
        self.output, results = Pipe(duplex=False)
        with tasks, results:  # the process has its own copies
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, function, *sys.path],
                stdin=tasks.fileno(),
                stdout=results.fileno(),
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        self.alive = True
        self.task: Any = None
        self.result: Any = None
        self.deadline = 0.0

    def start(self, task: Any) -> bool:
        """Sends a task to the process; returns whether it was alive to take it."""
        self.task = task
        self._extend()
        try:
            self._input.send(task)
        except BrokenPipeError:
            self._die()
        return self.alive

    def take(self) -> bool:
        """Reads a message of the process; returns whether that was a result."""
        try:
            message = self.output.recv()
        except (EOFError, OSError):
            self._die()
            return True
        self._is_ready = True
        self._extend()
        if message is None:
            return False
        (self.result,) = message
        return True

    def give_up(self) -> bool:
        """Ends a process that gives no sign of life."""
        self.end()
        self.result = TaskFailure(f"no sign of life for {self._timeout:g} s")
        return True

    def _extend(self) -> None:
        # Before its first sign of life it imports what it needs.
        self.deadline = time.monotonic() + (self._timeout if self._is_ready else max(self._timeout, _START_SECONDS))

    def end(self) -> None:
        self.alive = False
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):  # a process that waits for a dead disk cannot be ended
            self._process.wait(5)
        self._input.close()
        self.output.close()

    def _die(self) -> None:
        with suppress(subprocess.TimeoutExpired):  # its pipe ends a little before it
            self._process.wait(5)
        self.end()
        code = self._process.returncode or 0
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit status {code}"
        self.result = TaskFailure(f"the process that worked on it ended {how}")


def serve(function: str) -> None:
    """Works on tasks until the input ends: the main function of a worker."""
    # Ctrl-C is for the parent, which then ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What libraries print must not come between the messages.
    tasks, results = Connection(os.dup(0), writable=False), Connection(os.dup(1), readable=False)
    os.dup2(2, 1)
    call = pkgutil.resolve_name(function)
    last = time.monotonic()

    def beat() -> None:
        nonlocal last
        if time.monotonic() - last > _BEAT_SECONDS:
            last = time.monotonic()
            results.send(None)

    # The parent may be gone, and then needs no result.
    with suppress(EOFError, OSError):
        results.send(None)  # ready
        while True:
            results.send((_result(call, tasks.recv(), beat),))


def _result(call: Callable[[Any, Callable[[], None]], Any], task: Any, beat: Callable[[], None]) -> Any:
    try:
        return call(task, beat)
    except BrokenPipeError:
        raise
    except Exception as error:  # an error of one task must not end the others
        return TaskFailure(f"{type(error).__name__}: {error}")
