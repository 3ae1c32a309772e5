"""Calls a function for many tasks in worker processes: one that dies or hangs costs its task, not the others.

The processes are pebble's. It starts them anew ("spawn"), so a script that wants them guards what it does by
`if __name__ == "__main__":`, as for any use of `multiprocessing`.
"""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import TimeoutError, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import ceil
from multiprocessing.synchronize import Semaphore
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from pebble import ProcessExpired, ProcessPool
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from lightning_multigrid.decode import VideoError
from lightning_multigrid.files import PROGRAM_ERRORS, OutputError, of_videos

TASK_SECONDS = 4 * 3600.0
"""Seconds that a task may take where nothing else is said."""

_START_SECONDS = 60.0  # that a worker may take to start


@dataclass(frozen=True)
class TaskFailure:
    """Why a task has no result: it raised an error, or its process died or took too long."""

    reason: str


def run_tasks(
    function: Callable[[Any], Any], tasks: Iterable[Any], workers: int, timeout: float = TASK_SECONDS
) -> Generator[tuple[Any, Any], None, None]:
    """Calls a function for each task, and yields (task, result) as they finish; a result may be a `TaskFailure`.

    A process whose task takes more than `timeout` seconds is ended. With 0 workers the function, one of a module, is
    called here. Its `OutputError` is raised, and a RuntimeError for a mistake in it, or if no worker process can start.
    """
    if workers < 0 or timeout <= 0:
        raise ValueError(f"`workers` must be at least 0, and `timeout` positive, got {workers} and {timeout}.")
    tasks = list(tasks)
    workers = min(workers, len(tasks))
    if not workers:
        for task in tasks:
            yield task, _result(partial(function, task), task, timeout)
        return
    context = multiprocessing.get_context("spawn")  # not forks: those of a process with threads may hang
    begun = context.Semaphore(0)
    pool = ProcessPool(workers, initializer=_begin, initargs=[begun], context=context)
    try:
        # Workers inherit that Ctrl-C, which every process of a terminal gets, is not for them: one that is starting
        # would print a traceback.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            running: dict[Any, Any] = {pool.schedule(function, args=[task], timeout=timeout): task for task in tasks}
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for future in as_completed(running):
            task = running.pop(future)
            yield task, _result(future.result, task, timeout)
        for _ in range(workers):  # one that is stopped while it starts would print a traceback
            begun.acquire(timeout=_START_SECONDS)
    finally:
        pool.stop()  # type: ignore[no-untyped-call]
        pool.join()


def shown(name: str, results: Iterable[tuple[Any, Any]], total: int, said: str = "") -> Iterator[tuple[Any, Any]]:
    """Passes on results of `run_tasks`, with a bar on standard error; if there are any, it says something first."""
    if not total:
        yield from results
        return
    columns = TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.fields[count]}")
    # Notebooks set FORCE_COLOR, by which Rich would write each state of the bar into a pipe.
    console = Console(stderr=True, force_terminal=sys.stderr.isatty())
    with Progress(SpinnerColumn(), *columns, TimeRemainingColumn(), console=console) as bar:
        if said:
            console.print(said, highlight=False)
        task, broken = bar.add_task(name, total=total, count=f"0 of {of_videos(total)}"), 0
        for number, (done, result) in enumerate(results, start=1):
            broken += isinstance(result, TaskFailure)
            bad = f", {broken:,} broken" if broken else ""
            bar.update(task, completed=number, count=f"{number:,} of {of_videos(total)}{bad}")
            yield done, result


def _begin(begun: Semaphore) -> None:
    """Begins a worker. What tasks need is imported with this module, before a worker holds the pool's lock."""
    end_with_parent()
    torch.set_num_threads(1)  # there are other processes
    begun.release()


def end_with_parent() -> None:
    """Ends this process as soon as the one that started it has ended, in whichever way: it would work on for nobody."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    Thread(target=watch, daemon=True).start()


def _result(call: Callable[[], Any], task: Any, timeout: float) -> Any:
    try:
        return call()
    except (BrokenProcessPool, OutputError):
        raise
    except VideoError as error:
        return TaskFailure(error.reason)
    except ProcessExpired as error:
        ended = f"the process that worked on it ended with exit status {error.exitcode}"
        return TaskFailure(f"{ended} (-9: memory ran out, use fewer `workers`)")
    except TimeoutError:
        return TaskFailure(f"took more than {timeout:g} s: give a longer `timeout`")
    except MemoryError:
        return TaskFailure("memory ran out: use fewer `workers`")
    except PROGRAM_ERRORS as error:
        raise RuntimeError(f"{type(error).__name__} at {task}: {error}") from error
    except Exception as error:  # an error of one task must not end the others
        return TaskFailure(f"{type(error).__name__}: {error}")


def usable_cores() -> int:
    """Returns the number of processes that can work at once: not more than a container's CPU quota, at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # no container, or "max": no limit
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, ceil(int(quota) / int(period)))
    return max(1, cores)
