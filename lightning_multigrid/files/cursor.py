"""Files as FFmpeg and Python's text files read them: from a current position on."""

import io
import os

from lightning_multigrid.files.urls import RemoteFile
from lightning_multigrid.files.watched import WatchedFile

ReadableFile = RemoteFile | WatchedFile

_CHUNK = 1 << 18  # a `Cursor` reads at least this much at once
_PIECE = 1 << 20  # a `_Stream` reads at most this much within one time limit


class Cursor:
    """A file with a current position, as PyAV reads it; FFmpeg sees `name` as its name.

    An error ends the file and is kept in its `failure`: PyAV would raise it later, perhaps for another file.
    """

    def __init__(self, file: ReadableFile, name: str) -> None:
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
        self._position = offset + (0, self._position, self._file.size)[whence]
        return self._position

    def tell(self) -> int:
        return self._position


def open_bytes(path: str, timeout: float | None = None) -> io.BufferedReader:
    """Opens an ordinary file on disk; each MB that is read of it may take `timeout` seconds.

    An OSError if it can't be opened; an `io.UnsupportedOperation` if it is a folder, a pipe or a device.
    """
    file = WatchedFile(path, timeout)
    if not file.is_ordinary:
        raise io.UnsupportedOperation("not a file")
    return io.BufferedReader(_Stream(file), _PIECE)


class _Stream(io.RawIOBase):
    def __init__(self, file: WatchedFile) -> None:
        self._file, self._position = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset + (0, self._position, self._file.size)[whence]
        return self._position

    def readinto(self, buffer: "memoryview") -> int:  # type: ignore[override]
        [data] = self._file.read([(self._position, min(len(buffer), _PIECE))])
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()
