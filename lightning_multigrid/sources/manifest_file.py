"""A manifest as one file, with the frame tables of its videos: no text to take apart, no folder to list.

Nothing in it is believed: every offset, label and path is checked first.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from lightning_multigrid.files import HangError, StrPath, WatchedFile, path_argument, within
from lightning_multigrid.sources.array_file import check_offsets, read_arrays, save_arrays
from lightning_multigrid.sources.manifest import Manifest, Rows
from lightning_multigrid.sources.table_column import TableColumn
from lightning_multigrid.sources.text import ManifestError, said

MANIFEST_NAME = "manifest.safetensors"

_OLDER_NAMES = ("manifest.packed", "packets.index")  # of the versions 0.1.0 and 0.2.0
_SUFFIX = ".safetensors"
_VERSION = 3
# Types and dimensions of the arrays: those of `Rows`, and where the table of each row's video begins and ends.
_KINDS = {"paths": ("uint8", 1), "path_offsets": ("int64", 1), "labels": ("int32", 1), "label_offsets": ("int64", 1)}
_KINDS |= {"spans": ("float64", 2), "stretches": ("float64", 2), "table_places": ("int64", 2)}


def save_manifest(manifest: Manifest, path: StrPath, tables: Mapping[str, bytes] | None = None) -> None:
    """Writes a manifest of video files below the folder of `path`, to be moved together; others are a ValueError.

    `tables` are the frame tables of its videos, by their absolute paths. The rows of a video share its table.
    """
    folder = os.path.dirname(os.path.abspath(path))
    root = os.path.relpath(manifest.root, folder)
    if root.split(os.sep)[0] == os.pardir or manifest.frame_rate is not None:
        raise ValueError(
            f"The videos of a manifest file must be files in its folder {folder}, got {manifest!r}. Write it to the "
            "folder that holds them."
        )
    videos = [manifest.path(row) for row in range(len(manifest))]
    kept = {video: table for video in dict.fromkeys(videos) if (table := (tables or {}).get(video))}
    ends = np.cumsum([len(table) for table in kept.values()]).tolist()
    places = {video: (end - len(table), end) for (video, table), end in zip(kept.items(), ends, strict=True)}
    arrays = {name: values.numpy() for name, values in manifest.rows._asdict().items()}
    arrays["table_places"] = np.array([places.get(video, (0, 0)) for video in videos], np.int64)
    about = {"version": _VERSION, "root": root, "classes": manifest.classes, "multi_label": manifest.multi_label}
    save_arrays(path, about, arrays, kept.values())


def prepared_manifest(path: str) -> str | None:
    """Returns the manifest file of a prepared folder, given either of them; None for anything else.

    A `ManifestError` if its drive doesn't answer, or an older version prepared it.
    """
    if path.endswith(_SUFFIX):
        return path
    names = (MANIFEST_NAME, *_OLDER_NAMES)
    try:
        there = within(None, lambda: [os.path.isfile(os.path.join(path, name)) for name in names])
    except HangError as error:
        raise ManifestError(f"{path} can't be read: {said(error)}. Check the drive.") from error
    if there[0]:
        return os.path.join(path, MANIFEST_NAME)
    if any(there) or os.path.basename(path) in _OLDER_NAMES:
        raise ManifestError(
            f"{path} was prepared by an older version. Run `lightning-multigrid prepare` again, and give the folder "
            "that it writes."
        )
    return None


def load_manifest(path: StrPath) -> Manifest:
    """Reads a manifest file, unless it is damaged or a path in it leads out of its folder."""
    path = path_argument("path", path)
    try:
        return _load(path)
    except OSError as error:
        raise ManifestError(f"{path} can't be read: {said(error)}. Check the path and its permissions.") from error
    except (ValueError, RecursionError) as error:
        raise ManifestError(
            f"{path} is no manifest of prepared videos, or damaged: {error}. Run `lightning-multigrid prepare` again, "
            "which keeps the finished videos."
        ) from None


def _load(path: str) -> Manifest:
    file, whole = WatchedFile(path), os.path.abspath(path)
    about, arrays, start = read_arrays(file, _KINDS)
    root, classes, multi_label = _checked_header(about)
    places = arrays.pop("table_places")
    _check_rows(arrays, classes, multi_label)
    if places.shape != (len(arrays["path_offsets"]) - 1, 2):
        raise ValueError("its tables and videos differ in number")
    starts, ends = places.T
    if (starts < 0).any() or (ends < starts).any() or (ends > file.size - start).any():
        raise ValueError("the bounds of its tables are not in order")
    tables = TableColumn([whole], torch.from_numpy(np.pad(places + start, ((0, 0), (1, 0)))))
    rows = Rows(**{name: torch.from_numpy(values) for name, values in arrays.items()})
    root = os.path.normpath(os.path.join(os.path.dirname(whole), root))
    return Manifest(path, root, classes, multi_label, None, 0, rows, tables)


def _checked_header(about: Any) -> tuple[str, tuple[str, ...], bool]:
    """Returns the root, the classes, and whether a video may have several."""
    match about:
        case {"version": int(version)} if version != _VERSION:
            raise ValueError(f"it is of version {version}, and version {_VERSION} is required")
        case {"version": int(), "root": str(root), "classes": list(classes), "multi_label": bool(multi_label)}:
            pass
        case _:
            raise ValueError(
                "its header lacks `version`, `root`, `classes` or `multi_label`, or has one of another type"
            )
    if not all(isinstance(name, str) for name in classes) or len(set(classes)) < len(classes):
        raise ValueError("`classes` are not names that differ")
    if not _is_inside(root):
        raise ValueError("`root` leads out of its folder")
    return root, tuple(classes), multi_label


def _check_rows(arrays: Mapping[str, np.ndarray], classes: tuple[str, ...], multi_label: bool) -> None:
    labels, paths, rows = arrays["labels"], arrays["paths"], len(arrays["path_offsets"]) - 1
    check_offsets(arrays["path_offsets"], len(paths), "paths")
    check_offsets(arrays["label_offsets"], len(labels), "labels")
    if rows < 1 or len(arrays["label_offsets"]) != rows + 1:
        raise ValueError("its paths and labels differ in number, or there are none")
    _check_paths(paths, arrays["path_offsets"])
    if (labels < 0).any() or (classes and (labels >= len(classes)).any()):
        raise ValueError("a label belongs to no class")
    if not multi_label and (np.diff(arrays["label_offsets"]) != (1 if len(labels) else 0)).any():
        raise ValueError("a video has not exactly one label")
    for name, number, what in (("spans", len(labels), "label"), ("stretches", rows, "video's stretch")):
        if arrays[name].shape not in ((0, 2), (number, 2)):
            raise ValueError(f"`{name}` are not a start and an end for each {what}")
        if np.isnan(arrays[name]).any():
            raise ValueError(f"the start or the end of a {what} is not a number")
    starts, ends = arrays["stretches"].T
    if (starts < 0).any() or (ends <= starts).any():
        raise ValueError("a video's stretch begins before 0, or ends where it begins")


def _is_inside(root: str) -> bool:
    """Whether a root is a relative path in its normal form that does not lead upwards."""
    with suppress(UnicodeEncodeError):
        normal = os.path.normpath(root) == root and b"\0" not in os.fsencode(root)
        return normal and not os.path.isabs(root) and root.split(os.sep)[0] != os.pardir
    return False


def _check_paths(path_bytes: np.ndarray, offsets: np.ndarray) -> None:
    """Refuses paths that are not relative and in their normal form: no part may be empty, `.` or `..`."""
    slashes = np.flatnonzero(path_bytes == ord("/"))
    # A part begins at the start of its row or behind a slash, and ends at the next slash or the end of its row.
    starts = np.sort(np.concatenate([offsets[:-1], slashes + 1]))
    ends = np.sort(np.concatenate([slashes, offsets[1:]]))
    lengths = ends - starts
    if (lengths < 1).any() or (path_bytes == 0).any():
        raise ValueError("a path is absolute, empty, or not in its normal form")
    dots = path_bytes == ord(".")
    one, two = starts[lengths == 1], starts[lengths == 2]
    if dots[one].any() or (dots[two] & dots[two + 1]).any():
        raise ValueError("a path leads out of its folder")
    if (np.diff(offsets) > 4096).any():
        raise ValueError("a path is longer than 4,096 bytes")
