"""A file whose reads end: a read that hangs, as on a network drive that is gone, becomes an error.

A thread that waits for a dead drive can't be interrupted, so another one does the waiting, and is dropped if it hangs.
Bytes in memory are read without it: with RWF_NOWAIT, Linux never waits for a drive. A read of 30 kB then takes 7
microseconds instead of 30 to 40.
"""

import os
import stat
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from lightning_multigrid.files.urls import RemoteFile

_Result = TypeVar("_Result")
_CHUNK = 1 << 18  # a `Cursor` reads at least this much at once
_MOST_ROOM = 1 << 23  # the largest buffer that a thread keeps between reads
_NO_WAIT: int = getattr(os, "RWF_NOWAIT", 0)  # 0 where the system lacks it; network drives refuse it


class HangError(OSError):
    """A read that did not end in time."""


class Watch:
    """Runs the reads of one file, each with a time limit in seconds. After a read that hung no other is begun."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.hung: HangError | None = None

    def run(self, job: Callable[[], _Result]) -> _Result:
        """Returns what a read returns; raises `HangError` if this read, or an earlier one, did not end in time."""
        if self.hung is not None:
            raise self.hung
        try:
            return _threads.run(job, self.timeout)
        except HangError as error:
            self.hung = error
            raise


class WatchedFile:
    """An ordinary file, open for reading; opening it and each read may take `timeout` seconds, else a `HangError`."""

    def __init__(self, path: str, timeout: float) -> None:
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
        at_hand = [_at_hand(descriptor, position, min(size, max(self.size - position, 0))) for position, size in ranges]
        found = [data for data in at_hand if data is not None]
        if len(found) == len(ranges):
            return found
        return self._watch.run(lambda: [os.pread(descriptor, size, position) for position, size in ranges])


class Cursor:
    """A file with a current position, as PyAV reads it; FFmpeg sees `name` as its name.

    An error ends the file and is kept in its `failure`: PyAV would raise it later, perhaps for another file.
    """

    def __init__(self, file: "WatchedFile | RemoteFile", name: str) -> None:
        self.name = name
        self._file, self._position = file, 0
        self._chunk, self._chunk_start = b"", 0

    def read(self, count: int = -1) -> bytes:
        at = self._position - self._chunk_start
        if not 0 <= at < len(self._chunk):
            size = min(max(count, _CHUNK), max(self._file.size - self._position, 0))
            try:
                self._chunk = self._file.read([(self._position, size)])[0] if size else b""
            except OSError as error:
                self._chunk, self._file.failure = b"", error
            self._chunk_start, at = self._position, 0
        taken = self._chunk[at : at + count] if count >= 0 else self._chunk[at:]
        self._position += len(taken)
        return taken

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._file.size}[whence]
        return self._position

    def tell(self) -> int:
        return self._position


def _at_hand(descriptor: int, position: int, size: int) -> bytes | None:
    """Returns bytes of a file if the system holds them in memory, else None."""
    if _NO_WAIT:
        try:
            room = _threads.room(size)
            if os.preadv(descriptor, [room], position, _NO_WAIT) == size:
                return bytes(room)
        except OSError:  # not in memory, or a file system without the flag
            pass
    return None


def _open(path: str) -> tuple[int, os.stat_result]:
    # O_NONBLOCK: opening a pipe would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
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
    """The reader and the buffer of the current thread. A job that takes too long continues, and nobody waits for it."""

    def __init__(self) -> None:
        self._reader: _Reader | None = None
        self._room = bytearray()

    def room(self, size: int) -> memoryview:
        """Returns a buffer of `size` bytes. A new one for each read would cost more than the read."""
        if size > _MOST_ROOM:
            return memoryview(bytearray(size))
        if size > len(self._room):
            self._room = bytearray(max(size, _CHUNK))
        return memoryview(self._room)[:size]

    def run(self, job: Callable[[], _Result], timeout: float) -> _Result:
        reader = self._reader or _Reader()
        self._reader = None  # used again only after its result was taken; an interrupt may come before that
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
        """Ends the reader, which is idle; the next read starts a new one."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.jobs.put(None)
            reader.thread.join()


_threads = _Threads()
# A forked process has none of its parent's threads, and forking is safe only without threads.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_threads.rest)
