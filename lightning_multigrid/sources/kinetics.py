"""The official annotation files of Kinetics, Something-Something, UCF101 and HMDB51, each read into a `Manifest`.

Every reader takes the annotation file, then the folder of the videos. What else it needs (names of classes, mostly)
lies beside the annotation file, as it was downloaded, unless it is given.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lightning_multigrid.files import StrPath, is_url, path_argument, quoted
from lightning_multigrid.sources.builder import ManifestBuilder
from lightning_multigrid.sources.manifest import Manifest
from lightning_multigrid.sources.text import (
    ManifestError,
    csv_table,
    names_in,
    sibling,
)

__all__ = ["Kinetics", "read_kinetics"]

_YOUTUBE_ID = re.compile(r"[A-Za-z0-9_-]{11}")
_SECONDS = re.compile(r"([0-9]{1,6})(?:\.0*)?")


def read_kinetics(
    annotations: StrPath,
    videos: StrPath,
    *,
    classes: Sequence[str] = (),
    replacements: StrPath | None = None,
    class_folders: bool = False,
    existing_only: bool = False,
) -> Manifest:
    """Kinetics-400, -600 and -700 as CVDF distributes them.

    Args:
        annotations: `train.csv`, `val.csv`, `validate.csv` or `test.csv`, with or without `is_cc`; a test split may
            have no labels.
        videos: Folder of this split: `<youtube_id>_<start>_<end>.mp4`, times in seconds with six digits.
        classes: Labels in the order of their ids. By default the sorted labels of the training split, whose file is
            looked for beside `annotations`: another split may lack a class, and would number the rest differently.
        replacements: Folder with replacements of corrupted videos (`replacement_for_corrupted_k400`); the first 11
            characters of their names are the `youtube_id` they stand for.
        class_folders: Whether `videos` holds a folder per label, as that of Kinetics-700-2020 does.
        existing_only: Leave out, and count, videos that are not on disk: many links are dead.

    Raises:
        ManifestError: If a file can't be read, a label is not among the classes, or the classes are unknown.
    """
    path = path_argument("annotations", annotations)
    root = path_argument("videos", videos)
    if is_url(root) and replacements is not None:
        raise ManifestError(
            f"`videos` is {root!r}, but `replacements` need videos on disk. Put them in the place of the corrupted "
            "videos, and leave `replacements` out."
        )
    root = root if is_url(root) else os.path.abspath(root)
    prefix = ""
    replaced: dict[str, str] = {}
    if replacements is not None:
        folder = os.path.abspath(path_argument("replacements", replacements))
        top = os.path.commonpath([root, folder])
        prefix = os.path.relpath(root, top)
        replaced = {name[:11]: os.path.join(os.path.relpath(folder, top), name) for name in names_in(folder)}
        root = top
    known = tuple(classes) if classes else _kinetics_classes(path)
    labels = {label: number for number, label in enumerate(known)}
    builder = ManifestBuilder(path, root, classes=classes or known, existing_only=existing_only)
    for line, row in csv_table(path, ("youtube_id", "time_start", "time_end", "split")):
        where = f"line {line}"
        label = row.get("label", "")
        if label and label not in labels:
            raise builder.error(
                where,
                f"the label {quoted(label)} is not among the {len(labels):,} classes. Give those of its train.csv",
            )
        name = replaced.get(row["youtube_id"])
        if name is None:
            folder = os.path.join(prefix, label) if class_folders else prefix
            name = os.path.join(folder, _kinetics_name(builder, where, row))
        builder.add(name, [labels[label]] if label else [], where=where)
    return builder.build()


def _kinetics_name(builder: ManifestBuilder, where: str, row: Mapping[str, str]) -> str:
    times = [_SECONDS.fullmatch(row[name]) for name in ("time_start", "time_end")]
    if times[0] is None or times[1] is None or not _YOUTUBE_ID.fullmatch(row["youtube_id"]):
        given = f"{row['youtube_id']},{row['time_start']},{row['time_end']}"
        raise builder.error(
            where,
            f"{quoted(given)} is not a video; an id of 11 letters, digits, - or _ and two times in seconds are "
            "required. Give the official annotation file",
        )
    return f"{row['youtube_id']}_{int(times[0][1]):06d}_{int(times[1][1]):06d}.mp4"


def _kinetics_classes(path: str) -> tuple[str, ...]:
    """Sorted labels of the training split that belongs to `path`; none if it isn't there and `path` has no labels."""
    _, first = next(csv_table(path, ("split",)), (0, {"split": "train"}))
    train = path if first["split"] == "train" else sibling(path, r"validation|validate|val|test", "train")
    if train != path and not os.path.isfile(train):
        if "label" not in first:
            return ()
        raise ManifestError(
            f"{path} holds the split {quoted(first['split'])}, and ids of classes are those of the training split, but "
            f"{train} does not exist. Put the training split's file there, or give `classes`."
        )
    return tuple(sorted({row["label"] for _, row in csv_table(train, ("label",))} - {""}))


@dataclass(frozen=True)
class Kinetics:
    """Kinetics-400, -600 and -700 as CVDF distributes them (`read_kinetics`).

    Args:
        annotations: `train.csv`, `val.csv`, `validate.csv` or `test.csv`.
        videos: Folder of this split: `<youtube_id>_<start>_<end>.mp4`, times in seconds with six digits.
        classes: Labels in the order of their ids; by default those of the training split.
        replacements: Folder with replacements of corrupted videos (`replacement_for_corrupted_k400`).
        class_folders: Whether `videos` holds a folder per label, as that of Kinetics-700-2020 does.
        existing_only: Leave out, and count, videos that are not on disk: many links are dead.
    """

    annotations: StrPath
    videos: StrPath
    classes: tuple[str, ...] = ()
    replacements: StrPath | None = None
    class_folders: bool = False
    existing_only: bool = False

    def read(self, classes: Sequence[str] = ()) -> Manifest:
        """The videos of the split."""
        return read_kinetics(
            self.annotations,
            self.videos,
            classes=self.classes or classes,
            replacements=self.replacements,
            class_folders=self.class_folders,
            existing_only=self.existing_only,
        )
