"""Files that are written whole or not at all, even if the machine or the process dies."""

import csv
import errno
import io
import os
import secrets
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import BinaryIO

from lightning_multigrid.files.arguments import StrPath

_PREFIX, _SUFFIX = ".lightning-multigrid-", ".part"
_LEFT = 86_400.0  # seconds without a write, after which an unfinished file is one that a process has left
_WAYS_OUT = dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "Free some space, or write to another folder")


class OutputError(OSError):
    """A file can't be written."""


@contextmanager
def output_errors(folder: str) -> Iterator[None]:
    """Turns errors of the system while writing to a folder into an `OutputError`, which says how to go on.

    Errors that name a file elsewhere, or are none of the system's, are of another origin, and stay what they are. A
    folder above this one isn't elsewhere: it is where this one could not be made.
    """
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        named = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else folder
        inside, path = os.path.join(os.path.abspath(folder), ""), os.path.join(os.path.abspath(named), "")
        if error.errno is None or not (path.startswith(inside) or inside.startswith(path)):
            raise
        way_out = _WAYS_OUT.get(error.errno, "Check the disk and its permissions")
        raise OutputError(error.errno, f"{error.strerror} while writing to {folder}. {way_out}.") from error


def temporary_name(folder: str) -> str:
    """Returns a path in a folder for an unfinished file: hidden, short, and recognised by `remove_partial`."""
    return os.path.join(folder, f"{_PREFIX}{secrets.token_hex(6)}{_SUFFIX}")


@contextmanager
def new_file(path: StrPath, part: StrPath | None = None, *, synced: bool = True) -> Iterator[BinaryIO]:
    """Opens a file that replaces `path` when the block ends without an error; an `OutputError` if it can't do that.

    Until then it is at `part`, in the same folder; by default at a new path that `remove_partial` recognises. It is
    `synced`, brought to the disk before it replaces the other one, unless who reads it would know that it isn't whole.
    """
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe or a device, which is written to, or an error
        with output_errors(folder), open(path, "wb") as file:
            yield file
        return
    temporary = part or temporary_name(folder)
    try:
        with output_errors(folder):
            with open(temporary, "xb" if part is None else "wb") as file:
                yield file
                if synced:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(temporary, path)
            if synced:
                _sync(folder)
    finally:
        with suppress(OSError):
            os.remove(temporary)


def write_csv(path: StrPath, rows: Iterable[Sequence[str]]) -> None:
    """Writes a CSV as `new_file` does. Names of files that aren't valid text keep their bytes."""
    text = io.StringIO()
    writer, quoting = (csv.writer(text, lineterminator="\n", quoting=how) for how in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL))
    for row in rows:  # Python 3.11 quotes no field with a carriage return, which would end a line
        (quoting if any("\r" in field for field in row) else writer).writerow(row)
    with new_file(path) as file:
        file.write(text.getvalue().encode("utf-8", "surrogateescape"))


def _sync(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno in (errno.EIO, errno.ENOSPC, errno.EDQUOT):  # others say that it can't: some network drives
            raise
    finally:
        os.close(descriptor)


def begin_in(folder: str) -> None:
    """Makes a folder, without what `remove_partial` removes; an `OutputError` if no file can be added to it."""
    with output_errors(folder):
        os.makedirs(folder, exist_ok=True)
        tried = temporary_name(folder)
        with open(tried, "xb"):
            pass
        os.remove(tried)
    remove_partial(folder)


def remove_partial(folder: str) -> None:
    """Removes what a killed process left unfinished in a folder and below it, a day ago or longer; follows no links."""
    for inner, _, names in os.walk(folder):
        for name in names:
            if name.startswith(_PREFIX) and _SUFFIX in name:
                path = os.path.join(inner, name)
                with suppress(OSError):  # another process has removed it, or it is another user's
                    found = os.lstat(path)
                    if stat.S_ISREG(found.st_mode) and found.st_mtime < time.time() - _LEFT:
                        os.remove(path)
