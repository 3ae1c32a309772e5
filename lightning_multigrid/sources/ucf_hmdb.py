"""UCF101 and HMDB51."""

import os
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lightning_multigrid.files import StrPath, path_argument, quoted
from lightning_multigrid.sources.builder import ManifestBuilder
from lightning_multigrid.sources.manifest import Manifest
from lightning_multigrid.sources.text import ManifestError, file_or, names_in, numbered_names, text_lines


@dataclass(frozen=True)
class UCF101:
    """One of the three splits of UCF101.

    Args:
        annotations: `trainlist01.txt` (`Archery/v_Archery_g08_c01.avi 3`), or `testlist01.txt`, where the folder is the
            label.
        videos: Folder that the paths start from.
        classes_file: `classInd.txt`, whose ids count from 1; by default the one beside `annotations`.
        existing_only: Leave out, and count, videos that are not on disk.
    """

    annotations: StrPath
    videos: StrPath
    classes_file: StrPath | None = None
    existing_only: bool = False

    def read(self, classes: Sequence[str] = ()) -> Manifest:
        """Reads the videos of the list; the classes are always those of the file of classes.

        A `ManifestError` if a file can't be read, or a class is unknown.
        """
        path = path_argument("annotations", self.annotations)
        beside = os.path.join(os.path.dirname(path), "classInd.txt")
        names = numbered_names(file_or(beside, "classes_file", self.classes_file), "{}", 1)
        by_name = {name: label for label, name in enumerate(names)}
        by_id = {str(label + 1): label for label in range(len(names))}
        videos = path_argument("videos", self.videos)
        builder = ManifestBuilder(path, videos, classes=names, existing_only=self.existing_only)
        for line, text in enumerate(text_lines(path), start=1):
            fields = text.split()
            if not fields:
                continue
            named = by_name.get(posixpath.dirname(fields[0]))
            label = by_id.get(fields[1].lstrip("0")) if len(fields) == 2 else named
            if len(fields) > 2 or label is None:
                raise builder.error(
                    f"line {line}",
                    f"{quoted(text)} is not `Class/video.avi` with a class of classInd.txt, or its id from 1 to "
                    f"{len(names)}. Give the official list",
                )
            builder.add(fields[0], [label], where=f"line {line}")
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
        """Reads the videos of the subset; the classes are always those of the names of the files.

        A `ManifestError` if a file can't be read, or the folder has no files of this split.
        """
        folder = path_argument("annotations", self.annotations)
        if self.subset not in ("train", "test"):
            raise ManifestError(f"`subset` must be 'train' or 'test', got {self.subset!r}.")
        ending = f"_test_split{self.split}.txt"
        names = [file.removesuffix(ending) for file in names_in(folder) if file.endswith(ending)]
        if not names:
            raise ManifestError(f"{folder} holds no <class>{ending}. Give the folder testTrainMulti_7030_splits.")
        videos = path_argument("videos", self.videos)
        builder = ManifestBuilder(folder, videos, classes=names, existing_only=self.existing_only)
        wanted = "1" if self.subset == "train" else "2"
        for label, name in enumerate(names):
            file = name + ending
            for line, text in enumerate(text_lines(os.path.join(folder, file)), start=1):
                where = f"{file}, line {line}"
                # From the right: names of videos have odd characters.
                video, _, use = text.strip().rpartition(" ")
                if text.strip() and (not video or use not in ("0", "1", "2")):
                    raise builder.error(where, f"{quoted(text)} is not `video.avi` and 0, 1 or 2. Repair the line")
                if use == wanted:
                    builder.add(f"{name}/{video.strip()}", [label], where=where)
        return builder.build()
