"""Reads that end: one that hangs, as on a network drive that is gone, becomes an error.

A thread that waits for a dead drive can't be interrupted, so another one does the waiting, and is dropped if it hangs.
That costs some 50 microseconds for each read. What the system holds in memory is read without it, where it says so.

The time that a read may take halves with each read of this process that still hangs. So a drive that is gone costs
about two time limits in all, however many of its files are tried one after the other; and where only some files hang,
the others are still read.
"""

import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from queue import Empty, SimpleQueue
from typing import TypeVar, cast

_Result = TypeVar("_Result")
READ_TIMEOUT = 60.0
"""Seconds that a read may take where nothing else is said."""
_limit = ContextVar("read_timeout", default=READ_TIMEOUT)
_MOST_HALVES = 6  # a drive that is only slow still gets a second of 60


class HangError(OSError):
    """A read that did not end in time."""


@contextmanager
def reads_within(timeout: float) -> Iterator[None]:
    """Within it, reads of files that name no other time limit may take `timeout` seconds, also later on."""
    before = _limit.set(timeout)
    try:
        yield
    finally:
        _limit.reset(before)


def within(timeout: float | None, job: Callable[[], _Result]) -> _Result:
    """Returns what a job returns that reads from a drive: a `HangError` if it takes more than `timeout` seconds.

    None is the time limit of `reads_within`, else `READ_TIMEOUT`. While other reads of this process hang, there is less
    time.
    """
    return _threads.run(job, time_limit(timeout))


def time_limit(timeout: float | None = None) -> float:
    """Returns the seconds that a read may take: those that are given, else those of `reads_within`."""
    return _limit.get() if timeout is None else timeout


class Watch:
    """Runs the reads of one file, each with a time limit in seconds. After a read that hung no other is begun."""

    def __init__(self, timeout: float | None) -> None:
        self.timeout = time_limit(timeout)
        self.hung: HangError | None = None

    def run(self, job: Callable[[], _Result]) -> _Result:
        """Returns what a read returns; raises `HangError` if this read, or an earlier one, did not end in time."""
        if self.hung is not None:
            raise self.hung
        try:
            return within(self.timeout, job)
        except HangError as error:
            self.hung = error
            raise


class WatchedFile:
    """An ordinary file, open for reading; opening it and each read may take `timeout` seconds, else a `HangError`."""

    def __init__(self, path: str, timeout: float | None = None) -> None:
        self._watch = Watch(timeout)
        self.failure: OSError | None = None  # of a read through a `Cursor`, which can't raise it
        self._descriptor = -1
        self._descriptor, found = self._watch.run(lambda: _open(path))
        self.size, self.modified = found.st_size, found.st_mtime_ns
        self.is_ordinary, self.is_folder = stat.S_ISREG(found.st_mode), stat.S_ISDIR(found.st_mode)

    def close(self) -> None:
        """Closes the file, unless a read of it hangs: that one still uses it."""
        if self._descriptor >= 0 and self._watch.hung is None:
            os.close(self._descriptor)
        self._descriptor = -1

    def __del__(self) -> None:
        self.close()

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Returns the bytes at each (position, size), fewer where the file ends; an OSError if they can't be read."""
        descriptor = self._descriptor
        if descriptor < 0:
            raise ValueError("read of a closed file")
        there = [(position, min(size, max(self.size - position, 0))) for position, size in ranges]
        held = [_held_in_memory(descriptor, size, position) for position, size in there]
        if None not in held:
            return cast("list[bytes]", held)
        return self._watch.run(lambda: [os.pread(descriptor, size, position) for position, size in there])


def _held_in_memory(descriptor: int, size: int, position: int) -> bytes | None:
    """Reads what the system holds in memory, which no drive can delay; None if some of it isn't, or none can tell."""
    buffer = bytearray(size)
    try:
        return bytes(buffer) if os.preadv(descriptor, [buffer], position, os.RWF_NOWAIT) == size else None
    except (AttributeError, OSError):  # not Linux; not held, or a file system that does not tell, such as NFS
        return None


def _open(path: str) -> tuple[int, os.stat_result]:
    # O_NONBLOCK: opening a pipe would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return descriptor, os.fstat(descriptor)
    except BaseException:
        os.close(descriptor)
        raise


class _Reader:
    """A thread that runs jobs for another one, until that one drops it."""

    def __init__(self) -> None:
        self.jobs: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self.results: SimpleQueue[tuple[object, BaseException | None]] = SimpleQueue()
        self.thread = threading.Thread(target=_serve, args=(self.jobs, self.results), name="video reads", daemon=True)
        self.thread.start()

    def __del__(self) -> None:
        self.jobs.put(None)


def _serve(
    jobs: SimpleQueue[Callable[[], object] | None], results: SimpleQueue[tuple[object, BaseException | None]]
) -> None:
    while (job := jobs.get()) is not None:
        try:
            results.put((job(), None))
        except BaseException as error:
            results.put((None, error))
        del job


class _Threads(threading.local):
    """The reader of the current thread. A job that takes too long continues, and nobody waits for it."""

    def __init__(self) -> None:
        self._reader: _Reader | None = None

    def run(self, job: Callable[[], _Result], timeout: float) -> _Result:
        _hung[:] = [late for late in _hung if late.results.empty()]
        others = len(_hung)
        limit = timeout / 2 ** min(others, _MOST_HALVES)
        reader = self._reader or _Reader()
        self._reader = None  # used again only after its result was taken; an interrupt may come before that
        reader.jobs.put(job)
        try:
            result, error = reader.results.get(timeout=limit)
        except Empty:
            _hung.append(reader)
            reader.jobs.put(None)  # its thread ends with this read
            after = f", while {others} before it still hang" if others else ""
            raise HangError(f"a read did not end within {limit:.3g} s{after}") from None
        self._reader = reader
        if error is not None:
            try:
                raise error
            finally:
                del error  # else it and this frame would keep each other, and what callers have open
        return result  # type: ignore[return-value]

    def rest(self) -> None:
        """Ends the reader, which is idle; the next read starts a new one."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.jobs.put(None)
            reader.thread.join()


_hung: list[_Reader] = []  # those of this process that were dropped, until their reads end
_threads = _Threads()
# A forked process has none of its parent's threads, and forking is safe only without threads.
os.register_at_fork(before=_threads.rest, after_in_child=_hung.clear)
