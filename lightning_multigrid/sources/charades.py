"""Charades, whose videos show several actions, each for a while: its own files, and PySlowFast's lists of frames."""

import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, pairwise
from operator import attrgetter
from typing import NamedTuple

from lightning_multigrid.files import StrPath, path_argument, quoted
from lightning_multigrid.sources.builder import ManifestBuilder
from lightning_multigrid.sources.manifest import Manifest
from lightning_multigrid.sources.text import csv_table, file_or, numbered_names, parse_labels, text_lines

_ACTION = re.compile(r"c([0-9]{3}) ([0-9]{1,6}(?:\.[0-9]{1,9})?) ([0-9]{1,6}(?:\.[0-9]{1,9})?)")


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
        """Reads the videos of the split; the classes are always those of the file of classes.

        A `ManifestError` if a file can't be read, or an action is not like `c092 11.90 21.20`.
        """
        path = path_argument("annotations", self.annotations)
        beside = os.path.join(os.path.dirname(path), "Charades_v1_classes.txt")
        names = numbered_names(file_or(beside, "classes_file", self.classes_file), "c{:03d}", 0)
        videos = path_argument("videos", self.videos)
        builder = ManifestBuilder(
            path, videos, classes=names, multi_label=True, frame_rate=self.frame_rate, existing_only=self.existing_only
        )
        suffix = ".mp4" if self.frame_rate is None else ""
        for line, row in csv_table(path, ("id", "actions")):
            where = f"line {line}"
            labels, spans = [], []
            for action in filter(None, row["actions"].split(";")):
                if not (match := _ACTION.fullmatch(action)):
                    raise builder.error(where, f"{quoted(action)} is not like `c092 11.90 21.20`. Repair the line")
                labels.append(int(match[1]))
                spans.append((float(match[2]), float(match[3])))
            builder.add(row["id"] + suffix, labels, where=where, spans=spans)
        return builder.build()


@dataclass(frozen=True)
class FrameList:
    """PySlowFast's list of frames with the labels of each (Charades), read as folders of frames.

    A label becomes a span of its frames: frame k, from 0, lasts from k / `frame_rate` to (k + 1) / `frame_rate` s.
    The lists of Something-Something hold no labels; `SomethingSomething` reads its frames with them.

    Args:
        annotations: The list, with the header `original_vido_id video_id frame_id path labels`. All frames of a
            folder are listed, in the order of their names.
        videos: Folder that the paths start from.
        frame_rate: Frames per second: 24 for Charades, 30 for Something-Something.
        classes: Names of the classes in the order of their labels.
        existing_only: Leave out, and count, folders that are not on disk.
    """

    annotations: StrPath
    videos: StrPath
    frame_rate: float = 24.0
    classes: tuple[str, ...] = ()
    existing_only: bool = False

    def read(self, classes: Sequence[str] = ()) -> Manifest:
        """Reads the folders of frames in the list; `classes` count only if the source has none itself.

        A `ManifestError` if the list can't be read, or frames are left out or out of order.
        """
        path = path_argument("annotations", self.annotations)
        videos, names = path_argument("videos", self.videos), self.classes or classes
        builder = ManifestBuilder(
            path, videos, classes=names, multi_label=True, frame_rate=self.frame_rate, existing_only=self.existing_only
        )
        seen = set()
        for video, group in groupby(_frames(builder, path), key=attrgetter("video")):
            frames, where = list(group), f"video {quoted(video)}"
            if video in seen:
                raise builder.error(where, "its frames are in several places, one is required. Sort the list")
            seen.add(video)
            for last, frame in pairwise(frames):
                if not _follows(frame, last):
                    raise builder.error(
                        f"line {frame.line}",
                        f"frame {frame.number}, {quoted(frame.path)}, does not follow {last.number}, "
                        f"{quoted(last.path)}; all frames of one folder are required, in the order of their names. "
                        "Sort the list",
                    )
            stretches = _stretches([frame.labels for frame in frames])
            spans = [(first / self.frame_rate, end / self.frame_rate) for _, first, end in stretches]
            labels = [label for label, _, _ in stretches]
            builder.add(posixpath.dirname(frames[0].path), labels, where=where, spans=spans)
        return builder.build()


class _Frame(NamedTuple):
    line: int
    video: str
    number: int
    path: str
    labels: frozenset[int]


def _frames(builder: ManifestBuilder, path: str) -> Iterator[_Frame]:
    # The typo is in the files.
    header = "original_vido_id video_id frame_id path labels"
    parsed = lru_cache(parse_labels)  # neighbours have the same
    for line, text in enumerate(text_lines(path), start=1):
        fields = text.split()
        if line == 1 and fields != header.split():
            raise builder.error("line 1", f"{quoted(text)} is not the header `{header}`. Give PySlowFast's frame list")
        if line == 1 or not fields:
            continue
        if len(fields) != 5 or not (fields[2].isascii() and fields[2].isdecimal() and len(fields[2]) < 10):
            raise builder.error(f"line {line}", f"{quoted(text)} is not `{header}`. Repair the line")
        unquoted = fields[4].replace('"', "")
        labels = parsed(unquoted)
        if labels is None:
            raise builder.error(f"line {line}", f'{quoted(unquoted)} are not labels like "1,5". Repair the line')
        yield _Frame(line, fields[0], int(fields[2]), fields[3], frozenset(labels))


def _stretches(frames: Sequence[frozenset[int]]) -> list[tuple[int, int, int]]:
    """Returns (label, first frame, last frame + 1) of each stretch of frames with a label."""
    stretches: list[tuple[int, int, int]] = []
    began: dict[int, int] = {}
    for position, labels in enumerate([*frames, frozenset()]):
        stretches += [(label, began.pop(label), position) for label in sorted(began.keys() - labels)]
        began.update(dict.fromkeys(labels - began.keys(), position))
    return stretches


def _follows(frame: _Frame, last: _Frame) -> bool:
    (folder, name), (last_folder, last_name) = posixpath.split(frame.path), posixpath.split(last.path)
    # By length first: 9.jpg comes before 10.jpg.
    in_order = (len(last_name), last_name) < (len(name), name)
    return folder == last_folder and in_order and frame.number == last.number + 1
