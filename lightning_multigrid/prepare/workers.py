"""The same function for many tasks in processes of their own: one that dies or hangs costs its task, not the run.

`multiprocessing` would import the user's main module in every worker, and its workers outlive a parent that is killed
by holding each other's pipes open. These are fresh interpreters, each with two pipes to the parent and nothing else;
one whose parent is gone ends with its next sign of life.
"""

from __future__ import annotations

import importlib
import os
import pickle
import selectors
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

__all__ = ["Lost", "run_tasks"]

_HEAD = struct.Struct("<I")
_BEAT_SECONDS = 0.5
# What a worker may take to be there, at most.
_START_SECONDS = 300.0
# The parent's modules, whatever lies in the folder that it was started in.
_START = (
    "import sys; sys.path[:] = sys.argv[2:]; from lightning_multigrid.prepare.workers import serve; serve(sys.argv[1])"
)


@dataclass(frozen=True)
class Lost:
    """Why a task has no result."""

    reason: str


def run_tasks(
    function: str, tasks: Iterable[Any], workers: int, timeout: float
) -> Generator[tuple[Any, Any], None, None]:
    """Calls a function for each task; yields (task, result) as they come, the result being a `Lost` if there is none.

    Args:
        function: Its module and name, "package.module:name". It takes a task and a function to be called as a sign of
            life; tasks and results can be pickled.
        tasks: Asked for as workers become free.
        workers: Processes; 0 calls the function here, without a `timeout`.
        timeout: Seconds without a sign of life after which a worker is given up.
    """
    if not workers:
        call = _function(function)
        for task in tasks:
            yield task, _result(call, task, lambda: None)
        return
    pending = iter(tasks)
    selector = selectors.DefaultSelector()
    idle: list[_Worker] = []
    started: list[_Worker] = []
    busy = 0
    try:
        for task in pending:
            lost: Lost | None = None
            while idle:  # one may have died since its last task, which is none of this task's fault
                worker = idle.pop()
                lost = worker.start(task)
                if lost is None:
                    break
                worker.close()
            else:
                worker = _Worker(function, timeout)
                started = [other for other in started if other.alive] + [worker]
                lost = worker.start(task)
            if lost is not None:
                worker.close()
                yield task, lost
                continue
            selector.register(worker.output, selectors.EVENT_READ, worker)
            busy += 1
            while busy >= workers:
                for done in _finished(selector):
                    busy -= 1
                    yield done.task, done.result
                    if done.alive:
                        idle.append(done)
        while busy:
            for done in _finished(selector):
                busy -= 1
                yield done.task, done.result
                if done.alive:
                    idle.append(done)
    finally:
        for worker in started:
            worker.kill()
            worker.close()
        selector.close()


def _finished(selector: selectors.BaseSelector) -> list[_Worker]:
    """Workers that are through with their task, one way or the other; maybe none."""
    waiting = [key.data for key in selector.get_map().values()]
    rest = min(worker.deadline for worker in waiting) - time.monotonic()
    done = [key.data for key, _ in selector.select(max(0.0, rest)) if key.data.take()]
    now = time.monotonic()
    done += [worker for worker in waiting if worker not in done and now > worker.deadline and worker.give_up()]
    for worker in done:
        selector.unregister(worker.output)
        if not worker.alive:
            worker.close()
    return done


class _Worker:
    """A process, and what it is at."""

    def __init__(self, function: str, timeout: float) -> None:
        self._timeout = timeout
        self._is_ready = False
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, function, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input: Any = self._process.stdin
        self.output: Any = self._process.stdout
        self.alive = True
        self.task: Any = None
        self.result: Any = None
        self.deadline = 0.0

    def start(self, task: Any) -> Lost | None:
        """Gives it a task."""
        self.task, self.result = task, None
        self._extend()
        try:
            _write(self._input, task)
        except BrokenPipeError:
            return self._death()
        return None

    def take(self) -> bool:
        """Reads what it says; whether that is a result."""
        try:
            message = _read(self.output)
        except EOFError:
            self.result = self._death()
            return True
        self._is_ready = True
        self._extend()
        if message is None:
            return False
        (self.result,) = message
        return True

    def give_up(self) -> bool:
        """Ends a worker that says nothing any more."""
        self.kill()
        self.result = Lost(f"nothing came of it for {self._timeout:g} s")
        return True

    def _extend(self) -> None:
        # Until its first sign of life it is still importing what it needs.
        self.deadline = time.monotonic() + (self._timeout if self._is_ready else max(self._timeout, _START_SECONDS))

    def kill(self) -> None:
        """Ends it at once."""
        self.alive = False
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):  # one that waits for a dead disk cannot be ended
            self._process.wait(5)

    def close(self) -> None:
        """Lets go of the pipes."""
        with suppress(OSError):
            self._input.close()
        self.output.close()

    def _death(self) -> Lost:
        with suppress(subprocess.TimeoutExpired):  # its pipe ends a little before it
            self._process.wait(5)
        self.kill()
        code = self._process.returncode or 0
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit status {code}"
        return Lost(f"the process that worked on it ended {how}")


def serve(function: str) -> None:
    """What a worker does until its input ends."""
    # Ctrl-C is for the parent, which then ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Whatever a library prints must not come between the messages.
    with os.fdopen(os.dup(1), "wb", buffering=0) as output:
        os.dup2(2, 1)
        call = _function(function)
        last = time.monotonic()

        def beat() -> None:
            nonlocal last
            if time.monotonic() - last > _BEAT_SECONDS:
                last = time.monotonic()
                _write(output, None)

        # The parent may be gone: it needs no result, then.
        with suppress(EOFError, BrokenPipeError), os.fdopen(os.dup(0), "rb", buffering=0) as tasks:
            _write(output, None)  # ready
            while True:
                _write(output, (_result(call, _read(tasks), beat),))


def _result(call: Callable[[Any, Callable[[], None]], Any], task: Any, beat: Callable[[], None]) -> Any:
    try:
        return call(task, beat)
    except BrokenPipeError:
        raise
    except Exception as error:  # whatever one task does to the function must not end the others
        return Lost(f"{type(error).__name__}: {error}")


def _function(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _write(file: BinaryIO, message: Any) -> None:
    data = pickle.dumps(message)
    rest = memoryview(_HEAD.pack(len(data)) + data)
    while rest:
        rest = rest[file.write(rest) :]


def _read(file: BinaryIO) -> Any:
    (length,) = _HEAD.unpack(_exactly(file, _HEAD.size))
    return pickle.loads(_exactly(file, length))


def _exactly(file: BinaryIO, length: int) -> bytes:
    parts: list[bytes] = []
    while length:
        part = file.read(length)
        if not part:
            raise EOFError
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
