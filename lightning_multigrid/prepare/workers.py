"""Calls a function for many tasks in worker processes: one that dies or hangs costs its task, not the others.

`multiprocessing` would import the user's main module in every worker, and its workers outlive a parent that is killed.
These are fresh interpreters with two pipes to the parent each; one without a parent ends with its next sign of life.
"""

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
_START_SECONDS = 300.0  # a worker may take so long to start
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
    none for `timeout` seconds is ended. Tasks are taken as workers become free. With 0 workers it is called here.
    """
    if not workers:
        call = pkgutil.resolve_name(function)
        for task in tasks:
            yield task, _result(call, task, lambda: None)
        return
    busy: dict[Any, _Worker] = {}  # by the ends of the pipes from which their results come
    idle: list[_Worker] = []

    def results(most_busy: int) -> Iterator[tuple[Any, Any]]:
        """Yields results until at most so many workers are busy."""
        while len(busy) > most_busy:
            rest = min(worker.deadline for worker in busy.values()) - time.monotonic()
            ready = wait(list(busy), max(0.0, rest))
            for worker, found in [(worker, worker.result(worker.output in ready)) for worker in busy.values()]:
                if found is not None:
                    del busy[worker.output]
                    if worker.alive:
                        idle.append(worker)
                    yield worker.task, found[0]

    try:
        for task in tasks:
            while idle:  # one may have died since its last task, which is not the fault of this task
                worker = idle.pop()
                if worker.start(task):
                    break
                worker.end()
            else:
                worker = _Worker(function, timeout)
                worker.start(task)
            busy[worker.output] = worker
            yield from results(workers - 1)
        yield from results(0)
    finally:
        for worker in (*idle, *busy.values()):
            worker.end()


class _Worker:
    def __init__(self, function: str, timeout: float) -> None:
        self._timeout, self._patience = timeout, max(timeout, _START_SECONDS)
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
        self.deadline = 0.0

    def start(self, task: Any) -> bool:
        """Sends a task to the process; returns whether it was alive to take it."""
        self.task, self.deadline = task, time.monotonic() + self._patience
        with suppress(BrokenPipeError):
            self._input.send(task)
            return True
        return False

    def result(self, is_ready: bool) -> tuple[Any] | None:
        """Reads a message if one is there; returns the result, or None while the task is not done."""
        try:
            message: tuple[Any] | None = self.output.recv() if is_ready else None
        except (EOFError, OSError):
            with suppress(subprocess.TimeoutExpired):  # its pipe ends a little before it
                self._process.wait(30)
            self.end()
            code = self._process.returncode or 0
            how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit status {code}"
            return (TaskFailure(f"the process that worked on it ended {how}"),)
        now = time.monotonic()
        if is_ready:
            self._patience = self._timeout
            self.deadline = now + self._patience
        elif now > self.deadline:
            self.end()
            return (TaskFailure(f"no sign of life for {self._timeout:g} s"),)
        return message

    def end(self) -> None:
        self.alive = False
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):  # a process that waits for a dead disk cannot be ended
            self._process.wait(5)
        self._input.close()
        self.output.close()


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
