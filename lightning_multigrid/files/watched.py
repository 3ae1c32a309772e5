"""Reads that end: one that hangs, as on a network drive that is gone, becomes an error.

A thread that waits for a dead drive can't be interrupted, so another one does the waiting, and is dropped if it hangs.
That costs some 20 microseconds for each read. What the system holds in memory is read without it, where it says so.

The time that a read may take halves with each read of this process that still hangs. So a drive that is gone costs
about two time limits in all, however many of its files are tried one after the other; and where only some files hang,
the others are still read.
"""

import os
import stat
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeVar

_Result = TypeVar("_Result")
READ_TIMEOUT = 60.0
"""Seconds that a read may take where nothing else is said."""
_MOST_HALVES = 6  # a drive that is only slow still gets a second of 60
_CHUNK = 1 << 18  # a `Cursor` reads at least this much at once


class HangError(OSError):
    """A read that did not end in time."""


def within(timeout: float, job: Callable[[], _Result]) -> _Result:
    """Returns what a job returns that reads from a drive: a `HangError` if it takes more than `timeout` seconds.

    While other reads of this process hang, there is less time.
    """
    return _threads.run(job, timeout)


class WatchedFile:
    """An ordinary file, open for reading; opening it and each read may take `timeout` seconds, else a `HangError`."""

    def __init__(self, path: str, timeout: float = READ_TIMEOUT) -> None:
        self._timeout = timeout
        self._hung: HangError | None = None
        self.failure: OSError | None = None  # of a read through a `Cursor`, which can't raise it
        self._descriptor = -1
        self._descriptor, found = within(timeout, lambda: _open(path))
        self.size = found.st_size
        self.is_ordinary, self.is_folder = stat.S_ISREG(found.st_mode), stat.S_ISDIR(found.st_mode)

    def close(self) -> None:
        """Closes the file, unless a read of it hangs: that one still uses it."""
        if self._descriptor >= 0 and self._hung is None:
            os.close(self._descriptor)
        self._descriptor = -1

    def __del__(self) -> None:
        self.close()

    def read(self, position: int, size: int) -> bytes:
        """Returns the bytes at a place, fewer where the file ends; an OSError if they can't be read.

        After a read that hung no other is begun.
        """
        descriptor = self._descriptor
        if descriptor < 0:
            raise ValueError("read of a closed file")
        size = min(size, max(self.size - position, 0))
        held = _held_in_memory(descriptor, size, position)
        if held is not None:
            return held
        if self._hung is not None:
            raise self._hung
        try:
            return within(self._timeout, lambda: os.pread(descriptor, size, position))
        except HangError as error:
            self._hung = error
            raise


class Cursor:
    """A file with a current position, as PyAV reads it; FFmpeg sees `name` as its name.

    An error ends the file and is kept in its `failure`: PyAV would raise it later, perhaps for another file.
    """

    def __init__(self, file: WatchedFile, name: str) -> None:
        self.name = name
        self._file, self._position = file, 0
        self._chunk, self._chunk_start = b"", 0

    def read(self, count: int = -1) -> bytes:
        """Returns so many bytes, fewer only where the file ends; all that are left if `count` is negative."""
        left = max(self._file.size - self._position, 0)
        count = min(count, left) if count >= 0 else left
        at = self._position - self._chunk_start
        if at < 0 or at + count > len(self._chunk):
            try:
                self._chunk = self._file.read(self._position, max(count, _CHUNK))
            except OSError as error:
                self._chunk, self._file.failure = b"", error
            self._chunk_start, at = self._position, 0
        taken = self._chunk[at : at + count]
        self._position += len(taken)
        return taken

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset + (0, self._position, self._file.size)[whence]
        return self._position

    def tell(self) -> int:
        return self._position


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
