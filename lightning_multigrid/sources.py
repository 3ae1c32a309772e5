"""The videos of a split, said in a config: what to read and where it lies. Nothing is read before `read`.

Each class has the arguments of one reader of `manifest`, `annotations` or `charades`, under the name of its dataset. As
frozen dataclasses they print, compare, and stand in YAML under their `class_path`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from lightning_multigrid.annotations import read_hmdb51, read_kinetics, read_something_something, read_ucf101
from lightning_multigrid.charades import read_charades, read_frame_list
from lightning_multigrid.manifest import read_manifest
from lightning_multigrid.packed import Manifest
from lightning_multigrid.textfile import StrPath

__all__ = [
    "HMDB51",
    "UCF101",
    "Charades",
    "FrameList",
    "Kinetics",
    "SomethingSomething",
    "Source",
    "VideoList",
    "VideoSource",
]


@runtime_checkable
class VideoSource(Protocol):
    """What a split's videos can be read from; a class of your own with this method is one, too."""

    def read(self, classes: Sequence[str] = ()) -> Manifest:
        """Reads paths and labels; no video is opened.

        Args:
            classes: Names of the training split's classes in the order of their ids, for sources whose own files don't
                tell them.

        Raises:
            ManifestError: If something can't be read.
        """
        ...


if TYPE_CHECKING:
    Source = str | os.PathLike[str] | VideoSource
else:

    class AnyPath(os.PathLike):
        """Any path will do. This class is for jsonargparse only.

        Without a kind of path in the union, it reads a list as if that were a config; with `os.PathLike` itself, it
        takes a source with a mistake in its arguments for a path.
        """

    Source = str | AnyPath | VideoSource


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


@dataclass(frozen=True)
class SomethingSomething:
    """Something-Something V2 (`read_something_something`). Sample it by segments, without flips.

    Args:
        annotations: `train.json`, `validation.json` or `test.json`, or `something-something-v2-train.json` and so on.
        videos: Folder of `<id>.webm`.
        labels_file: `labels.json`; by default the one beside `annotations`.
        answers_file: `test-answers.csv`, which holds the labels of the test split.
        frame_rate: Frames per second if `videos` holds folders of frames, `<id>/`, instead.
        existing_only: Leave out, and count, videos that are not on disk.
    """

    annotations: StrPath
    videos: StrPath
    labels_file: StrPath | None = None
    answers_file: StrPath | None = None
    frame_rate: float | None = None
    existing_only: bool = False

    def read(self, classes: Sequence[str] = ()) -> Manifest:
        """The videos of the split; the classes are those of the labels file."""
        return read_something_something(
            self.annotations,
            self.videos,
            labels_file=self.labels_file,
            answers_file=self.answers_file,
            frame_rate=self.frame_rate,
            existing_only=self.existing_only,
        )


@dataclass(frozen=True)
class Charades:
    """Charades v1, with several labels per video (`read_charades`).

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
        """The videos of the split; the classes are those of the file of classes."""
        return read_charades(
            self.annotations,
            self.videos,
            classes_file=self.classes_file,
            frame_rate=self.frame_rate,
            existing_only=self.existing_only,
        )


@dataclass(frozen=True)
class FrameList:
    """A list of frames in PySlowFast's form, with several labels per video (`read_frame_list`).

    Args:
        annotations: The list, with the header `original_vido_id video_id frame_id path labels`.
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
        """The folders of frames in the list."""
        return read_frame_list(
            self.annotations,
            self.videos,
            frame_rate=self.frame_rate,
            classes=self.classes or classes,
            existing_only=self.existing_only,
        )


@dataclass(frozen=True)
class UCF101:
    """One of the three splits of UCF101 (`read_ucf101`).

    Args:
        annotations: `trainlist01.txt` or `testlist01.txt`.
        videos: Folder that the paths start from.
        classes_file: `classInd.txt`; by default the one beside `annotations`.
        existing_only: Leave out, and count, videos that are not on disk.
    """

    annotations: StrPath
    videos: StrPath
    classes_file: StrPath | None = None
    existing_only: bool = False

    def read(self, classes: Sequence[str] = ()) -> Manifest:
        """The videos of the list; the classes are those of the file of classes."""
        return read_ucf101(
            self.annotations, self.videos, classes_file=self.classes_file, existing_only=self.existing_only
        )


@dataclass(frozen=True)
class HMDB51:
    """One of the three splits of HMDB51 (`read_hmdb51`).

    Args:
        annotations: Folder of `<class>_test_split<split>.txt`.
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
        """The videos of the subset; the classes are those of the files' names."""
        return read_hmdb51(
            self.annotations, self.videos, split=self.split, subset=self.subset, existing_only=self.existing_only
        )
