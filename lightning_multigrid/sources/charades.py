"""Charades, whose videos show several actions, each for a while."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from lightning_multigrid.files import StrPath, path_argument, quoted
from lightning_multigrid.sources.builder import ManifestBuilder
from lightning_multigrid.sources.manifest import Manifest
from lightning_multigrid.sources.text import csv_table, file_or, numbered_names

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
