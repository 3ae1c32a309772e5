"""Folders at URLs such as `s3://bucket/videos`: what may be read below them, and through what.

A URL is only ever what the user gives. Paths from a list are judged as text, and stay below it. fsspec, which knows the
protocols, is imported when it is first needed.
"""

from __future__ import annotations

import posixpath
import re
from urllib.parse import unquote

__all__ = ["RemoteRoot", "RemoteRootError", "check_readable", "is_url"]

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
