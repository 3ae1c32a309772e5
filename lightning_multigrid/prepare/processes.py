"""Calls a function for many tasks in worker processes: one that dies or hangs costs its task, not the others.

The processes are pebble's. It starts them anew ("spawn"), so a script that wants them guards what it does by
`if __name__ == "__main__":`, as for any use of `multiprocessing`.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from pebble import ProcessExpired, ProcessPool

from lightning_multigrid.decode import OURS

_Work = Callable[[Any, Callable[[], None]], Any]

# A process ends itself by these when it crashes on a file; others come from outside, as when memory runs out.
_CRASHES = {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGSYS, signal.SIGTRAP}
_MOST_POOLS = 3  # that break one after the other


@dataclass(frozen=True)
class TaskFailure:
    """Why a task has no result: it raised an error, or its process died or hung.

    `killed` says that the machine is at fault, whose memory ran out: the task may do well another time.
    """

    reason: str
    killed: bool = False


def run_tasks(
    function: _Work, tasks: Iterable[Any], workers: int, timeout: float
) -> Generator[tuple[Any, Any], None, None]:
    """Calls a function for each task, and yields (task, result) as they finish; a result may be a `TaskFailure`.

    The function, which is one of a module, takes a task, and a function to call as a sign of life. A process that gives
    none for `timeout` seconds is ended. One that a signal ended works on its task once more. Tasks are taken as workers
    become free. With 0 workers the function is called here.

    Raises:
        RuntimeError: For what can only be a mistake in the function (an AttributeError, a TypeError ...), with the
            task; and if no worker process can start.
    """
    if not workers:
        for task in tasks:
            yield task, _result(partial(function, task, lambda: None), task)
        return
    running: dict[Future[Any], tuple[Any, int]] = {}  # tasks, and how often a signal ended the process of each
    pool, broken_pools = _pool(workers), 0

    def start(task: Any, ended: int = 0) -> None:
        try:
            future: Future[Any] = pool.schedule(_work, args=(function, task, timeout))
        except RuntimeError as error:  # the pool is broken
            future = Future()
            future.set_exception(BrokenProcessPool(error))
        running[future] = task, ended

    def finished() -> Generator[tuple[Any, Any], None, None]:
        nonlocal pool, broken_pools
        done, _ = wait(running, timeout=1, return_when=FIRST_COMPLETED)
        if not pool.active:  # a worker was ended that had no task, or none can start
            pool.join()
            broken_pools += 1
            if broken_pools == _MOST_POOLS:
                raise RuntimeError(
                    "Worker processes end before they begin to work. In a script, call this below "
                    '`if __name__ == "__main__":`, or give `workers=0`.'
                )
            pool, done = _pool(workers), {*running}
        for future in done:
            task, ended = running.pop(future)
            error = future.exception() if future.done() else BrokenProcessPool()
            if isinstance(error, BrokenProcessPool):
                start(task, ended)
            elif isinstance(error, ProcessExpired) and _ending(error) not in (0, signal.SIGALRM) and not ended:
                start(task, 1)
            else:
                broken_pools = 0
                expired = _failure(error, timeout) if isinstance(error, ProcessExpired) else None
                yield task, expired or _result(future.result, task)

    try:
        for task in tasks:
            start(task)
            while len(running) >= 2 * workers:  # so many that no worker waits for a task
                yield from finished()
        while running:
            yield from finished()
    finally:
        pool.stop()  # type: ignore[no-untyped-call]
        pool.join()


def _pool(workers: int) -> ProcessPool:
    # Not forks: those of a process with threads may hang.
    return ProcessPool(workers, initializer=_begin, context=multiprocessing.get_context("spawn"))


def _begin() -> None:
    """Begins a worker. What tasks need is imported with this module, before a worker holds the pool's lock."""
    torch.set_num_threads(1)  # there are other processes


def _work(function: _Work, task: Any, timeout: float) -> Any:
    """Calls the function in a worker, under a clock that every sign of life sets back and that ends the process."""
    parent = multiprocessing.parent_process()

    def beat() -> None:
        if parent is not None and os.getppid() != parent.pid:  # it was killed, and nobody wants the result
            os._exit(1)
        signal.setitimer(signal.ITIMER_REAL, timeout)

    try:
        beat()
        return function(task, beat)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _ending(error: ProcessExpired) -> int:
    """The signal that ended a process; 0 if it ended otherwise."""
    return max(0, -(error.exitcode or 0))


def _failure(error: ProcessExpired, timeout: float) -> TaskFailure:
    ending = _ending(error)
    if not ending:
        return TaskFailure(f"the process that worked on it ended with exit status {error.exitcode}")
    if ending == signal.SIGALRM:
        return TaskFailure(f"no sign of life for {timeout:g} s")
    name = signal.Signals(ending).name
    if ending in _CRASHES:
        return TaskFailure(f"the process that worked on it ended twice by signal {name}")
    return TaskFailure(f"killed twice by signal {name}, as when memory runs out: use fewer `workers`", killed=True)


def _result(call: Callable[[], Any], task: Any) -> Any:
    try:
        return call()
    except MemoryError:
        return TaskFailure("memory ran out: use fewer `workers`", killed=True)
    except OURS as error:
        raise RuntimeError(f"{type(error).__name__} at {task}: {error}") from error
    except Exception as error:  # an error of one task must not end the others
        return TaskFailure(f"{type(error).__name__}: {error}")
