"""Datasets by their official files: Kinetics, Something-Something V2, Charades, UCF101 and HMDB51."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lightning_multigrid.files import StrPath, path_argument, quoted, require
from lightning_multigrid.sources.builder import ManifestBuilder
from lightning_multigrid.sources.manifest import Manifest
from lightning_multigrid.sources.text import ManifestError, csv_table, read_json, read_text, refuse_unlisted

_ACTION = re.compile(r"c(\d{3}) (\d+(?:\.\d+)?) (\d+(?:\.\d+)?)", re.ASCII)


@dataclass(frozen=True)
class Kinetics:
    """Kinetics-400, -600 and -700 as CVDF distributes them.

    Args:
        annotations: `train.csv`, `val.csv`, `validate.csv` or `test.csv`, with or without `is_cc`; a test split may
            have no labels.
        videos: Folder of this split: `<youtube_id>_<start>_<end>.mp4`, times in seconds with six digits.
        classes: Labels in the order of their ids. By default the sorted labels of the training split, whose file must
            then lie beside `annotations`: another split may lack a class, which would shift the ids of the others.
        existing_only: Leave out, and count, videos that are not on disk: many links are dead.
    """

    annotations: StrPath
    videos: StrPath
    classes: tuple[str, ...] = ()
    existing_only: bool = False

    def read(self, classes: Sequence[str] = ()) -> Manifest:
        """Reads the videos; `classes` count only if the source has none itself."""
        path = path_argument("annotations", self.annotations)
        rows = list(csv_table(path, "youtube_id", "time_start", "time_end", "split"))
        known = tuple(self.classes or classes)
        if not known and any("label" in row for _, row in rows):
            train = re.sub("validation|validate|val|test", "train", os.path.basename(path))
            beside = csv_table(os.path.join(os.path.dirname(path), train), "label")
            known = tuple(sorted({row["label"] for _, row in beside}))
        labels = {label: number for number, label in enumerate(known)}
        builder = ManifestBuilder(path, self.videos, classes=known, existing_only=self.existing_only)
        for line, row in rows:
            label = row.get("label")
            if label is not None and label not in labels:
                what = f"{quoted(label)} is not among the {len(labels):,} classes of train.csv. Give `classes`"
                raise builder.error(line, what)
            try:
                start, end = int(float(row["time_start"])), int(float(row["time_end"]))
            except ValueError as error:
                raise builder.error(line, f"{error}; two times in seconds are required") from error
            name = f"{row['youtube_id']}_{start:06d}_{end:06d}.mp4"
            builder.add(name, [] if label is None else [labels[label]], where=line)
        return builder.build()


@dataclass(frozen=True)
class SomethingSomething:
    """Something-Something V2, with the new names of its files or the old ones. Sample it by segments, without flips.

    Args:
        annotations: `train.json`, `validation.json` or `test.json` (whose labels are unknown), or
            `something-something-v2-train.json` and so on.
        videos: Folder of `<id>.webm`.
        labels_file: `labels.json`; by default the one beside `annotations`.
        frame_rate: Frames per second if `videos` holds folders of frames, `<id>/`, instead.
        existing_only: Leave out, and count, videos that are not on disk.
    """

    annotations: StrPath
    videos: StrPath
    labels_file: StrPath | None = None
    frame_rate: float | None = None
    existing_only: bool = False

    def read(self, classes: Sequence[str] = ()) -> Manifest:
        """Reads the videos; the classes are always those of the labels file."""
        path = path_argument("annotations", self.annotations)
        names = re.sub("validation|train|test", "labels", os.path.basename(path))
        labels_file = _given_or_beside(self.labels_file, path, names)
        labels, entries = read_json(labels_file), read_json(path)
        if not isinstance(labels, dict) or sorted(map(str, labels.values())) != sorted(map(str, range(len(labels)))):
            raise ManifestError(
                f"{labels_file} does not hold labels with the ids 0, 1, 2 and so on. Give the official `labels.json`."
            )
        if not isinstance(entries, list):
            raise ManifestError(f"{path} holds no list of videos. Give the official train, validation or test file.")
        ids = {label: int(number) for label, number in labels.items()}
        known, rate = sorted(ids, key=ids.__getitem__), self.frame_rate
        builder = ManifestBuilder(path, self.videos, classes=known, frame_rate=rate, existing_only=self.existing_only)
        suffix = ".webm" if self.frame_rate is None else ""
        for number, entry in enumerate(entries, start=1):
            where = f"entry {number}"
            video, template = (entry.get("id"), entry.get("template", "")) if isinstance(entry, dict) else (None, None)
            if not isinstance(video, str | int) or not isinstance(template, str):
                raise builder.error(
                    where,
                    f"{quoted(str(entry))} is not a video with an `id` and, but for a test, a `template`. Give the "
                    "official train, validation or test file",
                )
            label = template.replace("[", "").replace("]", "")
            if label and label not in ids:
                what = f"{quoted(label)} is not a label of {labels_file}. Give the `labels_file` of these annotations"
                raise builder.error(where, what)
            builder.add(f"{video}{suffix}", [ids[label]] if label else [], where=where)
        return builder.build()


@dataclass(frozen=True)
class Charades:
    """Charades v1: any number of actions per video, each with its span in seconds (`Manifest.labels_between`).

    Args:
        annotations: `Charades_v1_train.csv` or `Charades_v1_test.csv`.
        videos: Folder of `<id>.mp4` (`Charades_v1`, `Charades_v1_480`).
        classes_file: `Charades_v1_classes.txt`; by default the one beside `annotations`.
        frame_rate: Frames per second if `videos` holds folders of frames, `<id>/`, instead; those of `Charades_v1_rgb`
            have 24.
        existing_only: Leave out, and count, videos that are not on disk.
    """

    annotations: StrPath
    videos: StrPath
    classes_file: StrPath | None = None
    frame_rate: float | None = None
    existing_only: bool = False

    def read(self, classes: Sequence[str] = ()) -> Manifest:
        """Reads the videos; the classes are always those of the file of classes."""
        path = path_argument("annotations", self.annotations)
        names = _numbered_names(_given_or_beside(self.classes_file, path, "Charades_v1_classes.txt"), first=0)
        rate, only = self.frame_rate, self.existing_only
        builder = ManifestBuilder(
            path, self.videos, classes=names, multi_label=True, frame_rate=rate, existing_only=only
        )
        suffix = ".mp4" if self.frame_rate is None else ""
        for line, row in csv_table(path, "id", "actions"):
            labels, spans = [], []
            for action in filter(None, row["actions"].split(";")):
                if not (match := _ACTION.fullmatch(action)):
                    raise builder.error(line, f"{quoted(action)} is not like `c092 11.90 21.20`. Repair the line")
                labels.append(int(match[1]))
                spans.append((float(match[2]), float(match[3])))
            builder.add(row["id"] + suffix, labels, where=line, spans=spans)
        return builder.build()


@dataclass(frozen=True)
class UCF101:
    """One of the three splits of UCF101.

    Args:
        annotations: `trainlist01.txt` or `testlist01.txt`; a line begins with `Archery/v_Archery_g08_c01.avi`, where
            the folder is the label.
        videos: Folder that the paths start from.
        classes_file: `classInd.txt`; by default the one beside `annotations`.
        existing_only: Leave out, and count, videos that are not on disk.
    """

    annotations: StrPath
    videos: StrPath
    classes_file: StrPath | None = None
    existing_only: bool = False

    def read(self, classes: Sequence[str] = ()) -> Manifest:
        """Reads the videos; the classes are always those of the file of classes."""
        path = path_argument("annotations", self.annotations)
        names = _numbered_names(_given_or_beside(self.classes_file, path, "classInd.txt"), first=1)
        builder = ManifestBuilder(path, self.videos, classes=names, existing_only=self.existing_only)
        for line, text in enumerate(read_text(path).splitlines(), start=1):
            if text.strip():
                video = text.split()[0]
                label = video.split("/")[0]
                if label not in names:
                    what = "has no folder that is a class of classInd.txt. Give the right `classes_file`"
                    raise builder.error(line, f"{quoted(text)} {what}")
                builder.add(video, [names.index(label)], where=line)
        return builder.build()


@dataclass(frozen=True)
class HMDB51:
    """One of the three splits of HMDB51.

    Args:
        annotations: Folder of `<class>_test_split<split>.txt`; a line is the name of a video and 1 (training), 2 (test)
            or 0 (unused in this split).
        videos: Folder that holds a folder per class.
        split: 1, 2 or 3.
        subset: The videos for training or those for testing.
        existing_only: Leave out, and count, videos that are not on disk.
    """

    annotations: StrPath
    videos: StrPath
    split: int = 1
    subset: Literal["train", "test"] = "train"
    existing_only: bool = False

    def read(self, classes: Sequence[str] = ()) -> Manifest:
        """Reads the videos; the classes are always those of the names of the files."""
        folder = path_argument("annotations", self.annotations)
        require(self.subset in ("train", "test"), "subset", self.subset, "'train' or 'test'")
        ending = f"_test_split{self.split}.txt"
        _, _, files = next(os.walk(folder, onerror=refuse_unlisted))
        names = sorted(file.removesuffix(ending) for file in files if file.endswith(ending))
        if not names:
            raise ManifestError(f"{folder} holds no <class>{ending}. Give the folder testTrainMulti_7030_splits.")
        builder = ManifestBuilder(folder, self.videos, classes=names, existing_only=self.existing_only)
        wanted = "1" if self.subset == "train" else "2"
        for label, name in enumerate(names):
            for line, text in enumerate(read_text(os.path.join(folder, name + ending)).splitlines(), start=1):
                # From the right: names of videos have odd characters.
                video, _, use = text.strip().rpartition(" ")
                where = f"{name}{ending}, line {line}"
                if text.strip() and use not in ("0", "1", "2"):
                    raise builder.error(where, f"{quoted(text)} is not `video.avi` and 0, 1 or 2. Repair the line")
                if use == wanted:
                    builder.add(f"{name}/{video.strip()}", [label], where=where)
        return builder.build()


def _given_or_beside(given: StrPath | None, path: str, name: str) -> str:
    return os.path.join(os.path.dirname(path), name) if given is None else os.fspath(given)


def _numbered_names(path: str, *, first: int) -> list[str]:
    """Returns the names that a file numbers from `first` on, as `1 Archery` or `c000 Holding some clothes`."""
    names: list[str] = []
    for line in filter(None, map(str.strip, read_text(path).splitlines())):
        number, _, name = line.partition(" ")
        if not re.fullmatch(f"c?0*{first + len(names)}", number):
            raise ManifestError(f"{path}: {quoted(line)} must begin with the number {first + len(names)}.")
        names.append(name)
    return names
