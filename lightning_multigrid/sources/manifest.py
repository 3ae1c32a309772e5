"""Paths and labels of hundreds of thousands of videos, in tensors that all workers share."""

import os
from dataclasses import dataclass
from itertools import compress
from typing import NamedTuple

from torch import Tensor

from lightning_multigrid.files import quoted
from lightning_multigrid.sources.index_column import IndexColumn
from lightning_multigrid.sources.text import ManifestError


class Rows(NamedTuple):
    """Path i is `paths[path_offsets[i] : path_offsets[i + 1]]`, labels likewise; spans in s, of all or none."""

    paths: Tensor
    path_offsets: Tensor
    labels: Tensor
    label_offsets: Tensor
    starts: Tensor
    ends: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Manifest:
    """Paths and labels of videos: read-only, and the same memory in every worker. `ManifestBuilder` makes manifests.

    A few tensors hold everything. Python objects, one per row, would be copied in each forked worker, which writes to
    their reference counts; tensors are not, and torch passes them to spawned workers as shared memory.

    Args:
        origin: The file or folder it was read from.
        root: Absolute folder that relative paths start from, or its URL.
        classes: Names of the classes in the order of their labels; empty if they are unknown.
        multi_label: Whether a video may have any number of labels instead of one.
        frame_rate: Frames per second if each path is a folder of frames, None if it is a video file.
        missing: How many listed videos were left out because they are not on disk (`existing_only`).
        rows: Paths and labels.
        index: The packet indices of the videos, if `prepare` wrote them.
    """

    origin: str
    root: str
    classes: tuple[str, ...]
    multi_label: bool
    frame_rate: float | None
    missing: int
    rows: Rows
    index: IndexColumn | None = None

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
        spans = zip(self.rows.starts[row].tolist(), self.rows.ends[row].tolist(), strict=True)
        return self.rows.labels[row].tolist(), list(spans)

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
        """Returns all labels of the video, ascending, each once."""
        return tuple(sorted(set(self.spans(index)[0])))

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

        Spans are half-open, too: an action in [2, 5) is seen in [4.9, 6) and not in [5, 6), and one in [2, 2) never. A
        label without a span is valid for the whole video. `end` is where the clip's last frame ends; it is a
        ValueError if that does not come after `start`.
        """
        if not start < end:
            raise ValueError(f"`end` must come after `start`, got {start} to {end} s. A clip ends with its last frame.")
        labels, spans = self.spans(index)
        if not spans:
            return self.labels(index)
        overlaps = [max(first, start) < min(last, end) for first, last in spans]
        return tuple(sorted(set(compress(labels, overlaps))))

    def _row(self, offsets: Tensor, index: int) -> slice:
        if not 0 <= index < len(self):
            raise IndexError(f"Row {index} of a manifest of {len(self)} videos.")
        return slice(int(offsets[index]), int(offsets[index + 1]))
