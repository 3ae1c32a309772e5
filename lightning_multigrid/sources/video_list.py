"""Which videos there are and what they show: lists of `path label`, and folders per class.

`annotations` and `charades` read the official files of the datasets into the same `Manifest`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice

from lightning_multigrid.files import StrPath, path_argument, quoted
from lightning_multigrid.sources.builder import ManifestBuilder, renamed
from lightning_multigrid.sources.class_folders import _Folders
from lightning_multigrid.sources.manifest import Manifest
from lightning_multigrid.sources.packed_file import load_manifest, packed_manifest
from lightning_multigrid.sources.text import ManifestError, csv_rows, parse_labels

__all__ = ["VideoList", "read_manifest"]

_PATH_COLUMNS = (
    *("path", "file", "file_name", "file_path", "filename", "filepath", "name", "clip", "frame_dir"),
    *("video", "video_name", "video_path"),
)
_LABEL_COLUMNS = ("label", "labels", "label_id", "class", "class_id", "class_index", "target", "targets")
_OFFICIAL_COLUMNS = {"actions": "read_charades", "original_vido_id": "read_frame_list", "youtube_id": "read_kinetics"}


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
    r"""Reads a list of `path label`, a folder per class, or what `lightning-multigrid prepare` wrote.

    A *list* is UTF-8 text with a row per video: `path label`, `path` alone (no labels, for prediction), or
    `path frames label` (PySlowFast, VideoMAE; the number of frames is not used). Space, comma or tab separate, which
    one is found out per file. A path that holds the separator, a line break, or starts with a double quote is written
    in double quotes, quotes inside doubled; white space around a field is dropped. Several labels are `1;5` or
    `"1,5"`. The first row may name the columns (`path,label`; others are skipped). Blank lines are skipped. There are
    no comments: HMDB51 has videos whose names start with `#`.

    In a *folder per class*, `source/<class>/**/*.mp4` (and other suffixes), labels count the sorted names of the
    folders. Hidden files are skipped. Links are followed, but not out of `source`, and no folder is entered twice.

    A *prepared* folder, or the `manifest.packed` in it, says by itself what its classes are.

    Args:
        source: The list, the folder that holds a folder per class, or the prepared folder.
        root: Folder that relative paths of a list start from; by default the one the list lies in. Absolute paths
            must lie in a given root, and are accepted as they stand without one; `..` never leads out of it. It may
            be a URL that fsspec knows, such as `s3://bucket/videos`.
        classes: Names of the classes in the order of their labels. For a folder, those of the training split, so that
            other splits get the same labels even if a class is absent.
        multi_label: Whether a video may have any number of labels (a row with an empty label has none).
        frame_rate: Frames per second if each path is a folder of frames; in a folder per class, all folders that hold
            images are.
        existing_only: Leave out, and count, what is listed but not on disk.
        allow_outside_root: Accept paths and links that lead out of the root.

    Raises:
        ManifestError: If something can't be read; it names the line.
        TypeError: If an argument is of a wrong kind.
    """
    source = path_argument("source", source)
    packed = packed_manifest(source)
    if packed is not None:
        return _prepared(packed, root, classes, existing_only)
    if not os.path.isdir(source):
        builder = ManifestBuilder(
            source,
            root,
            classes=classes,
            multi_label=multi_label,
            frame_rate=frame_rate,
            existing_only=existing_only,
            allow_outside_root=allow_outside_root,
        )
        _add_list(builder, source, multi_label)
        return builder.build()
    if root is not None:
        raise ManifestError(
            f"`root` is {str(root)!r}, but `source` {source!r} is a folder per class, whose paths start from itself. "
            "Leave `root` out, or give a list."
        )
    folders = _Folders(source, frames=frame_rate is not None, follow_links=allow_outside_root)
    builder = ManifestBuilder(
        source,
        source,
        classes=classes or folders.classes,
        multi_label=multi_label,
        frame_rate=frame_rate,
        existing_only=existing_only,
        allow_outside_root=allow_outside_root,
    )
    folders.add_to(builder, classes)
    return builder.build()


def _prepared(path: str, root: StrPath | None, classes: Sequence[str], existing_only: bool) -> Manifest:
    """A packed manifest; what it says of classes and labels holds."""
    if root is not None:
        raise ManifestError(
            f"`root` is {str(root)!r}, but the videos of {path} lie beside it, as `prepare` made them. Leave it out."
        )
    manifest = load_manifest(path)
    if not existing_only and (manifest.classes or not classes):
        return manifest
    paths = [manifest.path(row) for row in range(len(manifest))]
    there = [name if not existing_only or os.path.exists(name) else None for name in paths]
    missing = there.count(None)
    return replace(renamed(manifest, there, path, manifest.root, classes), missing=missing, index=manifest.index)


def _add_list(builder: ManifestBuilder, path: str, multi_label: bool) -> None:
    if path.lower().endswith(".json"):
        raise ManifestError(
            f"{path} is JSON, a list of `path label` is required. Use `read_something_something` if it is its."
        )
    columns: tuple[int, int | None] | None = None
    for position, (line, row) in enumerate(_list_rows(path, _separator(path))):
        where = f"line {line}"
        if position == 0:
            columns = _columns(builder, where, row)
            if columns is not None:
                continue
        if columns is None:
            text, label = _fields(builder, where, row, multi_label)
        else:
            if len(row) <= max(columns[0], columns[1] or 0):
                raise builder.error(where, f"{len(row)} fields, fewer than the header names. Complete the row")
            text, label = row[columns[0]], "" if columns[1] is None else row[columns[1]]
        labels = parse_labels(label)
        if labels is None:
            raise builder.error(
                where,
                f"the label {quoted(label)} is not a number from 0. Labels are whole numbers (several are `1;5`), and "
                "a path that holds a space, comma or tab is put in double quotes; for names use a folder per class",
            )
        builder.add(text, labels, where=where)


def _list_rows(path: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    for line, row in csv_rows(path, separator, strict=True):
        fields = [field.strip(" \t") for field in row]
        # Spaces at the end of a line are no empty fields.
        while separator == " " and len(fields) > 2 and not fields[-1]:
            fields.pop()
        if any(fields):
            yield line, fields


def _separator(path: str) -> str:
    """The separator that makes `path label` of the most rows; else the one that splits the first row."""

    def score(separator: str) -> tuple[int, bool]:
        rows: list[list[str]] = []
        # With another separator the quotes may be right; if not, it is the reading that says what is wrong.
        with suppress(ManifestError):
            for _, row in islice(_list_rows(path, separator), 100):
                rows.append(row)
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


def _columns(builder: ManifestBuilder, where: str, row: list[str]) -> tuple[int, int | None] | None:
    """Columns of the path and of the label, if the row names them."""
    names = [name.lower() for name in row]
    if len(row) > 3:
        for column, reader in _OFFICIAL_COLUMNS.items():
            if column in names:
                raise builder.error(where, f"an official annotation file (column {column}). Use `{reader}` to read it")
    paths = [column for column, name in enumerate(names) if name in _PATH_COLUMNS]
    labels = [column for column, name in enumerate(names) if name in _LABEL_COLUMNS]
    if not paths or not (labels or len(row) == 1):
        return None
    return paths[0], labels[0] if labels else None


def _fields(builder: ManifestBuilder, where: str, row: list[str], multi_label: bool) -> tuple[str, str]:
    """Path and label of a row of `path`, `path label` or `path frames label`."""
    if len(row) == 3 and multi_label:
        raise builder.error(
            where,
            f"3 fields ({quoted(', '.join(row))}), of which the second may be a label or a number of frames. Write "
            "several labels as `1;5`, and leave numbers of frames out",
        )
    if len(row) > 3 or (len(row) == 3 and not row[1].isdecimal()):
        raise builder.error(
            where,
            f"{len(row)} fields ({quoted(', '.join(row))}); `path label`, `path` or `path frames label` is required. "
            "Put a path that holds the separator in double quotes",
        )
    return row[0], row[-1] if len(row) > 1 else ""


@dataclass(frozen=True)
class VideoList:
    """A list of `path label`, or a folder per class (`read_manifest`).

    Args:
        source: The list, or the folder that holds a folder per class.
        root: Folder, or its URL, that relative paths of a list start from; by default the one the list lies in.
        classes: Names of the classes in the order of their labels; by default those of the training split.
        multi_label: Whether a video may have any number of labels.
        frame_rate: Frames per second if each path is a folder of frames.
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
        """The videos of the list or the folder."""
        return read_manifest(
            self.source,
            self.root,
            classes=self.classes or classes,
            multi_label=self.multi_label,
            frame_rate=self.frame_rate,
            existing_only=self.existing_only,
            allow_outside_root=self.allow_outside_root,
        )
