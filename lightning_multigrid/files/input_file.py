"""An ordinary file, read at any place: by us, or by FFmpeg."""

import errno
import os
import stat
from io import BufferedReader
from unicodedata import normalize

from lightning_multigrid.files.arguments import StrPath


def on_disk(path: StrPath) -> str:
    """The path of a file, in the form of Unicode that the disk has: a list may be in another, as after an unpacking."""
    path = os.fspath(path)
    # macOS takes apart what other systems write as one character. Where there is no such file, the path stays.
    forms = (path, normalize("NFC", path), normalize("NFD", path))
    return next(filter(os.path.lexists, forms), path)


class InputFile:
    """An ordinary file, open for reading; an OSError if it is not. A descriptor instead of a path is closed with it."""

    _descriptor = -1

    def __init__(self, path: StrPath | int) -> None:
        opens = os.O_RDONLY | os.O_NONBLOCK  # else opening a pipe would wait for its writer
        self._descriptor = path if isinstance(path, int) else os.open(on_disk(path), opens)
        found = os.fstat(self._descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not an ordinary file")
        self.size = found.st_size  # bytes, when it was opened

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    __del__ = close

    def read(self, position: int, size: int) -> bytes:
        """Returns the bytes at a place, fewer where the file ends; an OSError if they can't be read."""
        left = self.size - position
        return os.pread(self._descriptor, min(size, left), position) if left > 0 else b""

    def stream(self) -> BufferedReader:
        return open(os.dup(self._descriptor), "rb")  # closed on its own


class Cursor:
    """A file with a current position, as PyAV reads it; FFmpeg sees `name` as its name."""

    def __init__(self, file: InputFile, name: str, failures: list[OSError]) -> None:
        self.name = name
        self._file, self._position, self._failures = file, 0, failures

    def read(self, count: int) -> bytes:
        try:
            data = self._file.read(self._position, count)
        except OSError as error:  # it ends the file, and PyAV would raise it later, perhaps for another file
            self._failures.append(error)
            return b""
        self._position += len(data)
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = max(0, offset + (0, self._position, self._file.size)[whence])  # FFmpeg may seek before it
        return self._position

    def tell(self) -> int:
        return self._position
