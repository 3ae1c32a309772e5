"""The packet indices of a manifest's videos: a ragged column, whose bytes stay in a file."""

import io
import os
import struct
import warnings
from collections.abc import Iterable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from lightning_multigrid.files import READ_TIMEOUT, HangError, WatchedFile, open_bytes

# In version 0.2.0 indices had a file of their own, which found them by name.
_MAGIC_0_2_0 = b"LMGSTO\2\n"
_HEAD_0_2_0 = struct.Struct("<8sQQ")  # magic, where the records end, how many there are
_RECORD_0_2_0 = struct.Struct("<II")  # length of a name, length of an index; both follow


class IndexColumn:
    """The packet index of the video in each row, as bytes; empty if there is none.

    Each is read when it is asked for. The column is pickled without the open file.

    Args:
        path: The file that holds the indices.
        places: R x 2, where in the file the index of each row begins and ends.
        timeout: Seconds that a read may take.
    """

    def __init__(self, path: str, places: Tensor, timeout: float = READ_TIMEOUT) -> None:
        self.path, self.places, self.timeout = path, places, timeout

    def __getitem__(self, row: int) -> bytes:
        """Returns an index, which is not checked; an OSError if the file can't be read any more."""
        start, end = self.places[row].tolist()
        if start == end:
            return b""
        try:
            [index] = self.file.read([(start, end - start)])
        except HangError:
            del self.file  # the next read opens it anew: its drive may be there again
            raise
        if len(index) < end - start:
            raise OSError(f"{self.path} is shorter than it was.")
        return index

    def __getstate__(self) -> dict[str, object]:
        return {"path": self.path, "places": self.places, "timeout": self.timeout}

    @cached_property
    def file(self) -> WatchedFile:
        """The open file."""
        return WatchedFile(self.path, self.timeout)

    def take(self, rows: Sequence[int]) -> "IndexColumn":
        """Returns the column of some rows."""
        return IndexColumn(self.path, self.places[list(rows)], self.timeout)


def index_column_0_2_0(path: str, names: Iterable[bytes]) -> IndexColumn | None:
    """Returns the indices in a file of version 0.2.0; None if there is none, or, with a warning, a damaged one."""
    places: dict[bytes, tuple[int, int]] = {}
    column = IndexColumn(path, torch.empty(0, 2))
    try:
        with open_bytes(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            magic, end, _ = _HEAD_0_2_0.unpack(file.read(_HEAD_0_2_0.size))
            if end > size:
                raise ValueError("it is cut short")
            if magic != _MAGIC_0_2_0:
                raise ValueError("it doesn't begin as one does, or is of another version")
            at = _HEAD_0_2_0.size
            while at < end:
                name_bytes, index_bytes = _RECORD_0_2_0.unpack(file.read(_RECORD_0_2_0.size))
                start = at + _RECORD_0_2_0.size + name_bytes
                at = start + index_bytes
                if at > end:
                    raise ValueError("an index in it ends beyond its end")
                places[file.read(name_bytes)] = start, at
                file.seek(at)
    except (FileNotFoundError, io.UnsupportedOperation):  # the latter is a pipe or a folder
        return None
    except (OSError, ValueError, struct.error) as error:
        warnings.warn(
            f"{path} is no index of videos, or a damaged one: {error}. Videos are indexed as they are read. Run "
            "`lightning-multigrid prepare` again, which keeps the finished videos and writes the index anew.",
            stacklevel=2,
        )
        return None
    column.places = torch.tensor([places.get(name, (0, 0)) for name in names])
    return column
