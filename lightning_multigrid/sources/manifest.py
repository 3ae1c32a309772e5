"""Paths and labels of hundreds of thousands of videos, in tensors that all workers share."""

from __future__ import annotations

import os
from dataclasses import dataclass

from torch import Tensor

from lightning_multigrid.files import quoted
from lightning_multigrid.sources.text import ManifestError


@dataclass(frozen=True, eq=False, repr=False)
class Manifest:
    """Paths and labels of videos: read-only, and the same memory in every worker.

    A few tensors hold everything. Python objects, one per row, would be copied in each forked worker, which writes to
    their reference counts; tensors are not, and torch passes them to spawned workers as shared memory.
    `ManifestBuilder` makes manifests.

    Args:
        origin: The file or folder it was read from.
        root: Absolute folder that relative paths start from, or its URL.
        classes: Names of the classes in the order of their labels; empty if they are unknown.
        multi_label: Whether a video may have any number of labels instead of one.
        frame_rate: Frames per second if each path is a folder of frames, None if it is a video file.
        missing: How many listed videos were left out because they are not on disk (`existing_only`).
        index: File of the videos' packet indices, if `prepare` wrote one.

    >>> from lightning_multigrid.sources.builder import ManifestBuilder
    >>> builder = ManifestBuilder("train.csv", root="/data", classes=["run", "swim"])
    >>> builder.add("a b.mp4", labels=[1], where="line 1")
    >>> builder.build()
    Manifest('train.csv': 1 video, 2 classes, root='/data')
    """

    origin: str
    root: str
    classes: tuple[str, ...]
    multi_label: bool
    frame_rate: float | None
    missing: int
    # The path of row i is bytes [_path_offsets[i], _path_offsets[i + 1]) of the paths; its labels are found in the same
    # way. Either every label has a span in seconds, or none has.
    _path_bytes: Tensor
    _path_offsets: Tensor
    _label_ids: Tensor
    _label_offsets: Tensor
    _starts: Tensor
    _ends: Tensor
    index: str | None = None

    def __len__(self) -> int:
        return len(self._path_offsets) - 1

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

    @property
    def arrays(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The tensors in the order of the constructor: paths, labels (each with their offsets), starts and ends."""
        return self._path_bytes, self._path_offsets, self._label_ids, self._label_offsets, self._starts, self._ends

    def spans(self, index: int) -> tuple[list[int], list[tuple[float, float]]]:
        """Returns the labels of a row as they were added, and their (start, end) in seconds, if they have spans."""
        first, last = self._row(self._label_offsets, index)
        spans = zip(self._starts[first:last].tolist(), self._ends[first:last].tolist(), strict=True)
        return self._label_ids[first:last].tolist(), list(spans)

    @property
    def labelled(self) -> bool:
        """Whether any video has a label. Lists for prediction have none."""
        return len(self._label_ids) > 0

    @property
    def num_classes(self) -> int:
        """Number of `classes`, or if they are unknown, the largest label + 1 (0 without labels)."""
        if self.classes or not self.labelled:
            return len(self.classes)
        return int(self._label_ids.max()) + 1

    def path(self, index: int) -> str:
        """Returns the absolute path or URL of the video, or the path of its folder of frames.

        Raises:
            IndexError: If there is no such row, as in all methods that take an index.
        """
        first, last = self._row(self._path_offsets, index)
        return os.path.join(
            self.root, self._path_bytes[first:last].numpy().tobytes().decode("utf-8", "surrogateescape")
        )

    def labels(self, index: int) -> tuple[int, ...]:
        """Returns all labels of the video, ascending, each once."""
        first, last = self._row(self._label_offsets, index)
        return tuple(sorted(set(self._label_ids[first:last].tolist())))

    def label(self, index: int) -> int:
        """Returns the label of a video that has exactly one.

        Raises:
            ManifestError: If it has none or several.
        """
        labels = self.labels(index)
        if len(labels) != 1:
            raise ManifestError(
                f"{quoted(self.path(index))} of {self.origin} has {len(labels)} labels, one is required. "
                "Use `labels` for videos with any number of labels."
            )
        return labels[0]

    def labels_between(self, index: int, start: float, end: float) -> tuple[int, ...]:
        """Returns the labels whose span overlaps [start, end), ascending, each once.

        Spans are half-open, too: an action in [2, 5) is seen in [4.9, 6) and not in [5, 6), and one in [2, 2) never. A
        label without a span is valid for the whole video.

        Args:
            index: Row of the video.
            start: Start of the clip, in seconds.
            end: End of the clip's last frame (not its start), in seconds.

        Raises:
            ValueError: If `end` does not come after `start`.
        """
        if not start < end:
            raise ValueError(
                f"`end` must come after `start`, got {start} to {end} s. A clip ends where its last frame does."
            )
        if not len(self._starts):
            return self.labels(index)
        first, last = self._row(self._label_offsets, index)
        # They overlap from the later start to the earlier end.
        seen = self._starts[first:last].clamp(min=start) < self._ends[first:last].clamp(max=end)
        return tuple(sorted(set(self._label_ids[first:last][seen].tolist())))

    def _row(self, offsets: Tensor, index: int) -> tuple[int, int]:
        if not 0 <= index < len(self):
            raise IndexError(f"Row {index} of a manifest of {len(self)} videos.")
        return int(offsets[index]), int(offsets[index + 1])
