"""Paths and labels of hundreds of thousands of videos, in tensors that all workers share."""

import os
from dataclasses import dataclass, replace
from itertools import compress
from typing import NamedTuple

from torch import Tensor

from lightning_multigrid.files import quoted
from lightning_multigrid.sources.table_column import TableColumn
from lightning_multigrid.sources.text import ManifestError

WHOLE = (0.0, float("inf"))
"""The stretch of a row that is a whole video."""


class Rows(NamedTuple):
    """Path i is `paths[path_offsets[i] : path_offsets[i + 1]]`, labels likewise.

    `spans` (of labels) and `stretches` (of rows) have a start and an end in s for all, or for none: N x 2 or 0 x 2.
    """

    paths: Tensor
    path_offsets: Tensor
    labels: Tensor
    label_offsets: Tensor
    spans: Tensor
    stretches: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Manifest:
    """Paths and labels of videos: read-only, and the same memory in every worker. `ManifestBuilder` makes manifests.

    A few tensors hold everything. Python objects, one per row, would be copied in each forked worker, which writes to
    their reference counts; tensors are not, and torch passes them to spawned workers as shared memory.

    A row may be a stretch of its video, and a video may be in several rows.

    Args:
        origin: The file or folder it was read from.
        root: Absolute folder that relative paths start from, or its URL.
        classes: Names of the classes in the order of their labels; empty if they are unknown.
        multi_label: Whether a video may have any number of labels instead of one.
        frame_rate: Frames per second if each path is a folder of frames, None if it is a video file.
        missing: How many listed videos were left out because they are not on disk (`existing_only`).
        rows: Paths and labels.
        tables: The frame tables of the videos, if there are any.
    """

    origin: str
    root: str
    classes: tuple[str, ...]
    multi_label: bool
    frame_rate: float | None
    missing: int
    rows: Rows
    tables: TableColumn | None = None

    def __len__(self) -> int:
        return len(self.rows.path_offsets) - 1

    def __repr__(self) -> str:
        plural = "" if len(self) == 1 else "s"
        parts = [f"{len(self):,} video{plural}"]
        if self.frame_rate is not None:
            parts = [f"{len(self):,} folder{plural} of frames at {self.frame_rate:g} per second"]
        parts.append(f"{self.num_classes:,} classes" if self.labelled else "no labels")
        if self.multi_label:
            parts.append("multi-label")
        if self.missing:
            parts.append(f"{self.missing:,} missing")
        return f"Manifest({os.path.basename(self.origin)!r}: {', '.join(parts)}, root={self.root!r})"

    def spans(self, index: int) -> tuple[list[int], list[tuple[float, float]]]:
        """Returns the labels of a row as they were added, and their (start, end) in seconds, if they have spans."""
        row = self._row(self.rows.label_offsets, index)
        return self.rows.labels[row].tolist(), [(start, end) for start, end in self.rows.spans[row].tolist()]

    def stretch(self, index: int) -> tuple[float, float] | None:
        """Returns the [start, end) of its video that a row is, in seconds; None if it is the whole video.

        The end is infinite where the row names none.
        """
        self._check_row(index)
        start, end = self.rows.stretches[index].tolist() if len(self.rows.stretches) else WHOLE
        return None if (start, end) == WHOLE else (start, end)

    def table(self, index: int) -> bytes:
        """The frame table of a row's video, not checked; empty if there is none. An OSError if it can't be read."""
        self._check_row(index)
        return b"" if self.tables is None else self.tables[index]

    def with_tables(self, tables: TableColumn) -> "Manifest":
        """Returns the manifest with the frame tables of its rows' videos."""
        if len(tables) != len(self):
            raise ValueError(
                f"`tables` has {len(tables):,} rows, and the manifest {len(self):,}. Give one for each row."
            )
        return replace(self, tables=tables)

    @property
    def labelled(self) -> bool:
        """Whether any video has a label. Lists for prediction have none."""
        return len(self.rows.labels) > 0

    @property
    def num_classes(self) -> int:
        """Number of `classes`, or if they are unknown, the largest label + 1 (0 without labels)."""
        if self.classes or not self.labelled:
            return len(self.classes)
        return int(self.rows.labels.max()) + 1

    def path(self, index: int) -> str:
        """Returns the absolute path or URL of a video or a folder of frames; an IndexError if there is no such row."""
        path = self.rows.paths[self._row(self.rows.path_offsets, index)].numpy().tobytes()
        return os.path.join(self.root, path.decode("utf-8", "surrogateescape"))

    def labels(self, index: int) -> tuple[int, ...]:
        """Returns all labels of the video, or of the row's stretch of it, ascending, each once."""
        stretch = self.stretch(index)
        return tuple(sorted(set(self.spans(index)[0]))) if stretch is None else self.labels_between(index, *stretch)

    def label(self, index: int) -> int:
        """Returns the label of a video that has exactly one; none or several are a `ManifestError`."""
        labels = self.labels(index)
        if len(labels) != 1:
            raise ManifestError(
                f"{quoted(self.path(index))} of {self.origin} has {len(labels)} labels, one is required. "
                "Use `labels` for videos with any number of labels."
            )
        return labels[0]

    def labels_between(self, index: int, start: float, end: float) -> tuple[int, ...]:
        """Returns the labels of a row whose span overlaps [start, end), in seconds, ascending, each once.

        Spans are half-open, too: an action in [2, 5) is seen in [4.9, 6) and not in [5, 6), and one in [2, 2) never.
        All times are those of the video; what lies outside of the row's stretch is not seen. A label without a span is
        valid for the whole row. `end` is where the clip's last frame ends; it is a ValueError if that does not come
        after `start`.
        """
        if not start < end:
            raise ValueError(f"`end` must come after `start`, got {start} to {end} s. A clip ends with its last frame.")
        labels, spans = self.spans(index)
        if spans:
            first, last = self.stretch(index) or WHOLE
            start, end = max(start, first), min(end, last)
            labels = list(compress(labels, (max(low, start) < min(high, end) for low, high in spans)))
        return tuple(sorted(set(labels)))

    def _row(self, offsets: Tensor, index: int) -> slice:
        self._check_row(index)
        return slice(int(offsets[index]), int(offsets[index + 1]))

    def _check_row(self, index: int) -> None:
        if not 0 <= index < len(self):
            raise IndexError(f"Row {index} of a manifest of {len(self)} videos.")
