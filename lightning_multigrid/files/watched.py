"""A file whose reads end: one that hangs, as on a network drive that is gone, is an error after a while.

Nothing can be done about a thread that waits for a dead drive, so another one does the reading. It is given up when it
takes too long, and the next reader starts a new one. What lies in memory is read without it.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Protocol, TypeVar

__all__ = ["Cursor", "HangError", "ReadableFile", "Watch", "WatchedFile", "within"]

_Result = TypeVar("_Result")
# What is read ahead of a container: a few megabytes are one or two dozen reads.
_CHUNK = 1 << 18
# Bytes that a thread keeps to read into.
_MOST_ROOM = 1 << 23
# Linux reads what lies in memory, and no more, on request. Network drives refuse.
_NO_WAIT: int = getattr(os, "RWF_NOWAIT", 0)


class HangError(OSError):
    """A read that did not end in time."""


class ReadableFile(Protocol):
    """What containers are read from; see `WatchedFile`."""

    failure: OSError | None

    @property
    def size(self) -> int: ...

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]: ...


class Watch:
    """Ends the reads of one file in time; behind one that hung, no other is begun.

    Args:
        timeout: Seconds that a read may take.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.hung: HangError | None = None

    def run(self, job: Callable[[], _Result]) -> _Result:
        """What a read returns.

        Raises:
            HangError: If it, or one before it, did not end in time.
        """
        if self.hung is not None:
            raise self.hung
        try:
            return within(job, self.timeout)
        except HangError as error:
            self.hung = error
            raise


class WatchedFile:
    """An ordinary file, open for reading.

    Args:
        path: Where it lies.
        timeout: Seconds that a read may take.

    Attributes:
        size: Its bytes.
        modified: When it was changed last, in nanoseconds.
        failure: The error of a read through a `Cursor`, which has no other way to tell.

    Raises:
        OSError: If it is missing, a directory, or may not be read.
        HangError: If that does not turn out in time.
    """

    def __init__(self, path: str, timeout: float) -> None:
        self._watch = Watch(timeout)
        self.failure: OSError | None = None
        self._descriptor = -1
        self._descriptor, found = self._watch.run(lambda: _open(path))
        self.size, self.modified = found.st_size, found.st_mtime_ns
        self.is_ordinary, self.is_folder = stat.S_ISREG(found.st_mode), stat.S_ISDIR(found.st_mode)

    def close(self) -> None:
        """Lets go of the file; for a read that hangs it stays open."""
        if self._descriptor >= 0 and self._watch.hung is None:
            os.close(self._descriptor)
        self._descriptor = -1

    def __del__(self) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._descriptor < 0

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Bytes at (position, size) each; fewer where the file ends.

        Raises:
            OSError: If they cannot be read.
        """
        descriptor = self._descriptor
        if descriptor < 0:
            raise ValueError("read of a closed file")
        at_hand = [_at_hand(descriptor, position, min(size, max(self.size - position, 0))) for position, size in ranges]
        found = [data for data in at_hand if data is not None]
        if len(found) == len(ranges):
            return found
        return self._watch.run(lambda: [os.pread(descriptor, size, position) for position, size in ranges])


class Cursor:
    """A place in a file, to read on from as PyAV does.

    An error is an early end of the file here, and is told by `WatchedFile.failure`: PyAV raises what a read raises
    whenever it next can, which may be for another file.

    Args:
        file: The file.
        name: What FFmpeg is told that it is called.
    """

    def __init__(self, file: ReadableFile, name: str) -> None:
        self.name = name
        self._file, self._place = file, 0
        self._chunk, self._chunk_start = b"", 0

    def read(self, count: int = -1) -> bytes:
        """The next bytes, at most `count`."""
        at = self._place - self._chunk_start
        if not 0 <= at < len(self._chunk):
            size = min(max(count, _CHUNK), max(self._file.size - self._place, 0))
            try:
                self._chunk = self._file.read([(self._place, size)])[0] if size else b""
            except OSError as error:
                self._chunk, self._file.failure = b"", error
            self._chunk_start, at = self._place, 0
        taken = self._chunk[at : at + count] if count >= 0 else self._chunk[at:]
        self._place += len(taken)
        return taken

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Moves the place, and returns it."""
        self._place = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._file.size}[whence]
        return self._place

    def tell(self) -> int:
        """The place."""
        return self._place


def within(job: Callable[[], _Result], timeout: float) -> _Result:
    """What a job returns, if it does in time. It goes on in its thread if it does not.

    Raises:
        HangError: If it did not return within `timeout` seconds.
    """
    return _threads.run(job, timeout)


def _at_hand(descriptor: int, position: int, size: int) -> bytes | None:
    """Bytes of a file that lie in memory, so that reading them takes no time; None if it might."""
    if not _NO_WAIT:
        return None
    try:
        place = _threads.room(size)
        if os.preadv(descriptor, [place], position, _NO_WAIT) == size:
            return bytes(place)
    except OSError:  # not in memory, or on a file system that cannot tell
        pass
    return None


def _open(path: str) -> tuple[int, os.stat_result]:
    # A pipe that nobody writes to is not waited for.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        return descriptor, os.fstat(descriptor)
    except BaseException:
        os.close(descriptor)
        raise


class _Reader:
    """A thread that runs jobs for another one, until it is let go of."""

    def __init__(self) -> None:
        self.jobs: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self.results: SimpleQueue[tuple[object, BaseException | None]] = SimpleQueue()
        self._thread = threading.Thread(target=_serve, args=(self.jobs, self.results), name="video reads", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Ends the thread, which is idle."""
        self.jobs.put(None)
        self._thread.join()

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
    """The reader of a thread."""

    def __init__(self) -> None:
        self._reader: _Reader | None = None
        self._room = bytearray()

    def room(self, size: int) -> memoryview:
        """So many bytes to read into. New ones would cost more than the reading."""
        if size > _MOST_ROOM:
            return memoryview(bytearray(size))
        if size > len(self._room):
            self._room = bytearray(max(size, _CHUNK))
        return memoryview(self._room)[:size]

    def run(self, job: Callable[[], _Result], timeout: float) -> _Result:
        reader = self._reader or _Reader()
        self._reader = None  # not used again unless the result is taken: an interrupt may come in between
        reader.jobs.put(job)
        try:
            result, error = reader.results.get(timeout=timeout)
        except Empty:
            raise HangError(f"a read did not end within {timeout:g} s") from None
        self._reader = reader
        if error is not None:
            raise error
        return result  # type: ignore[return-value]

    def rest(self) -> None:
        """Ends the reader, until the next read."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.end()


_threads = _Threads()
# A forked process has none of its parent's threads, and a parent without threads is one that may fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_threads.rest)
