"""Kinetics-400, -600 and -700."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lightning_multigrid.files import StrPath, path_argument, quoted
from lightning_multigrid.sources.builder import ManifestBuilder
from lightning_multigrid.sources.manifest import Manifest
from lightning_multigrid.sources.text import ManifestError, csv_table, names_in, sibling

_VIDEO = re.compile(r"([A-Za-z0-9_-]{11}),([0-9]{1,6})(?:\.0*)?,([0-9]{1,6})(?:\.0*)?")


@dataclass(frozen=True)
class Kinetics:
    """Kinetics-400, -600 and -700 as CVDF distributes them.

    Args:
        annotations: `train.csv`, `val.csv`, `validate.csv` or `test.csv`, with or without `is_cc`; a test split may
            have no labels.
        videos: Folder of this split: `<youtube_id>_<start>_<end>.mp4`, times in seconds with six digits.
        classes: Labels in the order of their ids. By default the sorted labels of the training split, whose file must
            then lie beside `annotations`: another split may lack a class, which would shift the ids of the others.
        replacements: Folder with replacements of corrupted videos (`replacement_for_corrupted_k400`). The first 11
            characters of a file's name are the `youtube_id` of the video that it replaces.
        class_folders: Whether `videos` holds a folder per label, as for Kinetics-700-2020.
        existing_only: Leave out, and count, videos that are not on disk: many links are dead.
    """

    annotations: StrPath
    videos: StrPath
    classes: tuple[str, ...] = ()
    replacements: StrPath | None = None
    class_folders: bool = False
    existing_only: bool = False

    def read(self, classes: Sequence[str] = ()) -> Manifest:
        """Reads the videos of the split; `classes` count only if the source has none itself.

        A `ManifestError` if a file can't be read, a label is not among the classes, or the classes are unknown.
        """
        path = path_argument("annotations", self.annotations)
        root, folder, replaced = self._places()
        given = self.classes or classes
        known = tuple(given) or _training_labels(path)
        labels = {label: number for number, label in enumerate(known)}
        builder = ManifestBuilder(path, root, classes=given or known, existing_only=self.existing_only)
        for line, row in csv_table(path, ("youtube_id", "time_start", "time_end", "split")):
            where = f"line {line}"
            label = row.get("label", "")
            if label and label not in labels:
                raise builder.error(
                    where, f"{quoted(label)} is not among the {len(labels):,} classes of train.csv. Give `classes`"
                )
            name = replaced.get(row["youtube_id"])
            if name is None:
                name = os.path.join(folder, label if self.class_folders else "", _file_name(builder, where, row))
            builder.add(name, [labels[label]] if label else [], where=where)
        return builder.build()

    def _places(self) -> tuple[str, str, dict[str, str]]:
        """Returns the root, the folder of the videos in it, and the replacement of each `youtube_id`."""
        root = path_argument("videos", self.videos)
        if self.replacements is None:
            return root, "", {}
        videos, folder = os.path.abspath(root), os.path.abspath(path_argument("replacements", self.replacements))
        replaced = {name[:11]: os.path.join(folder, name) for name in names_in(folder)}
        return os.path.commonpath([videos, folder]), videos, replaced


def _file_name(builder: ManifestBuilder, where: str, row: Mapping[str, str]) -> str:
    given = f"{row['youtube_id']},{row['time_start']},{row['time_end']}"
    if not (match := _VIDEO.fullmatch(given)):
        raise builder.error(
            where,
            f"{quoted(given)} is not a video; an id of 11 letters, digits, - or _ and two times in seconds are "
            "required. Give the official annotation file",
        )
    return f"{match[1]}_{int(match[2]):06d}_{int(match[3]):06d}.mp4"


def _training_labels(path: str) -> tuple[str, ...]:
    """Sorted labels of the training split beside `path`; none if its file is missing and `path` has no labels."""
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
