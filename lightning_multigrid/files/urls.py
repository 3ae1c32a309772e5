"""Videos at URLs such as `s3://bucket/a.mp4`, read through fsspec: FFmpeg never sees a URL."""

import os
import posixpath
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar
from urllib.parse import unquote

from lightning_multigrid.files.watched import HangError, Watch, time_limit, within

_Result = TypeVar("_Result")
_AT_ONCE = 32  # questions to a store, each of which may take tens of milliseconds
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def is_url(path: str) -> bool:
    """Whether a path is a URL rather than a file on disk.

    >>> is_url("s3://bucket/a.mp4"), is_url("/videos/s3:/a.mp4"), is_url("http:a.mp4")
    (True, False, False)
    """
    return _URL.match(path) is not None


class RemoteRootError(ValueError):
    """A URL that cannot be read: its protocol is unknown, or needs a package that is not installed."""


def _check_readable(url: str) -> None:
    """Refuses URLs that fsspec cannot read; nothing is opened."""
    protocol = url.partition("://")[0]
    if "::" in url:
        raise RemoteRootError(f"{url!r} holds '::', with which fsspec chains URLs. Give a single URL.")
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
    """A folder at a URL, without slashes at its end; a `RemoteRootError` if such URLs cannot be read.

    >>> root = RemoteRoot("memory://bucket/videos/")
    >>> root.key("run/a.mp4"), root.key("memory://bucket/videos/a.mp4"), root.key("../secret.mp4")
    ('run/a.mp4', 'a.mp4', None)
    """

    def __init__(self, url: str) -> None:
        _check_readable(url)
        protocol, _, rest = url.partition("://")
        if posixpath.pardir in rest.split("/"):
            raise RemoteRootError(f"{url!r} holds '..'. Give the URL without it.")
        self.url = f"{protocol}://{rest.rstrip('/')}"

    def key(self, path: str) -> str | None:
        """Returns a path relative to the root; None if it leads out of the root, as text or as a server may read it."""
        key = path.removeprefix(f"{self.url}/")
        for read in (key, unquote(key), key.replace("\\", "/")):
            if is_url(read) or "::" in read or read.startswith("/") or posixpath.pardir in read.split("/"):
                return None
        return posixpath.normpath(key)


class RemoteFile:
    """A file at a URL, with the interface of a `WatchedFile`; `modified` changes if its store reports a change."""

    def __init__(self, url: str, timeout: float | None) -> None:
        _check_readable(url)
        self._watch = Watch(timeout)
        self.failure: OSError | None = None
        self.closed = False
        self._files, self._path, info, mark = self._within(lambda: _look_up(url))
        self.is_folder, self.is_ordinary = info["type"] == "directory", info["type"] == "file"
        if self.is_ordinary and not isinstance(info["size"], int):
            raise OSError("its size is unknown, so parts of it cannot be read")
        self.size: int = info["size"] or 0
        self.modified = zlib.crc32(mark.encode())

    def close(self) -> None:
        """Refuses further reads; nothing is held open."""
        self.closed = True

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Reads as `WatchedFile.read` does."""
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
        except Exception as error:  # each store has its own kinds of errors
            raise OSError(f"{type(error).__name__}: {error}") from error


def size_and_change(path: str, timeout: float | None = None) -> tuple[int, int]:
    """Returns the bytes of a file on disk or at a URL, and a number that changes when it does; or raises an OSError."""
    if is_url(path):
        file = RemoteFile(path, timeout)
        return file.size, file.modified
    found = within(timeout, lambda: os.stat(path))
    return found.st_size, found.st_mtime_ns


def sizes_and_changes(paths: Iterable[str]) -> dict[str, tuple[int, int] | OSError | ValueError]:
    """Returns for each path what `size_and_change` does, or its error. It asks for many files at a time."""
    distinct = list(dict.fromkeys(paths))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return dict(zip(distinct, pool.map(partial(_size_or_error, time_limit()), distinct), strict=True))


def _size_or_error(timeout: float, path: str) -> tuple[int, int] | OSError | ValueError:
    try:
        return size_and_change(path, timeout)
    except (OSError, ValueError) as error:
        return error


def names_at(folder: str) -> frozenset[str]:
    """Returns the names in a folder on disk or at a URL; none if there is no such folder, or it can't be listed.

    A `HangError` if a folder on disk isn't listed in time.
    """
    if not is_url(folder):
        try:
            return frozenset(within(None, lambda: os.listdir(folder)))
        except HangError:
            raise
        except OSError:
            return frozenset()
    import fsspec

    with suppress(FileNotFoundError):
        files, path = fsspec.core.url_to_fs(folder)
        return frozenset(posixpath.basename(name.rstrip("/")) for name in files.ls(path, detail=False))
    return frozenset()


def _look_up(url: str) -> tuple[Any, str, dict[str, Any], str]:
    """Returns the file system of a URL, the path in it, what it says of the file, and a mark that changes with that."""
    import fsspec

    files, path = fsspec.core.url_to_fs(url)
    return files, path, files.info(path), files.ukey(path)
