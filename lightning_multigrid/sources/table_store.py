"""A folder of frame tables of videos that were not prepared, which any number of processes may add to."""

import os
from collections.abc import Iterable
from glob import glob
from hashlib import blake2b

from lightning_multigrid.files import StrPath, output_errors, path_argument, temporary_name

_SUFFIX = ".table"


class TableStore:
    """Frame tables by the absolute paths of their videos: a file for each, which is whole or absent.

    Args:
        folder: It is made by the first `add`.
    """

    def __init__(self, folder: StrPath) -> None:
        self.folder = os.path.abspath(path_argument("folder", folder))

    def read(self, path: str) -> bytes:
        """Returns the table of a video, not checked; empty if there is none. An OSError if it can't be read."""
        try:
            with open(os.path.join(self.folder, _name(path)), "rb") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return b""

    def add(self, path: str, table: bytes) -> None:
        """Adds the table of a video, or replaces it; an `OutputError` if it can't be written."""
        file = os.path.join(self.folder, _name(path))
        temporary = temporary_name(os.path.dirname(file))
        with output_errors(self.folder):
            os.makedirs(os.path.dirname(file), exist_ok=True)
            with open(temporary, "wb") as part:
                part.write(table)
            os.replace(temporary, file)  # not brought to the disk first: a table has a checksum

    def missing(self, paths: Iterable[str]) -> list[str]:
        """Returns the paths without a table, each once."""
        there = set(glob(f"??/*{_SUFFIX}", root_dir=self.folder))
        return [path for path in dict.fromkeys(paths) if _name(path) not in there]


def _name(path: str) -> str:
    """The name of a table, in one of 256 folders, as large folders are slow."""
    digest = blake2b(path.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    return os.path.join(digest[:2], digest[2:] + _SUFFIX)
