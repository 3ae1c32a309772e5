"""Paths and labels of hundreds of thousands of videos, in tensors that all workers share."""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from lightning_multigrid.files import joined, quoted
from lightning_multigrid.sources.text import ManifestError

_ALWAYS = 0.0, math.inf
_AT_ONCE = 1 << 12  # paths


class Rows(NamedTuple):
    """Path i is `paths[path_offsets[i] : path_offsets[i + 1]]`, labels likewise.

    `spans` has start and end of each label, `stretches` of each row, in s of the video: 0 and infinity for all of it.
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

    A few tensors hold everything: Python objects, one per row, would be copied in each worker. A row may be a stretch
    of its video, and a video may be in several rows.

    Args:
        origin: The file or folder it was read from.
        root: Absolute folder, or URL, that relative paths start from.
        classes: Names of the classes in the order of their labels; empty if they are unknown.
        multi_label: Whether a video may have any number of labels instead of one.
        images_per_second: If each path is a folder of images; None if it is a video file.
        missing: How many listed videos were left out because they are not on disk (`existing_only`).
        rows: Paths and labels.
        tables: The folder of a `TableStore` with frame tables of the videos; empty if there is none.
        prepared: Whether `prepare` wrote the videos, which then hold their frame tables.
    """

    origin: str
    root: str
    classes: tuple[str, ...]
    multi_label: bool
    images_per_second: float | None
    missing: int
    rows: Rows
    tables: str = ""
    prepared: bool = False

    def __len__(self) -> int:
        return self.rows.path_offsets.numel() - 1  # quicker than the `len` of a tensor

    def __repr__(self) -> str:
        labels = f"{self.num_classes:,} classes" if self.labelled else "no labels"
        return f"Manifest({os.path.basename(self.origin)!r}: {len(self):,} videos, {labels}, root={self.root!r})"

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
        """Returns the absolute path or the URL of a video or a folder of frames; an IndexError if there is no row."""
        path = self.rows.paths.numpy()[self._row(self.rows.path_offsets, index)].tobytes()
        return joined(self.root, path.decode("utf-8", "surrogateescape"))

    def paths(self) -> list[str]:
        """Returns the paths of all rows, as `path` does one by one."""
        return list(self.each_path())

    def each_path(self) -> Iterator[str]:
        """Yields the paths of all rows: those of a large dataset take as much memory as the list."""
        for first in range(0, len(self), _AT_ONCE):
            offsets = self.rows.path_offsets.numpy()[first : first + _AT_ONCE + 1]
            text = self.rows.paths.numpy()[offsets[0] : offsets[-1]].tobytes()
            for start, end in pairwise((offsets - offsets[0]).tolist()):
                yield joined(self.root, text[start:end].decode("utf-8", "surrogateescape"))

    def spans(self, index: int) -> tuple[list[int], list[tuple[float, float]]]:
        """Returns the labels of a row as they were added, and the (start, end) of each in seconds."""
        row = self._row(self.rows.label_offsets, index)
        spans = self.rows.spans.numpy()[row].tolist()
        return self.rows.labels.numpy()[row].tolist(), [(start, end) for start, end in spans]

    def stretch(self, index: int) -> tuple[float, float]:
        """Returns the [start, end) of its video that a row is, in seconds; the end may be infinite."""
        start, end = self.rows.stretches.numpy()[self._checked(index)].tolist()
        return start, end

    def labels(self, index: int) -> tuple[int, ...]:
        """Returns all labels of the row's stretch of its video, ascending, each once."""
        return self.labels_between(index, *self.stretch(index))

    def label(self, index: int) -> int:
        """Returns the label of a video that has exactly one; none or several are a `ManifestError`."""
        labels = self.labels(index)
        if len(labels) != 1:
            path = quoted(self.path(index))
            raise ManifestError(f"{path} of {self.origin} has {len(labels)} labels, one is required.")
        return labels[0]

    def labels_between(self, index: int, start: float, end: float) -> tuple[int, ...]:
        """Returns the labels of a row whose span overlaps [start, end), in seconds, ascending, each once.

        Spans are half-open, too: an action in [2, 5) is seen in [4.9, 6) and not in [5, 6), and one in [2, 2) never.
        All times are those of the video; what lies outside of the row's stretch is not seen. Labels without a span hold
        wherever a clip lies: that of a stretch which ends before the video begins has its first frame.
        """
        labels, spans = self.spans(index)
        first, last = self.stretch(index)
        start, end = max(start, first), min(end, last)
        seen = {
            label
            for label, (low, high) in zip(labels, spans, strict=True)
            if (low, high) == _ALWAYS or max(low, start) < min(high, end)
        }
        return tuple(sorted(seen))

    def _checked(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(f"Row {index} of a manifest of {len(self)} videos.")
        return index

    def _row(self, offsets: Tensor, index: int) -> slice:
        self._checked(index)
        start, end = offsets.numpy()[index : index + 2].tolist()  # arrays are read quicker than tensors
        return slice(start, end)


def class_sizes(manifest: Manifest, num_classes: int) -> str:
    """Says how many videos the classes have, and how many classes have none, of videos that have one label each.

    It reads "5, with 2 to 8 videos each, median 4; 2 without a video, such as 'run'".
    """
    labels, counts = (found.tolist() for found in np.unique(manifest.rows.labels, return_counts=True))
    number, there = max(num_classes, labels[-1] + 1), set(labels)
    few, most = min(counts), max(counts)
    sizes = f"{few:,} videos each" if few == most else f"{few:,} to {most:,} videos each, median {median(counts):,g}"
    said = f"{number:,}, with {sizes}"
    first = next((label for label in range(number) if label not in there), None)
    if first is None:
        return said
    name = quoted(manifest.classes[first]) if first < len(manifest.classes) else first
    return f"{said}; {number - len(labels):,} without a video, such as {name}"


def shared_videos(train: Manifest, other: Manifest) -> list[str]:
    """The paths of the rows of `other` that overlap with a row of `train`, in the same file by its path."""
    rows: dict[str, list[int]] = {}
    for row, path in enumerate(train.paths()):
        rows.setdefault(path, []).append(row)
    shared = []
    for row, path in enumerate(other.paths()):
        if of_train := rows.get(path):
            start, end = other.stretch(row)
            if any(max(start, low) < min(end, high) for low, high in map(train.stretch, of_train)):
                shared.append(path)
    return shared


@runtime_checkable
class VideoSource(Protocol):
    """Anything that the videos of a split can be read from: any class with this method, your own ones, too.

    Those of this package are frozen dataclasses, which read nothing before `read`.
    """

    def read(self, classes: Sequence[str] = ()) -> Manifest:
        """Reads paths and labels; no video is opened. What can't be read is a `ManifestError`.

        Args:
            classes: The training split's class names in the order of their labels, if a source's own files lack them.
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
