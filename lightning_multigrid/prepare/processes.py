"""Calls a function for many tasks in worker processes: one that dies or hangs costs its task, not the others.

The processes are pebble's. It starts them anew ("spawn"), so a script that wants them guards what it does by
`if __name__ == "__main__":`, as for any use of `multiprocessing`.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, TimeoutError, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

import torch
from pebble import ProcessExpired, ProcessPool

from lightning_multigrid.decode import OURS

TASK_SECONDS = 4 * 3600.0
"""Seconds that a task may take where nothing else is said. `limits.py` in `decode` bounds what a decode takes."""

_NO_WORKERS = (
    "Worker processes end before they begin to work, or while they wait. In a script, call this below "
    '`if __name__ == "__main__":`, or give `workers=0`. If the system ended them, run the same command again.'
)
# From outside, as when memory runs out; by others a process ends itself when it crashes on a file.
_FROM_OUTSIDE = {signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM}


@dataclass(frozen=True)
class TaskFailure:
    """Why a task has no result: it raised an error, or its process died or took too long.

    `killed` says that the machine is at fault, whose memory ran out: the task may do well another time.
    """

    reason: str
    killed: bool = False


def run_tasks(
    function: Callable[[Any], Any], tasks: Iterable[Any], workers: int, timeout: float = TASK_SECONDS
) -> Generator[tuple[Any, Any], None, None]:
    """Calls a function for each task, and yields (task, result) as they finish; a result may be a `TaskFailure`.

    The function is one of a module. A process whose task takes more than `timeout` seconds is ended. Tasks are taken as
    workers become free. With 0 workers the function is called here.

    Raises:
        RuntimeError: For what can only be a mistake in the function (an AttributeError, a TypeError ...), with the
            task; and if no worker process can start.
    """
    if not workers:
        for task in tasks:
            yield task, _result(partial(function, task), task, timeout)
        return
    # Not forks: those of a process with threads may hang.
    pool = ProcessPool(workers, initializer=_begin, context=multiprocessing.get_context("spawn"))
    running: dict[Future[Any], Any] = {}

    def finished() -> Iterator[tuple[Any, Any]]:
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            task = running.pop(future)
            yield task, _result(future.result, task, timeout)

    try:
        for task in tasks:
            try:
                running[pool.schedule(function, args=[task], timeout=timeout)] = task
            except RuntimeError as error:  # the pool is broken
                raise RuntimeError(_NO_WORKERS) from error
            while len(running) >= 2 * workers:  # so many that no worker waits for a task
                yield from finished()
        while running:
            yield from finished()
    finally:
        pool.stop()  # type: ignore[no-untyped-call]
        pool.join()


def _begin() -> None:
    """Begins a worker. What tasks need is imported with this module, before a worker holds the pool's lock."""
    torch.set_num_threads(1)  # there are other processes
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Ends a worker whose parent was killed: nobody wants its result, and its task may take hours."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _result(call: Callable[[], Any], task: Any, timeout: float) -> Any:
    try:
        return call()
    except BrokenProcessPool as error:
        raise RuntimeError(_NO_WORKERS) from error
    except ProcessExpired as error:
        return _ended(error.exitcode or 0)
    except TimeoutError:
        return TaskFailure(f"took more than {timeout:g} s: give a longer `timeout`")
    except MemoryError:
        return TaskFailure("memory ran out: use fewer `workers`", killed=True)
    except OURS as error:
        raise RuntimeError(f"{type(error).__name__} at {task}: {error}") from error
    except Exception as error:  # an error of one task must not end the others
        return TaskFailure(f"{type(error).__name__}: {error}")


def _ended(status: int) -> TaskFailure:
    if status >= 0:
        return TaskFailure(f"the process that worked on it ended with exit status {status}")
    name = signal.Signals(-status).name
    if -status in _FROM_OUTSIDE:
        return TaskFailure(f"killed by signal {name}, as when memory runs out: use fewer `workers`", killed=True)
    return TaskFailure(f"the process that worked on it ended by signal {name}")


def usable_cores(control_groups: str = "/proc/self/cgroup", mount: str = "/sys/fs/cgroup") -> int:
    """Returns the number of processes that can work at once, at least 1.

    That is the number of cores that this process may use, but not more than the CPU quota of its control groups
    (version 2), which containers and batch systems set: a quota of 1.5 cores keeps 2 processes busy.

    Args:
        control_groups: Linux's file that names the control group of this process.
        mount: Where control groups are mounted.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    group = Path()
    with suppress(OSError):  # not Linux
        group = Path(Path(control_groups).read_text().strip().rpartition(":")[2].lstrip("/"))
    # In a container the path may be that of the host, and the mount the group itself.
    for folder in {group, *group.parents, Path()}:
        with suppress(OSError, ValueError):  # "max": no limit
            quota, period = (Path(mount) / folder / "cpu.max").read_text().split()
            cores = min(cores, ceil(int(quota) / int(period)))
    return max(1, cores)
