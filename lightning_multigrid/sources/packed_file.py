"""A manifest as one file that is read at once: no text to take apart, no folder to list.

The arrays of `Manifest` are used without a copy. Nothing is believed: every offset, label and path is checked first.

    bytes   what (numbers are little-endian)
    8       magic
    8       h, length of the header
    h       header, JSON: rows, labels, path_bytes, spans, root, classes, multi_label
    0 to 7  zeros, up to a multiple of 8
    ...     path offsets (int64), label offsets (int64), starts and ends of labels in seconds (float64, if `spans`),
            labels (int32), paths (bytes), each followed by zeros up to a multiple of 8
    4       CRC-32 of all bytes before it
"""

import json
import os
import struct
import zlib
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from lightning_multigrid.files import StrPath, new_file
from lightning_multigrid.sources.manifest import Manifest, Rows
from lightning_multigrid.sources.text import ManifestError, path_argument

MANIFEST_NAME = "manifest.packed"
INDEX_NAME = "packets.index"

_MAGIC = b"LMGpack1"
_LONGEST_HEADER = 2**26  # millions of classes
_COUNTS = ("rows", "labels", "path_bytes")
_FIELDS = dict.fromkeys(_COUNTS, int) | {"spans": bool, "root": str, "classes": list, "multi_label": bool}
# The arrays in the order of the file, as `Rows` names them.
_TYPES = {"path_offsets": "<i8", "label_offsets": "<i8", "starts": "<f8", "ends": "<f8", "labels": "<i4", "paths": "u1"}


def save_manifest(manifest: Manifest, path: StrPath) -> None:
    """Writes a manifest of video files below the folder of `path`, to be moved together; others are a ValueError."""
    folder = os.path.dirname(os.path.abspath(path))
    root = os.path.relpath(manifest.root, folder)
    if root.split(os.sep)[0] == os.pardir or manifest.frame_rate is not None:
        raise ValueError(
            f"The videos of a packed manifest must be files in its folder {folder}, got {manifest!r}. Write it to the "
            "folder that holds them."
        )
    rows = manifest.rows
    counts = {"rows": len(manifest), "labels": len(rows.labels), "path_bytes": len(rows.paths)}
    about = {"root": root, "classes": manifest.classes, "multi_label": manifest.multi_label}
    text = json.dumps({**counts, "spans": len(rows.starts) > 0, **about}).encode()
    parts = [_MAGIC + struct.pack("<Q", len(text)) + text]
    parts += [getattr(rows, name).numpy().astype(kind, copy=False).tobytes() for name, kind in _TYPES.items()]
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
            return _parse(path, bytearray(file.read()))
    except OSError as error:
        raise ManifestError(f"{path} can't be read: {error.strerror}. Check the path and its permissions.") from error
    except (ValueError, RecursionError) as error:
        raise ManifestError(
            f"{path} is no packed manifest, or damaged: {error}. Run `lightning-multigrid prepare` again, which keeps "
            "the finished videos."
        ) from None


def _parse(path: str, content: bytearray) -> Manifest:
    if content[:8] != _MAGIC or len(content) < 20:
        raise ValueError(f"its first bytes are not {_MAGIC.decode()}")
    (length,) = struct.unpack_from("<Q", content, 8)
    if length > min(_LONGEST_HEADER, len(content)):
        raise ValueError("its header is longer than the file")
    header = _header(bytes(content[16 : 16 + length]))
    bounds, spans = header["rows"] + 1, header["labels"] if header["spans"] else 0
    numbers = (bounds, bounds, spans, spans, header["labels"], header["path_bytes"])
    arrays: dict[str, np.ndarray] = {}
    at = _padded(16 + length)
    for (name, kind), number in zip(_TYPES.items(), numbers, strict=True):
        end = at + np.dtype(kind).itemsize * number
        if end > len(content):
            raise ValueError("it is cut short")
        arrays[name] = np.frombuffer(content, kind, number, at) if number else np.empty(0, kind)
        at = _padded(end)
    if at + 4 != len(content):
        raise ValueError(f"it has {len(content):,} bytes, {at + 4:,} are required")
    if zlib.crc32(memoryview(content)[:at]) != struct.unpack_from("<I", content, at)[0]:
        raise ValueError("its check sum is wrong")
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
    folder = os.path.dirname(os.path.abspath(path))
    root, index = os.path.normpath(os.path.join(folder, header["root"])), os.path.join(folder, INDEX_NAME)
    native = {name: values.astype(values.dtype.newbyteorder("="), copy=False) for name, values in arrays.items()}
    rows = Rows(**{name: torch.from_numpy(values) for name, values in native.items()})
    return Manifest(path, root, classes, header["multi_label"], None, 0, rows, index)


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
