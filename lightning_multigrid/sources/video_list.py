"""The user's own videos: a list of `path label`, a folder per class, or what `lightning-multigrid prepare` wrote."""

import logging
import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lightning_multigrid.files import (
    VIDEO_SUFFIXES,
    StrPath,
    is_frame,
    is_url,
    new_file,
    path_argument,
    quoted,
    write_csv,
)
from lightning_multigrid.sources.builder import ManifestBuilder
from lightning_multigrid.sources.list_file import Labels, ListFile, metadata_in, times
from lightning_multigrid.sources.manifest import Manifest
from lightning_multigrid.sources.text import ManifestError, read_text, refuse_unlisted

_log = logging.getLogger(__name__)
LIST_NAME, CLASSES_NAME = "metadata.csv", "classes.txt"  # of a folder that `prepare` wrote
_WRITTEN = ("file_name", "label", "start", "end", "prepared")
_OLDER = "manifest.json"  # which `prepare` wrote once
_OF_THE_SYSTEM = ("lost+found", "@eaDir")  # folders: of a file system, and of thumbnails that a NAS makes
_SPLITS = ("train", "training", "val", "valid", "validate", "validation", "test", "testing")


@dataclass(frozen=True)
class VideoList:
    r"""A list of `path label`, a folder per class, or what `lightning-multigrid prepare` wrote.

    A *list* is UTF-8 text with a row per video: `path label`, or `path` alone (no labels, for prediction). The
    separator is a tab, a comma, a space or a semicolon: the first of these by which the first row is a header, or else
    that it has outside of double quotes. Double quotes enclose a path that holds the separator, as in any CSV.

    Labels are all numbers from 0, or all names of classes, which count in the order of the sorted names. Several labels
    are `1;5` or `"1,5"`. Without a header, a name follows the path of a video file.

    The first row may be a header, in any capitals: `path` (or `file_name`, `filename`, `filepath`, `file_path`,
    `video_path`, `video`, `file`, `clip`) and `label` (or `labels`, `class`, `class_name`, `category`, `action`). Of
    several such columns, the first in this order counts; others are skipped, but for `split`, `subset`, `partition` and
    `fold`, in which all rows must be alike. In a folder, `metadata.csv` with these names is its list, as in the video
    folders of Hugging Face.

    With columns named `start` and `end`, in seconds, a row is a *stretch* of its video: clips and views are of the
    frames that are shown within [start, end). An empty field is the start or the end of the video.

    In a *folder per class*, `source/<class>/**/*.mp4` (and other suffixes), labels count the sorted names of the
    folders; if these are the numbers from 0 on, each is its label. A warning names what is left out. In a *folder of
    videos*, `source/*.mp4`, they have no labels; with `frame_rate`, such a folder of images is one video.

    Videos may be at *URLs* of `https://`, `http://`, `s3://` and `hf://`: below a `root` that is one, in a list whose
    rows are URLs below that root, and in a list or a prepared folder that is at a URL itself.

    Where a video may have several labels, a column `spans` has the start and the end of each in seconds of the video,
    like `1.5 3;0 12.25`; an empty field means all of it.

    A *prepared* folder holds such a list, `metadata.csv`, and `classes.txt`, whose lines its labels count.

    Args:
        source: The list, the folder that holds a folder per class or videos, or the prepared folder.
        root: Folder or URL that relative paths of a list start from; by default the folder of the list. Absolute paths
            must lie in a given root, and may lie anywhere without one; `..` never leads out of it. URLs always lie
            below a root that is one.
        classes: Names of the classes in the order of their labels, or a file with one on each line; by default those of
            the training split, so that another split gets the same labels even if it lacks a class.
        multi_label: Whether a video may have any number of labels (a row with an empty label has none).
        frame_rate: Frames per second if each path is a folder of frames. In a folder per class, every folder that holds
            images is then a video.
        existing_only: Leave out, and count, what is listed but not on disk.
        allow_outside_root: Accept paths and URLs of a list that lead out of the root.
    """

    source: StrPath
    root: StrPath | None = None
    classes: tuple[str, ...] | StrPath = ()
    multi_label: bool = False
    frame_rate: float | None = None
    existing_only: bool = False
    allow_outside_root: bool = False

    def read(self, classes: Sequence[str] = ()) -> Manifest:
        """Reads the videos of the list or the folder; `classes` count only if the source has none itself.

        A `ManifestError` that names the line if something can't be read; a TypeError if an argument is of a wrong kind.
        """
        source = path_argument("source", self.source)
        listed = _list_in(source)
        own = read_classes(self.classes) if isinstance(self.classes, str | os.PathLike) else tuple(self.classes)
        if listed is None:
            return self._read_folder(source, own or tuple(classes))
        if listed.lower().endswith(VIDEO_SUFFIXES):
            raise ManifestError(f"{source} is a video. Give the folder that it is in, or a list of `path label`.")
        with closing(ListFile(listed)) as rows:
            return self._read_list(rows, own, classes)

    def _read_list(self, rows: ListFile, own: tuple[str, ...], classes: Sequence[str]) -> Manifest:
        source, root = rows.path, self.root
        prepared = [name for name in rows.columns if name != "spans"] == [*_WRITTEN]
        if prepared:
            root = os.path.dirname(source) or os.curdir
            beside = read_classes(os.path.join(root, CLASSES_NAME), may_be_empty=True)
            if own not in ((), beside) or self.frame_rate is not None or self.root is not None:
                raise ManifestError(
                    f"{source} is what `prepare` wrote, with its own `root` and `classes`, and no `frame_rate`, and "
                    "the arguments say something else. Leave them out, or prepare the videos anew with them."
                )
            own = beside
        known, several = own or classes, self.multi_label or "spans" in rows.columns
        labels = Labels(rows, known, counted=bool(own), multi_label=several, folders=self.frame_rate is not None)
        builder = self._builder(source, root, classes=known, multi_label=several)
        for row in rows:
            stretch, spans = times(rows, row)
            builder.add(row.path, labels.of(row), where=row.line, spans=spans, stretch=stretch)
        return replace(builder.build([*labels.ids]), prepared=prepared)

    def _builder(self, source: str, root: StrPath | None, **arguments: Any) -> ManifestBuilder:
        own = {name: getattr(self, name) for name in ("frame_rate", "existing_only", "allow_outside_root")}
        return ManifestBuilder(source, root, **own, **arguments)

    def _read_folder(self, source: str, classes: tuple[str, ...]) -> Manifest:
        if self.root is not None:
            raise ManifestError(f"`root` is for lists, and {source} is a folder. Leave `root` out.")
        frames = self.frame_rate is not None
        folders = _class_names(source, frames=frames)
        # Without folders, a folder of images is the only video.
        root = source if folders or not frames else os.path.dirname(os.path.abspath(source))
        builder = self._builder(source, root, classes=classes or folders, multi_label=self.multi_label)
        labels = {name: label for label, name in enumerate(classes or folders)}
        left_out = set[str]()
        for name in folders or [""]:
            if name and name not in labels:
                raise ManifestError(
                    f"{source} has a folder {quoted(name)}, which is not among the {len(labels):,} `classes`. "
                    "Give the classes of the training split, or move the folder away."
                )
            folder = os.path.join(os.path.abspath(source), name) if name else os.path.abspath(source)
            videos = list(_videos_below(folder, frames=frames, left_out=left_out))
            if not videos:
                raise _no_videos(folder, frames=frames)
            for path in videos:
                builder.add(path, [labels[name]] if name else [], where=path)
        if left_out and not frames:
            _log.warning("Files in %s that are not videos by their suffix are left out: %s.", source, sorted(left_out))
        return builder.build()


def save_list(manifest: Manifest, folder: StrPath, names: Sequence[str | None]) -> None:
    """Writes the list of what was prepared of a manifest into a folder, and the classes that its labels count.

    Hugging Face's `datasets` reads it as a folder of videos. `names` are those of the prepared videos below the folder,
    for each row of the manifest; None leaves a row out.
    """
    several = ["spans"] * manifest.multi_label
    written = [[*_WRITTEN[:-1], *several, _WRITTEN[-1]]]
    for row, name in enumerate(names):
        if name is not None:
            labels, spans = manifest.spans(row)
            stretch = [str(seconds) if 0 < seconds < math.inf else "" for seconds in manifest.stretch(row)]
            timed = ";".join(f"{start} {end}" for start, end in spans)
            written.append([name, ";".join(map(str, labels)), *stretch, *[timed for _ in several], "yes"])
    with new_file(os.path.join(folder, CLASSES_NAME)) as file:
        file.write("".join(f"{name}\n" for name in manifest.classes).encode("utf-8", "surrogateescape"))
    write_csv(os.path.join(folder, LIST_NAME), written)


def _list_in(source: str) -> str | None:
    if is_url(source) and not os.path.splitext(source)[1]:  # nothing there is looked for: it is a prepared folder
        return f"{source.rstrip('/')}/{LIST_NAME}"
    listed = metadata_in(source) if not is_url(source) and os.path.isdir(source) else source
    older = (os.path.isfile(os.path.join(source, name)) for name in (_OLDER, "report.csv"))
    if os.path.basename(listed or "") == _OLDER or (listed is None and all(older)):
        raise ManifestError(
            f"{source} was prepared by an older version, whose `{_OLDER}` is not read. Run `lightning-multigrid "
            "prepare` again, which keeps the finished videos."
        )
    return listed


def holds_frames(source: StrPath) -> bool:
    """Whether the videos of a source are folders of images, which need a `frame_rate`.

    They are in a folder with images and no videos below it, and in a list whose first path is a folder.
    """
    source = path_argument("source", source)
    if is_url(source):
        return False
    if (listed := _list_in(source)) is None:
        return not any(_videos_below(source, frames=False)) and any(_videos_below(source, frames=True))
    with closing(ListFile(listed)) as rows:
        first = next(iter(rows), None)
    return first is not None and os.path.isdir(os.path.join(os.path.dirname(listed), first.path))


def read_classes(path: StrPath, *, may_be_empty: bool = False) -> tuple[str, ...]:
    """Returns the names of the classes that a file has on its lines, in the order of their labels."""
    path = path_argument("classes", path)
    names = tuple(filter(None, map(str.strip, re.split("[\r\n]", read_text(path)))))
    if twice := [name for name in names if names.count(name) > 1]:
        raise ManifestError(f"{path} names the class {quoted(twice[0])} twice. Leave one of its lines out.")
    if not names and not may_be_empty:
        raise ManifestError(f"{path} names no class. Write one on each line, in the order of their labels.")
    return names


def _class_names(source: str, *, frames: bool) -> list[str]:
    """Names of the folders in `source`, sorted, without hidden and empty ones; with `frames`, videos are folders."""
    _, folders, files = next(os.walk(source, onerror=refuse_unlisted))
    names = sorted(filter(_counts, folders))
    empty = [name for name in names if not any(_files_below(os.path.join(source, name)))]
    if empty and len(empty) < len(names):
        names = [name for name in names if name not in empty]
        _log.warning("%s has empty folders, which are left out: %s.", source, ", ".join(map(quoted, empty)))
    if names and all(name.lower() in _SPLITS for name in names):
        split = os.path.join(source, names[0])
        raise ManifestError(f"{source} holds splits; a folder per class is required. Give one split, such as {split}.")
    videos = [] if frames else sorted(filter(_is_video, files))
    if names and videos:
        raise ManifestError(
            f"{source} holds videos, such as {quoted(videos[0])}, beside folders, such as {quoted(names[0])}. All of "
            f"them in folders, one for each class, or no folders are required. Move the {len(videos):,} into a folder "
            "of their class, or give a list of the paths."
        )
    numbers = [str(number) for number in range(len(names))]
    return numbers if names == sorted(numbers) else names  # as text, 10 is before 2, and in a list it is label 10


def _no_videos(folder: str, *, frames: bool) -> ManifestError:
    kinds = ("folders of images", "videos") if frames else ("videos", "folders of images")
    if next(_videos_below(folder, frames=not frames), None) is None:
        return ManifestError(f"{folder} holds no {kinds[0]}. Add some, or remove the folder.")
    way_out = "Leave `frame_rate` out" if frames else "Give a `VideoList` with `frame_rate`, the images per second"
    return ManifestError(f"{folder} holds {kinds[1]}, and no {kinds[0]}. {way_out}.")


def _videos_below(folder: str, *, frames: bool, left_out: set[str] | None = None) -> Iterator[str]:
    """Yields the paths of the videos below a folder, sorted; `left_out` gets the suffixes of other files."""
    chosen = is_frame if frames else _is_video
    for place, names in _files_below(folder):
        files = sorted(filter(chosen, names))
        if left_out is not None:
            left_out.update(os.path.splitext(name)[1].lower() or "none" for name in names if not chosen(name))
        if frames and files:
            yield place
        elif not frames:
            yield from (os.path.join(place, name) for name in files)


def _files_below(folder: str) -> Iterator[tuple[str, list[str]]]:
    """Yields the folders below a folder, and itself, that hold files, with the names of these; without hidden ones.

    Links are followed, but no folder is entered twice, nor one that holds this folder.
    """
    holding = (*Path(os.path.abspath(folder)).parents, *Path(os.path.realpath(folder)).parents)
    seen = set(map(os.path.realpath, holding))
    for place, folders, names in os.walk(folder, followlinks=True, onerror=refuse_unlisted):
        real = os.path.realpath(place)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(filter(_counts, folders))
        if files := [name for name in names if name[0] != "."]:
            yield place, files


def _counts(folder: str) -> bool:
    return folder[0] != "." and folder not in _OF_THE_SYSTEM


def _is_video(name: str) -> bool:
    return name[0] != "." and os.path.splitext(name)[1].lower() in VIDEO_SUFFIXES
