"""Files that are there whole or not at all, whatever moment the machine or the run dies at."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from lightning_multigrid.files.paths import StrPath

__all__ = [
    "OutputError",
    "new_file",
    "output_error",
    "output_errors",
    "remove_partial",
    "sync_folder",
    "sync_to_disk",
    "temporary_name",
]

_PREFIX, _SUFFIX = ".lightning-multigrid-", ".part"
# What is wrong with the disk, not with what is written to it.
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class OutputError(OSError):
    """Nothing more can be written to the output folder."""


@contextmanager
def output_errors(folder: str) -> Iterator[None]:
    """Errors of the system while writing to a folder become an `OutputError` that says how to go on."""
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        raise output_error(folder, error.errno or 0, error.strerror or str(error)) from error


def output_error(folder: str, number: int, text: str) -> OutputError:
    """The error for an errno of the system and its text."""
    way_out = "Free some space, or give another `output`" if number in _FULL else "Check the disk and its permissions"
    return OutputError(
        number,
        f"{text} while writing to {folder}. What is there is whole, and the same command goes on from it. {way_out}.",
    )


def temporary_name(folder: str) -> str:
    """Path in a folder for a file that is not whole yet: hidden, short, and told by `remove_partial`."""
    return os.path.join(folder, f"{_PREFIX}{secrets.token_hex(6)}{_SUFFIX}")


@contextmanager
def new_file(path: StrPath) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path` when the block ends without an error, and not before.

    Raises:
        OutputError: If it can't be written.
    """
    folder = os.path.dirname(os.path.abspath(path))
    temporary = temporary_name(folder)
    try:
        with output_errors(folder):
            with open(temporary, "xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            sync_folder(folder)
    finally:
        with suppress(OSError):
            os.remove(temporary)


def sync_to_disk(path: str) -> None:
    """Waits until a file's bytes are on the disk; here a full disk may show itself at last."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: str) -> None:
    """Waits until the names in a folder are on the disk, where the system and the file system can do that."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems
            raise
    finally:
        os.close(descriptor)


def remove_partial(folder: str) -> None:
    """Removes what a run that was killed had not finished, in a folder and those in it; links are not followed."""
    for inner, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(inner, name)
            if name.startswith(_PREFIX) and _SUFFIX in name and stat.S_ISREG(os.lstat(path).st_mode):
                os.remove(path)
