"""A manifest as one file that is read at once: no text to take apart, no folder to list.

The file holds the arrays of `Manifest` as they are in memory, each at a multiple of 8 bytes, so that they can be used
without a copy. It comes from a disk, so nothing in it is believed: every offset, label and path is checked first.

    bytes   what (numbers are little-endian)
    8       magic
    8       h, length of the header
    h       header, JSON: rows, labels, path_bytes, spans, root, classes, multi_label
    0 to 7  zeros, up to a multiple of 8
    ...     path offsets (int64), label offsets (int64), starts and ends of labels in seconds (float64, if `spans`),
            labels (int32), paths (bytes), each followed by zeros up to a multiple of 8
    4       CRC-32 of all bytes before it
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from contextlib import suppress

import numpy as np
import torch

from lightning_multigrid.files import StrPath, new_file
from lightning_multigrid.sources.manifest import Manifest
from lightning_multigrid.sources.text import ManifestError, path_argument

MANIFEST_NAME = "manifest.packed"
INDEX_NAME = "packets.index"

_MAGIC = b"LMGpack1"
_LONGEST_HEADER = 2**26  # millions of classes
_LARGEST = 2**40
# Of the arrays, in the order of the file.
_TYPES = tuple(map(np.dtype, ("<i8", "<i8", "<f8", "<f8", "<i4", "u1")))


def save_manifest(manifest: Manifest, path: StrPath) -> None:
    """Writes a manifest whose videos lie below the folder of the file; folder and videos may then move together.

    Raises:
        ValueError: If a video lies elsewhere, or is a folder of frames.
        OutputError: If the file can't be written.
    """
    folder = os.path.dirname(os.path.abspath(path))
    root = os.path.relpath(manifest.root, folder)
    if root.split(os.sep)[0] == os.pardir or manifest.frame_rate is not None:
        raise ValueError(
            f"The videos of a packed manifest must be files in its folder {folder}, got {manifest!r}. Write it to the "
            "folder that holds them."
        )
    path_bytes, path_offsets, label_ids, label_offsets, starts, ends = manifest.arrays
    header = {
        "rows": len(manifest),
        "labels": len(label_ids),
        "path_bytes": len(path_bytes),
        "spans": len(starts) > 0,
        "root": root,
        "classes": list(manifest.classes),
        "multi_label": manifest.multi_label,
    }
    text = json.dumps(header).encode()
    parts = [_MAGIC + struct.pack("<Q", len(text)) + text]
    arrays = (path_offsets, label_offsets, starts, ends, label_ids, path_bytes)
    parts += [values.numpy().astype(kind, copy=False).tobytes() for values, kind in zip(arrays, _TYPES, strict=True)]
    content = b"".join(part + bytes(-len(part) % 8) for part in parts)
    with new_file(path) as file:
        file.write(content + struct.pack("<I", zlib.crc32(content)))


def packed_manifest(path: str) -> str | None:
    """Returns the path of a packed manifest, given itself or its folder; None if there is none."""
    if os.path.isdir(path):
        path = os.path.join(path, MANIFEST_NAME)
    with suppress(OSError):
        if os.path.isfile(path):  # opening a pipe would wait for its writer
            with open(path, "rb") as file:
                return path if file.read(len(_MAGIC)) == _MAGIC else None
    return None


def load_manifest(path: StrPath) -> Manifest:
    """Reads a packed manifest, unless it is damaged or a path in it leads out of its folder."""
    path = path_argument("path", path)
    try:
        with open(path, "rb") as file:
            content = bytearray(file.read())
    except OSError as error:
        raise ManifestError(f"{path} can't be read: {error.strerror}. Check the path and its permissions.") from error
    try:
        return _parse(path, content)
    except _Damaged as error:
        raise ManifestError(
            f"{path} is no packed manifest, or damaged: {error}. Run `lightning-multigrid prepare` again, which keeps "
            "the finished videos."
        ) from None


class _Damaged(Exception):
    pass


def _parse(path: str, content: bytearray) -> Manifest:
    if content[:8] != _MAGIC or len(content) < 20:
        raise _Damaged(f"its first bytes are not {_MAGIC.decode()}")
    (length,) = struct.unpack_from("<Q", content, 8)
    if length > min(_LONGEST_HEADER, len(content)):
        raise _Damaged("its header is longer than the file")
    header = _Header(bytes(content[16 : 16 + length]))
    arrays: list[np.ndarray] = []
    at = _padded(16 + length)
    spans = header.labels if header.spans else 0
    numbers = (header.rows + 1, header.rows + 1, spans, spans, header.labels, header.path_bytes)
    for kind, number in zip(_TYPES, numbers, strict=True):
        end = at + kind.itemsize * number
        if end > len(content):
            raise _Damaged("it is cut short")
        arrays.append(np.frombuffer(content, kind, number, at) if number else np.empty(0, kind))
        at = _padded(end)
    if at + 4 != len(content):
        raise _Damaged(f"it has {len(content):,} bytes, {at + 4:,} are required")
    if zlib.crc32(memoryview(content)[:at]) != struct.unpack_from("<I", content, at)[0]:
        raise _Damaged("its check sum is wrong")
    path_offsets, label_offsets, starts, ends, label_ids, path_bytes = arrays
    _check_offsets(path_offsets, header.path_bytes, "paths")
    _check_offsets(label_offsets, header.labels, "labels")
    _check_paths(path_bytes, path_offsets)
    _check_labels(label_ids, label_offsets, header)
    if np.isnan(starts).any() or np.isnan(ends).any():
        raise _Damaged("the start or the end of a label is not a number")
    folder = os.path.dirname(os.path.abspath(path))
    root = os.path.normpath(os.path.join(folder, header.root))
    return Manifest(
        path,
        root,
        header.classes,
        header.multi_label,
        None,
        0,
        _tensor(path_bytes),
        _tensor(path_offsets),
        _tensor(label_ids),
        _tensor(label_offsets),
        _tensor(starts),
        _tensor(ends),
        os.path.join(folder, INDEX_NAME),
    )


class _Header:
    """The values of the header, each checked to be of its type."""

    def __init__(self, text: bytes) -> None:
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict):
            raise _Damaged("its header is not a JSON object")
        for name in ("rows", "labels", "path_bytes"):
            if type(values.get(name)) is not int or not 0 <= values[name] < _LARGEST:
                raise _Damaged(f"`{name}` is not a whole number from 0")
        for name in ("spans", "multi_label"):
            if type(values.get(name)) is not bool:
                raise _Damaged(f"`{name}` is neither true nor false")
        self.rows: int = values["rows"]
        self.labels: int = values["labels"]
        self.path_bytes: int = values["path_bytes"]
        self.spans: bool = values["spans"]
        self.multi_label: bool = values["multi_label"]
        if not self.rows:
            raise _Damaged("it has no rows")
        classes, root = values.get("classes"), values.get("root")
        if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
            raise _Damaged("`classes` is not a list of names")
        if len(set(classes)) < len(classes):
            raise _Damaged("a class is named more than once")
        self.classes = tuple(classes)
        if not isinstance(root, str) or not _is_inside(root):
            raise _Damaged("`root` leads out of its folder")
        self.root = root


def _is_inside(root: str) -> bool:
    try:
        os.fsencode(root)
    except UnicodeEncodeError:
        return False
    return root == os.curdir or ("\0" not in root and all(part not in ("", ".", "..") for part in root.split("/")))


def _check_offsets(offsets: np.ndarray, total: int, what: str) -> None:
    if offsets[0] != 0 or offsets[-1] != total or (offsets[1:] < offsets[:-1]).any():
        raise _Damaged(f"the bounds of its {what} are not in order")


def _check_paths(path_bytes: np.ndarray, offsets: np.ndarray) -> None:
    """Refuses paths that are not relative and in their normal form: no part may be empty, `.` or `..`."""
    slashes = np.flatnonzero(path_bytes == ord("/"))
    # A part begins at the start of its row or behind a slash, and ends at the next slash or the end of its row.
    starts = np.sort(np.concatenate([offsets[:-1], slashes + 1]))
    ends = np.sort(np.concatenate([slashes, offsets[1:]]))
    lengths = ends - starts
    if (lengths < 1).any() or (path_bytes == 0).any():
        raise _Damaged("a path is absolute, empty, or not in its normal form")
    dots = path_bytes == ord(".")
    one, two = starts[lengths == 1], starts[lengths == 2]
    if dots[one].any() or (dots[two] & dots[two + 1]).any():
        raise _Damaged("a path leads out of its folder")
    if (np.diff(offsets) > 4096).any():
        raise _Damaged("a path is longer than 4,096 bytes")


def _check_labels(label_ids: np.ndarray, offsets: np.ndarray, header: _Header) -> None:
    if (label_ids < 0).any() or (header.classes and (label_ids >= len(header.classes)).any()):
        raise _Damaged("a label belongs to no class")
    if not header.multi_label and (np.diff(offsets) != (1 if header.labels else 0)).any():
        raise _Damaged("a video has not exactly one label")


def _padded(at: int) -> int:
    return at + -at % 8


def _tensor(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values.astype(values.dtype.newbyteorder("="), copy=False))
