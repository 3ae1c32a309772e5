"""The frame tables of a manifest's videos: a ragged column, whose bytes stay in files."""

from collections.abc import Sequence
from functools import cached_property

from torch import Tensor

from lightning_multigrid.files import HangError, WatchedFile, time_limit

_MOST_OPEN = 32  # files at a time: workers have hundreds of tensors open


class TableColumn:
    """The frame table of the video in each row, as bytes; empty if there is none.

    Each is read when it is asked for. The column is pickled without the open files.

    Args:
        files: Absolute paths of the files that hold the tables.
        places: R x 3, int64: for each row, which of the files, and where in it the table begins and ends.
        timeout: Seconds that a read may take; None is the limit of `reads_within`.
    """

    def __init__(self, files: Sequence[str], places: Tensor, timeout: float | None = None) -> None:
        self.files, self.places, self.timeout = tuple(files), places, time_limit(timeout)

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, row: int) -> bytes:
        """Returns a table, which is not checked; an OSError if its file can't be read any more."""
        number, start, end = self.places[row].tolist()
        if start == end:
            return b""
        try:
            [table] = self._file(number).read([(start, end - start)])
        except HangError:
            self._opened.clear()  # the next read opens it anew: its drive may be there again
            raise
        if len(table) < end - start:
            raise OSError(f"{self.files[number]} is shorter than it was.")
        return table

    def __getstate__(self) -> dict[str, object]:
        return {"files": self.files, "places": self.places, "timeout": self.timeout}

    def take(self, rows: Sequence[int]) -> "TableColumn":
        """Returns the column of some rows."""
        return TableColumn(self.files, self.places[list(rows)], self.timeout)

    def _file(self, number: int) -> WatchedFile:
        if number not in self._opened:
            if len(self._opened) == _MOST_OPEN:
                del self._opened[next(iter(self._opened))]
            self._opened[number] = WatchedFile(self.files[number], self.timeout)
        return self._opened[number]

    @cached_property
    def _opened(self) -> dict[int, WatchedFile]:
        return {}
