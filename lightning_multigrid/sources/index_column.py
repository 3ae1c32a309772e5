"""The packet indices of a manifest's videos: a ragged column, whose bytes stay in a file."""

import mmap
import os
import struct
import warnings
from collections.abc import Iterable, Sequence
from functools import cached_property

import torch
from torch import Tensor

# In version 0.2.0 indices had a file of their own, which found them by name.
_MAGIC_0_2_0 = b"LMGSTO\2\n"
_HEAD_0_2_0 = struct.Struct("<8sQQ")  # magic, where the records end, how many there are
_RECORD_0_2_0 = struct.Struct("<II")  # length of a name, length of an index; both follow


class IndexColumn:
    """The packet index of the video in each row, as bytes; empty if there is none.

    The bytes are mapped into memory, so that workers share them. The column is pickled without them.

    Args:
        path: The file that holds the indices.
        places: R x 2, where in the file the index of each row begins and ends.
    """

    def __init__(self, path: str, places: Tensor) -> None:
        self.path, self.places = path, places

    def __getitem__(self, row: int) -> bytes:
        """Returns an index, which is not checked; an OSError if the file can't be opened any more."""
        start, end = self.places[row].tolist()
        return self.content[start:end]

    def __getstate__(self) -> dict[str, object]:
        return {"path": self.path, "places": self.places}

    @cached_property
    def content(self) -> mmap.mmap:
        """The file, whose bytes are read when they are used."""
        with open(self.path, "rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def take(self, rows: Sequence[int]) -> "IndexColumn":
        """Returns the column of some rows."""
        return IndexColumn(self.path, self.places[list(rows)])


def index_column_0_2_0(path: str, names: Iterable[bytes]) -> IndexColumn | None:
    """Returns the indices in a file of version 0.2.0; None if there is none, or, with a warning, a damaged one."""
    if not os.path.isfile(path):  # opening a pipe would wait for its writer
        return None
    places: dict[bytes, tuple[int, int]] = {}
    column = IndexColumn(path, torch.empty(0, 2))
    try:
        content = column.content
        magic, end, _ = _HEAD_0_2_0.unpack_from(content)
        if magic != _MAGIC_0_2_0:
            raise ValueError("it doesn't begin as one does, or is of another version")
        at = _HEAD_0_2_0.size
        while at < end:
            name_bytes, index_bytes = _RECORD_0_2_0.unpack_from(content, at)
            start = at + _RECORD_0_2_0.size + name_bytes
            at = start + index_bytes
            places[content[start - name_bytes : start]] = start, at
    except (OSError, ValueError, struct.error) as error:
        warnings.warn(
            f"{path} is no index of videos, or a damaged one: {error}. Videos are indexed as they are read. Run "
            "`lightning-multigrid prepare` again, which keeps the finished videos and writes the index anew.",
            stacklevel=2,
        )
        return None
    column.places = torch.tensor([places.get(name, (0, 0)) for name in names])
    return column
