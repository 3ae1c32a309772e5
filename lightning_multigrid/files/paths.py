"""Paths from users and lists, and the suffixes of videos and images."""

import os

StrPath = str | os.PathLike[str]
_LONGEST_QUOTE = 80

VIDEO_SUFFIXES = (
    *(".3gp", ".asf", ".avi", ".flv", ".gif", ".m2ts", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".mts", ".ogv"),
    *(".ts", ".webm", ".wmv"),
)
FRAME_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".webp")


class PathError(ValueError):
    """Text that can't be the path of a file."""


def quoted(text: str) -> str:
    r"""Quotes text from a file for a message: on one line, and only its start if it is long.

    >>> print(quoted("a\tb"))
    'a\tb'
    """
    return repr(text) if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]!r}..."


def path_argument(name: str, value: StrPath) -> str:
    """Returns the argument `name` as text: a TypeError if it is no path, a `PathError` if no file can be named so."""
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(path, str):
        raise TypeError(f"`{name}` must be a path (str or os.PathLike), got {value!r}.")
    try:
        # Half a surrogate pair can't be in the name of a file.
        encoded = os.fsencode(path)
    except UnicodeEncodeError:
        encoded = b""
    if not encoded or b"\0" in encoded:
        raise PathError(f"`{name}` is {quoted(path)}, which is not a path. Give one, or leave the argument out.")
    return path
