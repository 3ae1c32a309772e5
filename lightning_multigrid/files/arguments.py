"""Arguments from users: values in a range, paths and their suffixes, and the folder where none is given."""

import os
import sys
from pathlib import Path

StrPath = str | os.PathLike[str]
_LONGEST_QUOTE = 80

PLANES_SUFFIX = ".planes"  # of the files of decoded planes that `prepare` writes
VIDEO_SUFFIXES = (
    *(".3g2", ".3gp", ".asf", ".avi", ".divx", ".dv", ".f4v", ".flv", ".gif", ".m2ts", ".m2v", ".m4v", ".mjpeg"),
    *(".mjpg", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".mts", ".mxf", ".nut", ".ogv", ".ts", ".vob", ".webm", ".wmv"),
    PLANES_SUFFIX,
)
FRAME_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".webp")


def require(fulfilled: bool, name: str, value: object, requirement: str, advice: str = "") -> None:
    """Raises a ValueError that says what the argument `name` must be, unless that is fulfilled."""
    if not fulfilled:
        raise ValueError(f"`{name}` must be {requirement}, got {value!r}.{advice}")


def quoted(text: str) -> str:
    r"""Quotes text from a file for a message: on one line, and only its start if it is long.

    >>> print(quoted("a\tb"))
    'a\tb'
    """
    return repr(text) if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]!r}..."


def printable(text: str) -> str:
    r"""Returns text in which nothing that a file's name may hold controls the terminal; line breaks stay.

    >>> print(printable("a\x1b[2J.mp4"))
    a\x1b[2J.mp4
    """
    shown = (c if c.isprintable() or c == "\n" else c.encode("unicode_escape", "surrogatepass").decode() for c in text)
    return "".join(shown)


def of_videos(number: int) -> str:
    """A number of videos, in words.

    >>> of_videos(1), of_videos(1200)
    ('1 video', '1,200 videos')
    """
    return f"{number:,} video{'s' * (number != 1)}"


def at_home(path: str) -> str:
    """Returns a path with the user's home folder for a leading `~/`, as a shell does; in a config, there is none."""
    return os.path.expanduser(path) if path.startswith("~/") else path


def path_argument(name: str, value: StrPath) -> str:
    """Returns the argument `name` as text, `~/` expanded; a TypeError or a ValueError if no file can be named so."""
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(path, str):
        raise TypeError(f"`{name}` must be a path (str or os.PathLike), got {value!r}.")
    try:
        # Half a surrogate pair can't be in the name of a file.
        encoded = os.fsencode(path)
    except UnicodeEncodeError:
        encoded = b""
    if not encoded or b"\0" in encoded:
        raise ValueError(f"`{name}` is {quoted(path)}, which is not a path. Give one, or leave the argument out.")
    return at_home(path)


def is_frame(name: str) -> bool:
    """Whether a file in a folder counts as a frame, by its name."""
    return name[0] != "." and os.path.splitext(name)[1].lower() in FRAME_SUFFIXES


def cache_folder() -> Path:
    """The folder for what the package can write again: LIGHTNING_MULTIGRID_CACHE, or one among the user's caches.

    This is `~/.cache/lightning-multigrid` (under XDG_CACHE_HOME if set) on Linux, `~/Library/Caches/...` on macOS.
    """
    caches = "~/Library/Caches" if sys.platform == "darwin" else os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("LIGHTNING_MULTIGRID_CACHE") or f"{caches}/lightning-multigrid").expanduser()
