"""The user's own videos: a list of `path label`, a folder per class, or what `lightning-multigrid prepare` wrote."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from lightning_multigrid.files import VIDEO_SUFFIXES, StrPath, is_url, path_argument, quoted
from lightning_multigrid.sources.builder import ManifestBuilder
from lightning_multigrid.sources.class_folders import class_names, no_videos, tell_left_out, videos_below
from lightning_multigrid.sources.list_file import Row, is_label, metadata_in, read_list
from lightning_multigrid.sources.manifest import Manifest
from lightning_multigrid.sources.manifest_file import load_manifest, prepared_manifest
from lightning_multigrid.sources.text import ManifestError, read_text


@dataclass(frozen=True)
class VideoList:
    r"""A list of `path label`, a folder per class, or what `lightning-multigrid prepare` wrote.

    A *list* is UTF-8 text with a row per video: `path label`, or `path` alone (no labels, for prediction). The
    separator is a tab, a comma, a space or a semicolon: the first of these by which the first row is a header, or else
    that it has outside of double quotes. Double quotes enclose a path that holds the separator or a line break, or
    starts with a double quote; quotes inside are doubled. White space around a field is dropped. Blank lines are
    skipped. There are no comments: HMDB51 has videos whose names start with `#`.

    Labels are all numbers from 0, or all names of classes, which count in the order of the sorted names. Several labels
    are `1;5` or `"1,5"`. Without a header, a name stands behind the path of a video file.

    The first row may be a header, in any capitals: `path` (or `file_name`, `filename`, `filepath`, `file_path`,
    `video_path`, `video`, `file`, `clip`) and `label` (or `labels`, `class`, `class_name`, `category`, `action`). Of
    several such columns, the first in this order counts; others are skipped, but for `split`, `subset`, `partition` and
    `fold`, in which all rows must be alike. A file `.jsonl` has an object on each line, with these names. In a folder,
    `metadata.csv` or `metadata.jsonl` with them is its list, as in the video folders of Hugging Face.

    With columns named `start` and `end`, in seconds of the video, a row is a *stretch* of its video: clips and views
    are of the frames that are shown within [start, end). Where a field is empty, the video begins or ends it. A video
    may be in any number of rows.

    In a *folder per class*, `source/<class>/**/*.mp4` (and other suffixes), labels count the sorted names of the
    folders; if these are the numbers from 0 on, each is its label. Hidden files, empty folders, `lost+found` and
    `@eaDir` are skipped, links are followed. A warning names the suffixes of other files, and empty folders.

    In a *folder of videos*, `source/*.mp4`, without other folders, they have no labels, which is enough for prediction.
    With `frame_rate`, such a folder of images is one video.

    Videos may be at *URLs* of `https://`, `http://`, `s3://` and `hf://`: below a `root` that is one, in a list whose
    rows are URLs below that root, and in a list or a prepared folder that is at a URL itself.

    A *prepared* folder, or the `manifest.json` in it, has its own classes and labels. Arguments that say
    otherwise are refused.

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
        own = read_classes(self.classes) if isinstance(self.classes, str | os.PathLike) else tuple(self.classes)
        classes = own or classes
        if (prepared := prepared_manifest(source)) is not None:
            return self._prepared(prepared, own, classes)
        if os.path.isdir(source) and (listed := metadata_in(source)) is not None:
            source = listed
        is_folder = os.path.isdir(source)
        if is_folder and self.root is not None:
            raise ManifestError(f"`root` is for lists, and {source} is a folder. Leave `root` out.")
        if source.lower().endswith(VIDEO_SUFFIXES) and not is_folder:
            raise ManifestError(f"{source} is a video. Give the folder that it is in, or a list of `path label`.")
        frames = self.frame_rate is not None
        folders = class_names(source, frames=frames) if is_folder else []
        rows = [] if is_folder else read_list(source, classes, multi_label=self.multi_label, folders=frames)
        # In the order of their names, as the folders are.
        names = sorted({label for row in rows for label in row.labels if isinstance(label, str)})
        root = source if is_folder else self.root
        if is_folder and not folders and frames:  # the folder is the only video
            root = os.path.dirname(os.path.abspath(source))
        builder = ManifestBuilder(
            source,
            root,
            classes=classes or folders or names,
            multi_label=self.multi_label,
            frame_rate=self.frame_rate,
            existing_only=self.existing_only,
            allow_outside_root=self.allow_outside_root,
        )
        left_out = Counter[str]()
        if folders:
            _add_folders(builder, source, folders, classes or folders, frames=frames, left_out=left_out)
        elif is_folder:
            _add_videos(builder, source, (), frames=frames, left_out=left_out)
        else:
            _add_rows(builder, rows, classes or names, of_training=not own)
        if not frames:
            tell_left_out(source, left_out)
        return builder.build()

    def _prepared(self, path: str, own: tuple[str, ...], classes: Sequence[str]) -> Manifest:
        """Reads the manifest of a prepared folder; its own classes and labels come before those of training."""
        manifest = load_manifest(path, classes, existing_only=self.existing_only)
        other_classes = own and manifest.classes != own
        other_labels = self.multi_label and not manifest.multi_label
        if other_classes or other_labels or self.root is not None or self.frame_rate is not None:
            raise ManifestError(
                f"{path} has its own `root`, `classes` and `multi_label`, and no `frame_rate`, and the arguments say "
                "otherwise. Leave them out, or prepare the videos anew with them."
            )
        return manifest


def _add_folders(
    builder: ManifestBuilder,
    source: str,
    folders: Sequence[str],
    classes: Sequence[str],
    *,
    frames: bool,
    left_out: Counter[str],
) -> None:
    labels = {name: label for label, name in enumerate(classes)}
    for name in folders:
        if name not in labels:
            raise ManifestError(
                f"{source} has a folder {quoted(name)}, which is not among the {len(classes):,} `classes`. "
                "Give the classes of the training split, or move the folder away."
            )
        folder = os.path.join(os.path.abspath(source), name)
        _add_videos(builder, folder, [labels[name]], frames=frames, left_out=left_out)


def _add_videos(
    builder: ManifestBuilder, folder: str, labels: Sequence[int], *, frames: bool, left_out: Counter[str]
) -> None:
    videos = list(videos_below(os.path.abspath(folder), frames=frames, left_out=left_out))
    if not videos:
        raise no_videos(folder, frames=frames)
    for path in videos:
        builder.add(path, labels, where=path)


def _add_rows(builder: ManifestBuilder, rows: Sequence[Row], classes: Sequence[str], *, of_training: bool) -> None:
    ids = {name: label for label, name in enumerate(classes)}
    # Who gives a list its `classes` says what its numbers count.
    numbered = {int(name): label for name, label in ids.items() if of_training and is_label(name)}
    for where, path, labels, stretch in rows:
        for label in labels:
            if isinstance(label, str) and label not in ids:
                raise builder.error(
                    where,
                    f"{quoted(label)} is not among the {len(ids):,} classes, such as {quoted(classes[0])}. Correct it, "
                    "give the training split a video of it, or name all classes in a file for `classes` of `VideoList`",
                )
        known = [ids[label] if isinstance(label, str) else label for label in labels]
        for label in labels:
            if isinstance(label, int) and numbered.get(label, label) != label:
                raise builder.error(
                    where,
                    f"the label {label} may be the class {quoted(classes[numbered[label]])} of training or its class "
                    f"{label}, counted from 0. Give the `VideoList` of this list the `classes` that its numbers count",
                )
        builder.add(path, known, where=where, stretch=stretch)


def holds_frames(source: StrPath) -> bool:
    """Whether the videos of a source are folders of images, which need a `frame_rate`.

    They are in a folder with images and no videos below it, and in a list whose first path is a folder.
    """
    source = path_argument("source", source)
    if is_url(source) or prepared_manifest(source) is not None:
        return False
    if os.path.isdir(source) and metadata_in(source) is None:
        return not any(videos_below(source, frames=False)) and any(videos_below(source, frames=True))
    return os.path.isdir(VideoList(source, allow_outside_root=True, multi_label=True).read().path(0))


def read_classes(path: StrPath) -> tuple[str, ...]:
    """Returns the names of the classes that a file has on its lines, in the order of their labels."""
    path = path_argument("classes", path)
    names = tuple(filter(None, map(str.strip, read_text(path).splitlines())))
    if twice := [name for name in names if names.count(name) > 1]:
        raise ManifestError(f"{path} names the class {quoted(twice[0])} twice. Leave one of its lines out.")
    if not names:
        raise ManifestError(f"{path} names no class. Write one on each line, in the order of their labels.")
    return names
