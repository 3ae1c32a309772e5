"""Paths and labels of hundreds of thousands of videos, in tensors that all workers share."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from lightning_multigrid.files import quoted
from lightning_multigrid.sources.table_store import TableStore
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
        root: Absolute folder that relative paths start from.
        classes: Names of the classes in the order of their labels; empty if they are unknown.
        multi_label: Whether a video may have any number of labels instead of one.
        frame_rate: Frames per second if each path is a folder of frames, None if it is a video file.
        missing: How many listed videos were left out because they are not on disk (`existing_only`).
        rows: Paths and labels.
        tables: Where frame tables of the videos are, if that is known.
        prepared: Whether `prepare` wrote the videos, which then hold their frame tables.
    """

    origin: str
    root: str
    classes: tuple[str, ...]
    multi_label: bool
    frame_rate: float | None
    missing: int
    rows: Rows
    tables: TableStore | None = None
    prepared: bool = False

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
        """Returns the absolute path of a video or a folder of frames; an IndexError if there is no such row."""
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


@runtime_checkable
class VideoSource(Protocol):
    """Anything that the videos of a split can be read from: any class with this method, your own ones, too.

    Those of this package are frozen dataclasses, which read nothing before `read`.
    """

    def read(self, classes: Sequence[str] = ()) -> Manifest:
        """Reads paths and labels; no video is opened. What can't be read is a `ManifestError`.

        Args:
            classes: Names of the training split's classes in the order of their labels, for sources whose own files
                lack them.
        """


if TYPE_CHECKING:
    Source = str | os.PathLike[str] | VideoSource
else:

    class AnyPath(os.PathLike):
        """Stands for any path, for jsonargparse only.

        Without a kind of path in the union, jsonargparse would read a user's list as a config; with `os.PathLike`
        itself, it would take a source with a mistake in its arguments for a path.
        """

    Source = str | AnyPath | VideoSource
