"""The official annotation files of Kinetics, Something-Something, UCF101 and HMDB51, each read into a `Manifest`.

Every reader takes the annotation file, then the folder of the videos. What else it needs (names of classes, mostly)
lies beside the annotation file, as it was downloaded, unless it is given.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from lightning_multigrid.packed import Manifest, ManifestBuilder
from lightning_multigrid.remote_root import is_url
from lightning_multigrid.textfile import (
    ManifestError,
    StrPath,
    csv_rows,
    csv_table,
    numbered_names,
    open_text,
    parse_labels,
    path_argument,
    quoted,
    text_lines,
)

__all__ = ["read_hmdb51", "read_kinetics", "read_something_something", "read_ucf101"]

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
        replaced = {name[:11]: os.path.join(os.path.relpath(folder, top), name) for name in _names_in(folder)}
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
    train = path if first["split"] == "train" else _sibling(path, r"validation|validate|val|test", "train")
    if train != path and not os.path.isfile(train):
        if "label" not in first:
            return ()
        raise ManifestError(
            f"{path} holds the split {quoted(first['split'])}, and ids of classes are those of the training split, but "
            f"{train} does not exist. Put the training split's file there, or give `classes`."
        )
    return tuple(sorted({row["label"] for _, row in csv_table(train, ("label",))} - {""}))


def read_something_something(
    annotations: StrPath,
    videos: StrPath,
    *,
    labels_file: StrPath | None = None,
    answers_file: StrPath | None = None,
    frame_rate: float | None = None,
    existing_only: bool = False,
) -> Manifest:
    """Something-Something V2, with the new names of its files or the old ones.

    Args:
        annotations: `train.json`, `validation.json` or `test.json`, or `something-something-v2-train.json` and so on.
        videos: Folder of `<id>.webm`.
        labels_file: `labels.json`; by default the one beside `annotations`.
        answers_file: `test-answers.csv`, which holds the labels of the test split. Without it, they are unknown.
        frame_rate: Frames per second if `videos` holds folders of frames, `<id>/`, instead.
        existing_only: Leave out, and count, videos that are not on disk.

    Raises:
        ManifestError: If a file can't be read, or a template is not among the labels.
    """
    path = path_argument("annotations", annotations)
    beside = _sibling(path, "validation|train|test", "labels")
    labels = _label_ids(beside if labels_file is None else path_argument("labels_file", labels_file))
    answers = {} if answers_file is None else _answers(path_argument("answers_file", answers_file))
    entries = _json(path)
    if not isinstance(entries, list):
        raise ManifestError(f"{path} does not hold a list of videos. Give the official train, validation or test file.")
    builder = ManifestBuilder(
        path,
        path_argument("videos", videos),
        classes=sorted(labels, key=labels.__getitem__),
        frame_rate=frame_rate,
        existing_only=existing_only,
    )
    suffix = ".webm" if frame_rate is None else ""
    for number, entry in enumerate(entries, start=1):
        where = f"entry {number}"
        fields = entry if isinstance(entry, dict) else {}
        video = str(fields["id"]) if isinstance(fields.get("id"), str | int) else ""
        template = fields.get("template", answers.get(video))
        if not (video.isascii() and video.isdecimal() and isinstance(template, str | None)):
            raise builder.error(where, "a number as `id` and a text as `template` are required. Give the official file")
        if template is None and answers:
            raise builder.error(where, f"no answer for video {quoted(video)}. Give the answers of this split")
        label = None if template is None else template.replace("[", "").replace("]", "")
        if label is not None and label not in labels:
            raise builder.error(
                where, f"the template {quoted(label)} is not among the {len(labels)} labels. Give their `labels_file`"
            )
        builder.add(video + suffix, [] if label is None else [labels[label]], where=where)
    return builder.build()


def _label_ids(path: str) -> dict[str, int]:
    labels = _json(path)
    if isinstance(labels, dict) and all(isinstance(number, str | int) for number in labels.values()):
        numbers = {label: str(number) for label, number in labels.items()}
        if set(numbers.values()) == set(map(str, range(len(labels)))):
            return {label: int(number) for label, number in numbers.items()}
    raise ManifestError(
        f"{path} does not hold labels with the ids 0, 1, 2 and so on. Give the official labels.json as `labels_file`."
    )


def _answers(path: str) -> dict[str, str]:
    answers = {}
    for line, row in csv_rows(path, ";"):
        if len(row) != 2:
            raise ManifestError(
                f"{path}, line {line}: {len(row)} fields, `id;label` is required. Give test-answers.csv."
            )
        answers[row[0]] = row[1]
    return answers


def read_ucf101(
    annotations: StrPath, videos: StrPath, *, classes_file: StrPath | None = None, existing_only: bool = False
) -> Manifest:
    """UCF101, one of its three splits.

    Args:
        annotations: `trainlist01.txt` (`Archery/v_Archery_g08_c01.avi 3`), or `testlist01.txt`, where the folder is the
            label.
        videos: Folder that the paths start from.
        classes_file: `classInd.txt`, whose ids count from 1; by default the one beside `annotations`.
        existing_only: Leave out, and count, videos that are not on disk.

    Raises:
        ManifestError: If a file can't be read, or a class is unknown.
    """
    path = path_argument("annotations", annotations)
    beside = os.path.join(os.path.dirname(path), "classInd.txt")
    classes = numbered_names(beside if classes_file is None else path_argument("classes_file", classes_file), "{}", 1)
    labels = {name: label for label, name in enumerate(classes)}
    builder = ManifestBuilder(path, path_argument("videos", videos), classes=classes, existing_only=existing_only)
    for line, text in enumerate(text_lines(path), start=1):
        fields = text.split()
        if not fields:
            continue
        number = fields[1] if len(fields) == 2 else str(labels.get(posixpath.dirname(fields[0]), -1) + 1)
        label = parse_labels(number)
        if len(fields) > 2 or label is None or len(label) != 1 or not 1 <= label[0] <= len(classes):
            raise builder.error(
                f"line {line}",
                f"{quoted(text)} is not `Class/video.avi` with a class of classInd.txt, or its id from 1 to "
                f"{len(classes)}. Give the official list",
            )
        builder.add(fields[0], [label[0] - 1], where=f"line {line}")
    return builder.build()


def read_hmdb51(
    annotations: StrPath,
    videos: StrPath,
    *,
    split: int = 1,
    subset: Literal["train", "test"] = "train",
    existing_only: bool = False,
) -> Manifest:
    """HMDB51, one of its three splits.

    Args:
        annotations: Folder of `<class>_test_split<split>.txt`; a line is the name of a video and 1 (training), 2 (test)
            or 0 (unused in this split).
        videos: Folder that holds a folder per class.
        split: 1, 2 or 3.
        subset: The videos for training or those for testing.
        existing_only: Leave out, and count, videos that are not on disk.

    Raises:
        ManifestError: If a file can't be read, or there are none of this split.
    """
    folder = path_argument("annotations", annotations)
    if subset not in ("train", "test"):
        raise ManifestError(f"`subset` must be 'train' or 'test', got {subset!r}.")
    ending = f"_test_split{split}.txt"
    files = [name for name in _names_in(folder) if name.endswith(ending)]
    if not files:
        raise ManifestError(f"{folder} holds no <class>{ending}. Give the folder testTrainMulti_7030_splits.")
    classes = [name.removesuffix(ending) for name in files]
    builder = ManifestBuilder(folder, path_argument("videos", videos), classes=classes, existing_only=existing_only)
    wanted = "1" if subset == "train" else "2"
    for label, (name, file) in enumerate(zip(classes, files, strict=True)):
        for line, text in enumerate(text_lines(os.path.join(folder, file)), start=1):
            # Names of videos have odd characters.
            video, _, use = text.strip().rpartition(" ")
            if text.strip() and (not video or use not in ("0", "1", "2")):
                raise builder.error(
                    f"{file}, line {line}", f"{quoted(text)} is not `video.avi` and 0, 1 or 2. Repair the line"
                )
            if use == wanted:
                builder.add(f"{name}/{video.strip()}", [label], where=f"{file}, line {line}")
    return builder.build()


def _sibling(path: str, words: str, word: str) -> str:
    """The file beside `path` in whose name `word` takes the place of one of the `words`, a regular expression."""
    folder, name = os.path.split(path)
    return os.path.join(folder, re.sub(words, word, name))


def _names_in(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries)
    except OSError as error:
        raise ManifestError(
            f"{folder} can't be listed: {error.strerror}. Give the path of an existing folder."
        ) from error


def _json(path: str) -> Any:
    with open_text(path) as file:
        try:
            return json.load(file)
        # What is wrong with the text or its encoding are ValueErrors; brackets may nest beyond the stack.
        except (ValueError, RecursionError, OSError) as error:
            raise ManifestError(f"{path} is not JSON: {error}. Download the file again.") from error
