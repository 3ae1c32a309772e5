"""Files at URLs such as `s3://bucket/a.mp4`, read through fsspec: only the bytes that are asked for.

FFmpeg never sees a URL: what it reads comes from here.
"""

from __future__ import annotations

import os
import posixpath
import re
import zlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import unquote

from lightning_multigrid.files.watched import Watch

__all__ = ["RemoteFile", "RemoteRoot", "RemoteRootError", "check_readable", "is_url", "size_and_change"]

_Result = TypeVar("_Result")


class RemoteFile:
    """A file at a URL, with the interface of a `WatchedFile`.

    Args:
        url: Where it lies.
        timeout: Seconds that a read may take.

    Attributes:
        size: Its bytes.
        modified: A number that changes when the file does, as far as its store tells.
        failure: The error of a read through a `Cursor`, which has no other way to tell.
        closed: Whether `close` was called.

    Raises:
        OSError: If it is missing or cannot be read.
        HangError: If that does not turn out in time.
        RemoteRootError: If nothing can read such URLs.
    """

    def __init__(self, url: str, timeout: float) -> None:
        check_readable(url)
        self._watch = Watch(timeout)
        self.failure: OSError | None = None
        self.closed = False
        self._files, self._path, info, mark = self._within(lambda: _look_up(url))
        self.is_folder, self.is_ordinary = info["type"] == "directory", info["type"] == "file"
        if self.is_ordinary and not isinstance(info["size"], int):
            raise OSError("its size is unknown, and parts of it cannot be asked for")
        self.size: int = info["size"] or 0
        self.modified = zlib.crc32(mark.encode())

    def close(self) -> None:
        """Nothing is held open."""
        self.closed = True

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Bytes at (position, size) each; fewer where the file ends.

        Raises:
            OSError: If they cannot be read.
        """
        if self.closed:
            raise ValueError("read of a closed file")
        spans = [(position, min(position + size, self.size)) for position, size in ranges]
        asked = [(start, end) for start, end in spans if start < end]  # stores refuse empty ranges
        starts, ends = [start for start, _ in asked], [end for _, end in asked]
        paths = [self._path] * len(asked)
        found = self._within(lambda: self._files.cat_ranges(paths, starts, ends, on_error="raise")) if asked else []
        data = dict(zip(asked, found, strict=True))
        return [data.get(span, b"") for span in spans]

    def _within(self, job: Callable[[], _Result]) -> _Result:
        try:
            return self._watch.run(job)
        except OSError:
            raise
        except Exception as error:  # each store has kinds of its own
            raise OSError(f"{type(error).__name__}: {error}") from error


def size_and_change(path: str, timeout: float = 60.0) -> tuple[int, int]:
    """Bytes of what lies on disk or at a URL, and a number that changes when it does.

    Raises:
        OSError: If it is missing, or cannot be looked at.
    """
    if is_url(path):
        file = RemoteFile(path, timeout)
        return file.size, file.modified
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns


def _look_up(url: str) -> tuple[Any, str, dict[str, Any], str]:
    """The file system of a URL, the file's path in it, what it tells of it, and a mark that changes with the file."""
    import fsspec

    files, path = fsspec.core.url_to_fs(url)
    return files, path, files.info(path), files.ukey(path)


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class RemoteRootError(ValueError):
    """A URL that cannot be read: its protocol is unknown, or needs a package that is not installed."""


def is_url(path: str) -> bool:
    """Whether a path is a URL rather than a file on disk.

    >>> is_url("s3://bucket/a.mp4"), is_url("/videos/s3:/a.mp4"), is_url("http:a.mp4")
    (True, False, False)
    """
    return _URL.match(path) is not None


def check_readable(url: str) -> None:
    """Raises unless fsspec can read such URLs; nothing is opened.

    Raises:
        RemoteRootError: If not.
    """
    protocol = url.partition("://")[0]
    if "::" in url:
        raise RemoteRootError(f"{url!r} holds '::', by which fsspec chains URLs. Give the URL itself.")
    try:
        import fsspec

        fsspec.get_filesystem_class(protocol)
    except ValueError as error:
        raise RemoteRootError(
            f"{url!r} has a protocol that fsspec does not know. Give a path, or a URL such as `s3://bucket/videos`."
        ) from error
    except ImportError as error:
        raise RemoteRootError(
            f"{url!r} needs a package that reads `{protocol}://` ({error}). `pip install fsspec[{protocol}]` brings it."
        ) from error


class RemoteRoot:
    """A folder at a URL.

    Args:
        url: What the user gave.

    Attributes:
        url: The same without slashes at its end.

    Raises:
        RemoteRootError: If such URLs cannot be read.

    >>> root = RemoteRoot("memory://bucket/videos/")
    >>> root.key("run/a.mp4"), root.key("memory://bucket/videos/a.mp4"), root.key("../secret.mp4")
    ('run/a.mp4', 'a.mp4', None)
    """

    def __init__(self, url: str) -> None:
        check_readable(url)
        protocol, _, rest = url.partition("://")
        if posixpath.pardir in rest.split("/"):
            raise RemoteRootError(f"{url!r} holds '..'. Give the folder that it means.")
        self.url = f"{protocol}://{rest.rstrip('/')}"
        self._listings: dict[str, frozenset[str]] = {}

    def key(self, path: str) -> str | None:
        """A path as it lies below the root, or None if it leads out, as it stands or as a server may take it."""
        key = path.removeprefix(f"{self.url}/")
        if any(map(_leads_out, (key, unquote(key), key.replace("\\", "/")))):
            return None
        return posixpath.normpath(key)

    def exists(self, key: str) -> bool:
        """Whether there is such a file. Each folder is listed once."""
        folder, name = posixpath.split(f"{self.url}/{key}")
        if folder not in self._listings:
            self._listings[folder] = _names_in(folder)
        return name in self._listings[folder]


def _leads_out(key: str) -> bool:
    return is_url(key) or "::" in key or key.startswith("/") or posixpath.pardir in key.split("/")


def _names_in(url: str) -> frozenset[str]:
    import fsspec

    try:
        files, path = fsspec.core.url_to_fs(url)
        return frozenset(posixpath.basename(name.rstrip("/")) for name in files.ls(path, detail=False))
    except FileNotFoundError:
        return frozenset()
