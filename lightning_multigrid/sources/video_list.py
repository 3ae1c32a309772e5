"""The user's own videos: a list of `path label`, a folder per class, or what `lightning-multigrid prepare` wrote."""

import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

from lightning_multigrid.files import StrPath, path_argument, quoted
from lightning_multigrid.sources.builder import ManifestBuilder, renamed
from lightning_multigrid.sources.class_folders import ClassFolders
from lightning_multigrid.sources.manifest import Manifest
from lightning_multigrid.sources.manifest_file import load_manifest, prepared_manifest
from lightning_multigrid.sources.text import ManifestError, csv_rows, parse_labels

_PATH_COLUMNS = (
    *("path", "file", "file_name", "file_path", "filename", "filepath", "name", "clip", "frame_dir"),
    *("video", "video_name", "video_path"),
)
_LABEL_COLUMNS = ("label", "labels", "label_id", "class", "class_id", "class_index", "target", "targets")
# The second one is that of PySlowFast's lists of frames.
_OFFICIAL_COLUMNS = {"actions": "Charades", "original_vido_id": "Charades", "youtube_id": "Kinetics"}


@dataclass(frozen=True)
class VideoList:
    r"""A list of `path label`, a folder per class, or what `lightning-multigrid prepare` wrote.

    A *list* is UTF-8 text with a row per video: `path label`, `path` alone (no labels, for prediction), or
    `path frames label` (PySlowFast, VideoMAE; the number of frames is not used). The separator is a space, a comma or a
    tab, found out per file. Double quotes enclose a path that holds the separator or a line break, or starts with a
    double quote; quotes inside are doubled. White space around a field is dropped. Several labels are `1;5` or `"1,5"`.
    The first row may name the columns (`path,label`; others are skipped). Blank lines are skipped. There are no
    comments: HMDB51 has videos whose names start with `#`.

    With columns named `start` and `end`, in seconds of the video, a row is a *stretch* of its video: clips and views
    are of the frames that are shown within [start, end). Where a field is empty, the video begins or ends it. A video
    may be in any number of rows.

    In a *folder per class*, `source/<class>/**/*.mp4` (and other suffixes), labels count the sorted names of the
    folders. Hidden files are skipped. Links are followed, but not out of `source`, and no folder is entered twice.

    In a *folder of videos*, `source/*.mp4`, without other folders, they have no labels, which is enough for prediction.

    A *prepared* folder, or the `manifest.json` in it, has its own classes and labels. Arguments that say
    otherwise are refused.

    Args:
        source: The list, the folder that holds a folder per class or videos, or the prepared folder.
        root: Folder that relative paths of a list start from; by default the folder of the list. Absolute paths must
            lie in a given root, and may lie anywhere without one; `..` never leads out of it.
        classes: Names of the classes in the order of their labels; by default those of the training split, so that a
            folder of another split gets the same labels even if it lacks a class.
        multi_label: Whether a video may have any number of labels (a row with an empty label has none).
        frame_rate: Frames per second if each path is a folder of frames. In a folder per class, every folder that holds
            images is then a video.
        existing_only: Leave out, and count, what is listed but not on disk.
        allow_outside_root: Accept paths and links that lead out of the root.
    """

    source: StrPath
    root: StrPath | None = None
    classes: tuple[str, ...] = ()
    multi_label: bool = False
    frame_rate: float | None = None
    existing_only: bool = False
    allow_outside_root: bool = False

    def read(self, classes: Sequence[str] = ()) -> Manifest:
        """Reads the videos of the list or the folder; `classes` count only if the source has none itself.

        A `ManifestError` that names the line if something can't be read; a TypeError if an argument is of a wrong kind.
        """
        source, root = path_argument("source", self.source), self.root
        classes = self.classes or classes
        prepared = prepared_manifest(source)
        if prepared is not None:
            return self._prepared(prepared, classes)
        folders = None
        if os.path.isdir(source):
            if root is not None:
                raise ManifestError(
                    f"`root` is {str(root)!r}, but `source` {source!r} is a folder per class, whose paths start from "
                    "itself. Leave `root` out, or give a list."
                )
            folders = ClassFolders(source, frames=self.frame_rate is not None, follow_links=self.allow_outside_root)
            root = source
        builder = ManifestBuilder(
            source,
            root,
            classes=classes or (folders.classes if folders else ()),
            multi_label=self.multi_label,
            frame_rate=self.frame_rate,
            existing_only=self.existing_only,
            allow_outside_root=self.allow_outside_root,
        )
        if folders:
            folders.add_to(builder, classes)
        else:
            _add_list(builder, source, self.multi_label)
        return builder.build()

    def _prepared(self, path: str, classes: Sequence[str]) -> Manifest:
        """Reads the manifest of a prepared folder; its own classes and labels come before those of training."""
        manifest = load_manifest(path)
        said = {"root": self.root is None, "frame_rate": self.frame_rate is None}
        said["multi_label"] = manifest.multi_label or not self.multi_label
        said["classes"] = manifest.classes in ((), self.classes) or not self.classes
        for name in (name for name, fits in said.items() if not fits):
            raise ManifestError(
                f"`{name}` is {getattr(self, name)!r}, but what is prepared says that itself, and {path} says "
                "otherwise. Leave it out, or prepare the videos anew with it."
            )
        if not self.existing_only and (manifest.classes or not classes):
            return manifest
        paths = [manifest.path(row) for row in range(len(manifest))]
        there = [name if not self.existing_only or os.path.exists(name) else None for name in paths]
        kept = renamed(manifest, there, path, manifest.root, classes)
        return replace(kept, missing=there.count(None), prepared=True)


def read_manifest(
    source: StrPath,
    root: StrPath | None = None,
    *,
    classes: Sequence[str] = (),
    multi_label: bool = False,
    frame_rate: float | None = None,
    existing_only: bool = False,
    allow_outside_root: bool = False,
) -> Manifest:
    """Reads a list, a folder per class or a prepared folder at once; arguments and errors are those of `VideoList`."""
    return VideoList(source, root, (), multi_label, frame_rate, existing_only, allow_outside_root).read(classes)


def _add_list(builder: ManifestBuilder, path: str, multi_label: bool) -> None:
    if path.lower().endswith(".json"):
        raise ManifestError(f"{path} is JSON, a list of `path label` is required. Read it with `SomethingSomething`.")
    columns: _Columns | None = None
    for position, (line, row) in enumerate(_list_rows(path, _separator(path))):
        where = f"line {line}"
        if position == 0:
            columns = _columns(builder, where, row)
            if columns is not None:
                continue
        stretch = None
        if columns is None:
            text, label = _fields(builder, where, row, multi_label)
        else:
            if len(row) <= max(column or 0 for column in columns):
                raise builder.error(where, f"{len(row)} fields, fewer than the header names. Complete the row")
            text, label, start, end = ("" if column is None else row[column] for column in columns)
            stretch = _seconds(builder, where, start, 0.0), _seconds(builder, where, end, math.inf)
        labels = parse_labels(label)
        if labels is None:
            raise builder.error(
                where,
                f"the label {quoted(label)} is not a number from 0. Labels are whole numbers (several are `1;5`), and "
                "a path that holds a space, comma or tab is put in double quotes; for names use a folder per class",
            )
        builder.add(text, labels, where=where, stretch=stretch)


def _seconds(builder: ManifestBuilder, where: str, text: str, absent: float) -> float:
    """Returns a time in seconds from 0; `absent` if there is none."""
    if not text:
        return absent
    with suppress(ValueError):
        if 0 <= (seconds := float(text)) < math.inf:  # not for NaN
            return seconds
    raise builder.error(
        where, f"the start or end {quoted(text)} is not a number of seconds from 0. Write it like `12.5`"
    )


def _list_rows(path: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    for line, row in csv_rows(path, separator, of_users=True):
        fields = [field.strip(" \t") for field in row]
        # Spaces at the end of a line do not make fields.
        while separator == " " and len(fields) > 2 and not fields[-1]:
            fields.pop()
        if any(fields):
            yield line, fields


def _separator(path: str) -> str:
    """Returns the separator with which most rows are `path label`; else the one that splits the first row."""

    def score(separator: str) -> tuple[int, bool]:
        rows: list[list[str]] = []
        try:
            for _, row in islice(_list_rows(path, separator), 100):
                rows.append(row)
        except ManifestError as error:
            if isinstance(error.__cause__, OSError):
                raise
            # Wrong quotes may be right with another separator. If not, the reading of the list will say what is wrong.
        return sum(map(_is_labelled, rows)), bool(rows) and len(rows[0]) > 1

    return max("\t, ", key=score)


def _is_labelled(row: list[str]) -> bool:
    # A path that ends with a comma was cut at the space of `a.mp4, 3`; one that ends with a number at the comma of
    # `a.mp4 1,5`.
    return (
        2 <= len(row) <= 3
        and not re.search(r",$|\s[0-9]+$", row[0])
        and (len(row) == 2 or row[1].isdecimal())
        and bool(parse_labels(row[-1]))
    )


class _Columns(NamedTuple):
    """Where in a row its fields stand."""

    path: int
    label: int | None
    start: int | None
    end: int | None


def _columns(builder: ManifestBuilder, where: str, row: list[str]) -> _Columns | None:
    """Returns the columns of the fields, if the row names them."""
    names = [name.lower() for name in row]
    if len(row) > 3:
        for column, dataset in _OFFICIAL_COLUMNS.items():
            if column in names:
                raise builder.error(where, f"an official annotation file (column {column}). Read it with `{dataset}`")
    path, label, start, end = (
        next((column for column, name in enumerate(names) if name in known), None)
        for known in (_PATH_COLUMNS, _LABEL_COLUMNS, ("start",), ("end",))
    )
    if path is None or (label is None and len(row) > 1 + (start is not None) + (end is not None)):
        return None
    return _Columns(path, label, start, end)


def _fields(builder: ManifestBuilder, where: str, row: list[str], multi_label: bool) -> tuple[str, str]:
    """Returns path and label of a row of `path`, `path label` or `path frames label`."""
    if len(row) == 3 and multi_label:
        raise builder.error(
            where,
            f"3 fields ({quoted(', '.join(row))}), and the second may be a label or a number of frames. Write several "
            "labels as `1;5`, and leave numbers of frames out",
        )
    if len(row) > 3 or (len(row) == 3 and not row[1].isdecimal()):
        raise builder.error(
            where,
            f"{len(row)} fields ({quoted(', '.join(row))}); `path label`, `path` or `path frames label` is required. "
            "Put a path that holds the separator in double quotes",
        )
    return row[0], row[-1] if len(row) > 1 else ""
