"""A manifest as one file: no text to take apart, no folder to list. The packet indices of its videos are at the end.

The arrays of `Manifest` are read at once and used without a copy. Nothing is believed: every offset, label and path is
checked first. The packet indices, which may be a gigabyte, are read one by one; each has a check sum of its own.

    bytes   what (numbers are little-endian)
    8       magic
    8       h, length of the header
    h       header, JSON: rows, labels, path_bytes, spans, root, classes, multi_label
    0 to 7  zeros, up to a multiple of 8
    ...     path offsets (int64), label offsets (int64), positions in this file at which the packet index of each row
            begins and ends (int64), starts and ends of labels in seconds (float64, if `spans`), labels (int32), paths
            (bytes), each followed by zeros up to a multiple of 8
    4       CRC-32 of all bytes before it
    ...     packet indices

Version 0.2.0 wrote `LMGpack1`, without the positions; the indices were in a file `packets.index` beside it.
"""

import json
import os
import struct
import zlib
from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise
from typing import IO, Any

import numpy as np
import torch

from lightning_multigrid.files import HangError, StrPath, new_file, open_bytes, path_argument
from lightning_multigrid.sources.index_column import IndexColumn, index_column_0_2_0
from lightning_multigrid.sources.manifest import Manifest, Rows
from lightning_multigrid.sources.text import ManifestError, said

MANIFEST_NAME = "manifest.packed"
INDEX_NAME_0_2_0 = "packets.index"

_MAGIC, _MAGIC_0_2_0 = b"LMGpack2", b"LMGpack1"
_LONGEST_HEADER = 2**26  # millions of classes
_COUNTS = ("rows", "labels", "path_bytes")
_FIELDS = dict.fromkeys(_COUNTS, int) | {"spans": bool, "root": str, "classes": list, "multi_label": bool}
# The arrays in the order of the file, as `Rows` names them, and the places of the packet indices.
_TYPES = {"path_offsets": "<i8", "label_offsets": "<i8", "index_starts": "<i8", "index_ends": "<i8"}
_TYPES |= {"starts": "<f8", "ends": "<f8", "labels": "<i4", "paths": "u1"}


def save_manifest(manifest: Manifest, path: StrPath, indices: Iterable[bytes] = ()) -> None:
    """Writes a manifest of video files below the folder of `path`, to be moved together; others are a ValueError.

    `indices` are the packet indices of the videos in the order of the rows, one if a video is in several rows, and
    empty if it has none.
    """
    folder = os.path.dirname(os.path.abspath(path))
    root = os.path.relpath(manifest.root, folder)
    if root.split(os.sep)[0] == os.pardir or manifest.frame_rate is not None:
        raise ValueError(
            f"The videos of a packed manifest must be files in its folder {folder}, got {manifest!r}. Write it to the "
            "folder that holds them."
        )
    videos = [manifest.path(row) for row in range(len(manifest))]
    places = dict.fromkeys(videos, (0, 0))

    def content() -> bytes:
        return _content(manifest, root, np.array([places[video] for video in videos]))

    with new_file(path) as file:
        size = file.write(content())
        places = dict.fromkeys(videos, (size, size))
        for video, index in zip(places, indices, strict=False):
            places[video] = (size, size := size + file.write(index))
        file.seek(0)
        file.write(content())


def _content(manifest: Manifest, root: str, places: np.ndarray) -> bytes:
    """All that comes before the packet indices, whose places (R x 2) don't change its length."""
    rows = manifest.rows
    counts = {"rows": len(manifest), "labels": len(rows.labels), "path_bytes": len(rows.paths)}
    about = {"root": root, "classes": manifest.classes, "multi_label": manifest.multi_label}
    text = json.dumps({**counts, "spans": len(rows.starts) > 0, **about}).encode()
    arrays = {name: values.numpy() for name, values in rows._asdict().items()}
    arrays |= {"index_starts": places[:, 0], "index_ends": places[:, 1]}
    parts = [_MAGIC + struct.pack("<Q", len(text)) + text]
    parts += [arrays[name].astype(kind, copy=False).tobytes() for name, kind in _TYPES.items()]
    content = b"".join(part + bytes(-len(part) % 8) for part in parts)
    return content + struct.pack("<I", zlib.crc32(content))


def packed_manifest(path: str) -> str | None:
    """Returns the path of a packed manifest, given itself or its folder; None if there is none.

    A `ManifestError` if its drive doesn't answer.
    """
    for name in (path, os.path.join(path, MANIFEST_NAME)):
        try:
            with open_bytes(name) as file:
                return name if file.read(len(_MAGIC)) in (_MAGIC, _MAGIC_0_2_0) else None
        except HangError as error:
            raise ManifestError(f"{name} can't be read: {said(error)}. Check the drive.") from error
        except OSError:  # a folder, or nothing that can be read
            continue
    return None


def load_manifest(path: StrPath) -> Manifest:
    """Reads a packed manifest, unless it is damaged or a path in it leads out of its folder."""
    path = path_argument("path", path)
    try:
        with open_bytes(path) as file:
            return _parse(path, file)
    except OSError as error:
        raise ManifestError(f"{path} can't be read: {said(error)}. Check the path and its permissions.") from error
    except (ValueError, RecursionError) as error:
        raise ManifestError(
            f"{path} is no packed manifest, or damaged: {error}. Run `lightning-multigrid prepare` again, which keeps "
            "the finished videos."
        ) from None


def _parse(path: str, file: IO[bytes]) -> Manifest:
    version, header, arrays = _arrays(file)
    for what in ("path", "label"):
        offsets, total = arrays[f"{what}_offsets"], len(arrays[f"{what}s"])
        if offsets[0] != 0 or offsets[-1] != total or (offsets[1:] < offsets[:-1]).any():
            raise ValueError(f"the bounds of its {what}s are not in order")
    _check_paths(arrays["paths"], arrays["path_offsets"])
    labels, classes, single = arrays["labels"], tuple(header["classes"]), not header["multi_label"]
    if (labels < 0).any() or (classes and (labels >= len(classes)).any()):
        raise ValueError("a label belongs to no class")
    if single and (np.diff(arrays["label_offsets"]) != (1 if len(labels) else 0)).any():
        raise ValueError("a video has not exactly one label")
    if np.isnan(arrays["starts"]).any() or np.isnan(arrays["ends"]).any():
        raise ValueError("the start or the end of a label is not a number")
    native = {name: values.astype(values.dtype.newbyteorder("="), copy=False) for name, values in arrays.items()}
    tensors = {name: torch.from_numpy(values) for name, values in native.items()}
    starts, ends = tensors.pop("index_starts"), tensors.pop("index_ends")
    rows, folder = Rows(**tensors), os.path.dirname(os.path.abspath(path))
    index: IndexColumn | None
    if version == _MAGIC:
        index = IndexColumn(os.path.abspath(path), torch.stack([starts, ends], dim=1))
        if int(starts.min()) < 0 or bool((ends < starts).any()) or int(ends.max()) != index.file.size:
            raise ValueError("it is cut short or too long, or the places of its packet indices are not in order")
    else:
        names = [rows.paths[a:b].numpy().tobytes() for a, b in pairwise(rows.path_offsets.tolist())]
        index = index_column_0_2_0(os.path.join(folder, INDEX_NAME_0_2_0), names)
    root = os.path.normpath(os.path.join(folder, header["root"]))
    return Manifest(path, root, classes, header["multi_label"], None, 0, rows, index)


def _arrays(file: IO[bytes]) -> tuple[bytes, dict[str, Any], dict[str, np.ndarray]]:
    """The magic, the header and the arrays of a file, whose check sum is right."""
    magic, length = struct.unpack("<8sQ", file.read(16).ljust(16))
    size = file.seek(0, os.SEEK_END)
    if magic not in (_MAGIC, _MAGIC_0_2_0):
        raise ValueError(f"its first bytes are not {_MAGIC.decode()}")
    if length > min(_LONGEST_HEADER, size):
        raise ValueError("its header is longer than the file")
    file.seek(16)
    header = _header(file.read(length))
    rows, labels, path_bytes = (header[name] for name in _COUNTS)
    indexed, spans = rows if magic == _MAGIC else 0, labels if header["spans"] else 0
    numbers = (rows + 1, rows + 1, indexed, indexed, spans, spans, labels, path_bytes)
    fields = list(zip(_TYPES, map(np.dtype, _TYPES.values()), numbers, strict=True))
    at = _padded(16 + length)
    end = at + sum(_padded(kind.itemsize * number) for _, kind, number in fields)
    if end + 4 > size:
        raise ValueError("it is cut short")
    file.seek(0)
    content = bytearray(file.read(end + 4))
    if zlib.crc32(memoryview(content)[:end]) != struct.unpack_from("<I", content, end)[0]:
        raise ValueError("its check sum is wrong")
    arrays = {}
    for name, kind, number in fields:
        arrays[name] = np.frombuffer(content, kind, number, at) if number else np.empty(0, kind)
        at += _padded(arrays[name].nbytes)
    return magic, header, arrays


def _header(text: bytes) -> dict[str, Any]:
    values = json.loads(text)
    if not isinstance(values, dict):
        raise ValueError("its header is not a JSON object")
    for name, kind in _FIELDS.items():
        if type(values.get(name)) is not kind:
            raise ValueError(f"`{name}` of its header is not of the type {kind.__name__}")
    if not values["rows"] or min(values[name] for name in _COUNTS) < 0:
        raise ValueError(f"the numbers of its header are too small: {[values[name] for name in _COUNTS]}")
    classes = values["classes"]
    if not all(isinstance(name, str) for name in classes) or len(set(classes)) < len(classes):
        raise ValueError("`classes` are not names that differ")
    if not _is_inside(values["root"]):
        raise ValueError("`root` leads out of its folder")
    return values


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


def _padded(at: int) -> int:
    return at + -at % 8
