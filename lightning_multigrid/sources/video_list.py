"""The user's own videos: a list of `path label`, a folder per class, or what `lightning-multigrid prepare` wrote."""

import math
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from lightning_multigrid.files import VIDEO_SUFFIXES, StrPath, path_argument, quoted
from lightning_multigrid.sources.builder import ManifestBuilder
from lightning_multigrid.sources.class_folders import class_names, videos_below
from lightning_multigrid.sources.manifest import Manifest
from lightning_multigrid.sources.manifest_file import load_manifest, prepared_manifest
from lightning_multigrid.sources.text import ManifestError, csv_rows, read_text

_LABELS = re.compile(r"[0-9]{1,9}(\s*[;,]\s*[0-9]{1,9})*", re.ASCII)


@dataclass(frozen=True)
class VideoList:
    r"""A list of `path label`, a folder per class, or what `lightning-multigrid prepare` wrote.

    A *list* is UTF-8 text with a row per video: `path label`, or `path` alone (no labels, for prediction). The
    separator is a tab, a comma or a space: the first of these that the first row has outside of double quotes. Double
    quotes enclose a path that holds the separator or a line break, or starts with a double quote; quotes inside are
    doubled. White space around a field is dropped. Several labels are `1;5` or `"1,5"`. The first row may name the
    columns, such as `path` and `label`; others are skipped. Blank lines are skipped. There are no comments: HMDB51 has
    videos whose names start with `#`.

    With columns named `start` and `end`, in seconds of the video, a row is a *stretch* of its video: clips and views
    are of the frames that are shown within [start, end). Where a field is empty, the video begins or ends it. A video
    may be in any number of rows.

    In a *folder per class*, `source/<class>/**/*.mp4` (and other suffixes), labels count the sorted names of the
    folders. Hidden files are skipped, links are followed.

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
        allow_outside_root: Accept paths of a list that lead out of the root.
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
        source, classes = path_argument("source", self.source), self.classes or classes
        if (prepared := prepared_manifest(source)) is not None:
            return self._prepared(prepared, classes)
        is_folder = os.path.isdir(source)
        if is_folder and self.root is not None:
            raise ManifestError(f"`root` is for lists, and {source} is a folder. Leave `root` out.")
        folders = class_names(source) if is_folder else []
        builder = ManifestBuilder(
            source,
            source if is_folder else self.root,
            classes=classes or folders,
            multi_label=self.multi_label,
            frame_rate=self.frame_rate,
            existing_only=self.existing_only,
            allow_outside_root=self.allow_outside_root,
        )
        if folders:
            self._add_folders(builder, source, folders, classes or folders)
        elif is_folder:
            for path in videos_below(os.path.abspath(source), frames=self.frame_rate is not None):
                builder.add(path, where=path)
        elif source.lower().endswith(VIDEO_SUFFIXES):
            raise ManifestError(f"{source} is a video. Give the folder that it is in, or a list of `path label`.")
        else:
            _add_list(builder, source)
        return builder.build()

    def _add_folders(
        self, builder: ManifestBuilder, source: str, folders: Sequence[str], classes: Sequence[str]
    ) -> None:
        labels = {name: label for label, name in enumerate(classes)}
        for name in folders:
            if name not in labels:
                raise ManifestError(
                    f"{source} has a folder {quoted(name)}, which is not among the {len(classes):,} `classes`. "
                    "Give the classes of the training split, or move the folder away."
                )
            folder = os.path.join(os.path.abspath(source), name)
            videos = list(videos_below(folder, frames=self.frame_rate is not None))
            if not videos:
                kind = "videos" if self.frame_rate is None else "folders of images"
                raise ManifestError(f"{folder} holds no {kind}. Add some, or remove the folder.")
            for path in videos:
                builder.add(path, [labels[name]], where=path)

    def _prepared(self, path: str, classes: Sequence[str]) -> Manifest:
        """Reads the manifest of a prepared folder; its own classes and labels come before those of training."""
        manifest = load_manifest(path, classes, existing_only=self.existing_only)
        other_classes = self.classes and manifest.classes != self.classes
        other_labels = self.multi_label and not manifest.multi_label
        if other_classes or other_labels or self.root is not None or self.frame_rate is not None:
            raise ManifestError(
                f"{path} has its own `root`, `classes` and `multi_label`, and no `frame_rate`, and the arguments say "
                "otherwise. Leave them out, or prepare the videos anew with them."
            )
        return manifest


def _add_list(builder: ManifestBuilder, path: str) -> None:
    names: list[str] = []
    for number, (line, row) in enumerate(csv_rows(path, _separator(path))):
        where = f"line {line}"
        while not row[-1]:  # spaces at the end of a line do not make fields
            row.pop()
        header = [name.lower() for name in row]
        if number == 0 and "path" in header and ("label" in header or {"path", "start", "end"}.issuperset(header)):
            names = header
            if ("start" in names) != ("end" in names):
                raise builder.error(where, "stretches need two columns, `start` and `end`; their fields may be empty")
            continue
        if len(row) > (len(names) or 2):
            raise builder.error(
                where,
                f"{len(row)} fields ({quoted(', '.join(row))}); `path label` or `path` is required. Put a path that "
                "holds the separator in double quotes, let the first row name the columns of stretches "
                "(`path,label,start,end`), and read official annotation files with `Kinetics` and so on",
            )
        fields = dict(zip(names or ("path", "label"), row, strict=False))
        label = fields.get("label", "")
        if label and not _LABELS.fullmatch(label):
            raise builder.error(
                where,
                f"the label {quoted(label)} is not a number from 0, or several such as `1;5`. Put a path that holds "
                "a separator in double quotes, name the columns `path` and `label`, or use a folder per class",
            )
        start = _seconds(builder, where, fields.get("start") or 0.0)
        end = _seconds(builder, where, fields.get("end") or math.inf)
        labels = [int(part) for part in re.findall("[0-9]+", label)]
        builder.add(fields.get("path", ""), labels, where=where, stretch=(start, end))


def _seconds(builder: ManifestBuilder, where: str, moment: str | float) -> float:
    with suppress(ValueError):
        return float(moment)
    raise builder.error(where, f"the start or end {quoted(str(moment))} is no number of seconds. Write it like `12.5`")


def _separator(path: str) -> str:
    """Returns the first separator that the first row has outside of double quotes."""
    rows = re.sub('"[^"]*"', "quoted", read_text(path)).split("\n")
    first = next(filter(None, map(str.strip, rows)), "")
    return next((separator for separator in "\t, " if separator in first), ",")
