"""Paths and labels of hundreds of thousands of videos, packed for many workers, and the checks on the way in."""

from __future__ import annotations

import logging
import math
import os
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_multigrid.remote_root import RemoteRoot, RemoteRootError, is_url
from lightning_multigrid.textfile import ManifestError, StrPath, path_argument, quoted

__all__ = ["Manifest", "ManifestBuilder"]

_log = logging.getLogger(__name__)

_LONGEST_PATH = 4096  # PATH_MAX of Linux
_MOST_LABELS = 2**31 - 1  # labels are packed in 32 bits


@dataclass(frozen=True, eq=False, repr=False)
class Manifest:
    """Paths and labels of videos: read-only, and the same memory in every worker.

    Everything lies in a few tensors, so there is no Python object per row whose reference count a forked worker would
    write to (which copies the page), and torch passes them to spawned workers as shared memory. `ManifestBuilder`
    makes one.

    Args:
        origin: The file or folder it was read from.
        root: Absolute folder that relative paths start from, or its URL.
        classes: Names of the classes in the order of their labels; empty if they are unknown.
        multi_label: Whether a video may have any number of labels instead of one.
        frame_rate: Frames per second if each path is a folder of frames, None if it is a video file.
        missing: How many listed videos were left out because they are not on disk (`existing_only`).
        index: File of the videos' packet indices, if `prepare` wrote one.

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
    # Row i owns bytes [_path_offsets[i], _path_offsets[i + 1]) of the paths, and likewise of the labels. Either every
    # label has its span in seconds or none has.
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
        noun = "video" if self.frame_rate is None else "folder of frames"
        plural = "videos" if self.frame_rate is None else "folders of frames"
        parts = [f"{len(self):,} {noun if len(self) == 1 else plural}"]
        if self.frame_rate is not None:
            parts[0] += f" at {self.frame_rate:g} per second"
        parts.append(f"{self.num_classes:,} classes" if self.labelled else "no labels")
        if self.multi_label:
            parts.append("multi-label")
        if self.missing:
            parts.append(f"{self.missing:,} missing")
        return f"Manifest({os.path.basename(self.origin)!r}: {', '.join(parts)}, root={self.root!r})"

    @property
    def arrays(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Bytes and offsets of the paths, labels and their offsets, starts and ends, as the constructor takes them."""
        return (
            self._path_bytes,
            self._path_offsets,
            self._label_ids,
            self._label_offsets,
            self._starts,
            self._ends,
        )

    def renamed(
        self, paths: Sequence[str | None], origin: StrPath, root: StrPath, classes: Sequence[str] = ()
    ) -> Manifest:
        """The same labels for other videos.

        Args:
            paths: A path for each row; None leaves the row out.
            origin: The file that the new manifest stands for.
            root: Folder that relative paths start from.
            classes: Names of the classes, if this manifest has none.

        Raises:
            ManifestError: If no row is left, or a path leads out of the root.
        """
        builder = ManifestBuilder(
            origin,
            root,
            classes=self.classes or classes,
            multi_label=self.multi_label,
            frame_rate=self.frame_rate,
        )
        for row, path in enumerate(paths):
            if path is not None:
                first, last = self._row(self._label_offsets, row)
                starts, ends = self._starts[first:last].tolist(), self._ends[first:last].tolist()
                labels = self._label_ids[first:last].tolist()
                builder.add(path, labels, where=f"row {row}", spans=list(zip(starts, ends, strict=True)))
        return builder.build()

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
        """Absolute path or URL of the video, or path of its folder of frames.

        Raises:
            IndexError: If there is no such row; so for all methods that take an index.
        """
        first, last = self._row(self._path_offsets, index)
        return os.path.join(
            self.root, self._path_bytes[first:last].numpy().tobytes().decode("utf-8", "surrogateescape")
        )

    def labels(self, index: int) -> tuple[int, ...]:
        """All labels of the video, ascending, each once; none for a video without labels."""
        first, last = self._row(self._label_offsets, index)
        return tuple(sorted(set(self._label_ids[first:last].tolist())))

    def label(self, index: int) -> int:
        """The label of a video that has exactly one.

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
        """Labels whose span overlaps [start, end), ascending, each once.

        Spans are half-open, too: an action in [2, 5) is seen in [4.9, 6) and not in [5, 6), and one in [2, 2) never. A
        label without a span holds throughout its video.

        Args:
            index: Row of the video.
            start: Start of the clip, in seconds.
            end: End of the clip (its last frame's end, not its start), in seconds.

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
        # The overlap is from the later start to the earlier end.
        seen = self._starts[first:last].clamp(min=start) < self._ends[first:last].clamp(max=end)
        return tuple(sorted(set(self._label_ids[first:last][seen].tolist())))

    def _row(self, offsets: Tensor, index: int) -> tuple[int, int]:
        if not 0 <= index < len(self):
            raise IndexError(f"Row {index} of a manifest of {len(self)} videos.")
        return int(offsets[index]), int(offsets[index + 1])


class ManifestBuilder:
    """Collects checked rows for a `Manifest`.

    What the manifest itself says may not lead out of its root: `..` in a path, or an absolute path elsewhere. This is
    judged from the text, without touching the disk. Links that lie on the way to a listed path are followed: whoever
    owns the disk made them, not whoever wrote the list.

    Args:
        origin: The file or folder that is read; errors name it.
        root: Folder that relative paths start from. None is the folder of `origin`, and absolute paths are then
            accepted as they stand: a list of absolute paths needs no root, but a root that was given is a promise. A
            URL that fsspec knows (`s3://bucket/videos`), too; only then are videos read from anywhere but the disk.
        classes: Names of the classes in the order of their labels.
        multi_label: Whether a video may have any number of labels. If not, every video has one, or none has.
        frame_rate: Frames per second if the paths are folders of frames.
        existing_only: Leave out, and count, what is not on disk. Each folder is listed once; no file is touched.
        allow_outside_root: Accept paths that lead out of the root.

    Raises:
        ManifestError: If classes repeat or the frame rate is not positive.
        TypeError: If an argument is of a wrong kind.
    """

    def __init__(
        self,
        origin: StrPath,
        root: StrPath | None = None,
        *,
        classes: Sequence[str] = (),
        multi_label: bool = False,
        frame_rate: float | None = None,
        existing_only: bool = False,
        allow_outside_root: bool = False,
    ) -> None:
        self._origin = path_argument("origin", origin)
        folder = os.path.dirname(self._origin) or os.curdir if root is None else path_argument("root", root)
        self._remote = _remote_root(folder, frame_rate) if is_url(folder) else None
        self._root = os.path.abspath(folder) if self._remote is None else self._remote.url
        self._classes = _class_names(classes)
        self._multi_label = multi_label
        self._frame_rate = _positive_rate(frame_rate)
        self._outside = allow_outside_root
        self._absolute = allow_outside_root or root is None
        self._listings: dict[str, frozenset[str]] | None = {} if existing_only else None
        self._missing = 0
        self._labelled: bool | None = None
        self._paths = bytearray()
        self._path_offsets = array("q", [0])
        self._labels = array("i")
        self._label_offsets = array("q", [0])
        self._starts = array("d")
        self._ends = array("d")

    def add(
        self, path: str, labels: Sequence[int] = (), *, where: str, spans: Sequence[tuple[float, float]] = ()
    ) -> None:
        """Adds a video.

        Args:
            path: Relative to the root, or absolute.
            labels: Its labels.
            where: Its place in the origin, for messages: "line 3".
            spans: For every label its (start, end) in seconds, half-open; or none at all.

        Raises:
            ManifestError: If the path leads out of the root, or a label is not allowed.
        """
        name = self._checked_path(path, where)
        self._check_labels(labels, where)
        try:
            encoded = name.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise self.error(where, f"the path {quoted(path)} is not valid text. Rename the video") from error
        if len(self._starts) + len(spans) not in (0, len(self._labels) + len(labels)):
            raise self.error(where, f"{len(labels)} labels with {len(spans)} spans. Give every label its span, or none")
        if self._listings is not None and not (self._remote.exists(name) if self._remote else self._exists(name)):
            self._missing += 1
            return
        self._paths += encoded
        self._path_offsets.append(len(self._paths))
        self._labels.extend(labels)
        self._label_offsets.append(len(self._labels))
        self._starts.extend(start for start, _ in spans)
        self._ends.extend(end for _, end in spans)

    def build(self) -> Manifest:
        """The manifest of all rows.

        Raises:
            ManifestError: If there are none.
        """
        if len(self._path_offsets) == 1 and self._missing:
            raise ManifestError(
                f"None of the {self._missing:,} videos listed in {self._origin} lies in {self._root}. "
                "Give the folder that their paths start from."
            )
        if len(self._path_offsets) == 1:
            raise ManifestError(f"{self._origin} lists no videos. At least one row, `path label`, is required.")
        if self._missing:
            total = self._missing + len(self._path_offsets) - 1
            _log.warning(
                "%s of the %s videos listed in %s are not on disk and are left out.",
                f"{self._missing:,}",
                f"{total:,}",
                self._origin,
            )
        return Manifest(
            self._origin,
            self._root,
            self._classes,
            self._multi_label,
            self._frame_rate,
            self._missing,
            _tensor(self._paths, torch.uint8),
            _tensor(self._path_offsets, torch.int64),
            _tensor(self._labels, torch.int32),
            _tensor(self._label_offsets, torch.int64),
            _tensor(self._starts, torch.float64),
            _tensor(self._ends, torch.float64),
        )

    def error(self, where: str, what: str) -> ManifestError:
        """The error for a row: names the origin and the place, then says what is wrong and how to go on."""
        return ManifestError(f"{self._origin}, {where}: {what}.")

    def _checked_path(self, path: str, where: str) -> str:
        if not path or "\0" in path or len(path) > _LONGEST_PATH:
            raise self.error(
                where,
                f"the path {quoted(path)} has {len(path):,} characters; 1 to {_LONGEST_PATH:,} without NUL are "
                "required. Look for a double quote that is not closed, or an empty field",
            )
        name = os.path.normpath(path)
        if self._remote is not None:
            key = self._remote.key(path)
            name, inside = key or name, key is not None
        elif os.path.isabs(name):
            prefix = os.path.join(self._root, "")
            if name.startswith(prefix):
                return name[len(prefix) :]
            inside = self._absolute
        else:
            # The path is kept in its normal form, so that what was judged is what is opened.
            inside = self._outside or name.split(os.sep, 1)[0] != os.pardir
        if not inside:
            raise self.error(
                where,
                f"the path {quoted(path)} leads out of the root {quoted(self._root)}. Give a root that holds all the "
                "videos (`read_manifest` also takes `allow_outside_root=True`)",
            )
        return name

    def _check_labels(self, labels: Sequence[int], where: str) -> None:
        beyond = len(self._classes) or _MOST_LABELS
        for label in labels:
            if not 0 <= label < beyond:
                known = f"; there are {beyond:,} classes" if self._classes else ""
                raise self.error(
                    where, f"label {label} is required to be from 0 to {beyond - 1}{known}. Number the classes from 0"
                )
        if self._multi_label:
            return
        if len(labels) > 1:
            raise self.error(
                where,
                f"{len(labels)} labels ({', '.join(map(str, labels))}), one is required. "
                "Pass `multi_label=True` for videos with several, or quote a path that holds a separator",
            )
        if self._labelled is None:
            self._labelled = bool(labels)
        if self._labelled != bool(labels):
            given, others = ("a label", "none") if labels else ("no label", "one")
            raise self.error(where, f"{given}, but the rows before have {others}. Give all videos a label, or none")

    def _exists(self, name: str) -> bool:
        folder, base = os.path.split(os.path.join(self._root, name))
        assert self._listings is not None
        if folder not in self._listings:
            try:
                with os.scandir(folder) as entries:
                    self._listings[folder] = frozenset(entry.name for entry in entries)
            except OSError:
                self._listings[folder] = frozenset()
        return base in self._listings[folder]


def _remote_root(url: str, frame_rate: float | None) -> RemoteRoot:
    if frame_rate is not None:
        raise ManifestError(f"`root` is {url!r}, but folders of frames must lie on disk. Copy them, or give videos.")
    try:
        return RemoteRoot(url)
    except RemoteRootError as error:
        raise ManifestError(f"`root` is not one to read from: {error}") from error


def _class_names(classes: Sequence[str]) -> tuple[str, ...]:
    if isinstance(classes, str) or not all(isinstance(name, str) for name in classes):
        raise TypeError(f"`classes` must be a sequence of names, got {classes!r}.")
    names = tuple(classes)
    repeated = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if repeated:
        raise ManifestError(f"`classes` has {quoted(repeated[0])} more than once. Each class needs a name of its own.")
    return names


def _positive_rate(frame_rate: float | None) -> float | None:
    if frame_rate is None:
        return None
    if isinstance(frame_rate, bool) or not isinstance(frame_rate, int | float):
        raise TypeError(f"`frame_rate` must be a number, got {frame_rate!r}.")
    if not (frame_rate > 0 and math.isfinite(frame_rate)):
        raise ManifestError(f"`frame_rate` must be positive (frames per second), got {frame_rate}.")
    return float(frame_rate)


def _tensor(values: bytearray | array[int] | array[float], dtype: torch.dtype) -> Tensor:
    # `frombuffer` refuses an empty buffer, and shares the memory of a full one, which the builder may still move.
    return torch.frombuffer(values, dtype=dtype).clone() if len(values) else torch.empty(0, dtype=dtype)
