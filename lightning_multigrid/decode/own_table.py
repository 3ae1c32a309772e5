"""The frame table that a prepared video holds itself, so that it needs none elsewhere; players skip its box."""

import os
import struct
from dataclasses import replace
from typing import BinaryIO
from uuid import UUID

from lightning_multigrid.decode.frame_table import FrameTable
from lightning_multigrid.files import InputFile, RemoteFile

_KIND = b"uuid" + UUID("8d1f0a52-3c7e-4f6b-9a40-6b1e52d7c913").bytes  # ISO/IEC 14496-12, 4.2
_HEAD = struct.Struct(">I20s")
_SIZE = struct.Struct(">I")  # of the box, once more at its end: it is found from there
_LARGEST = 1 << 27  # bytes, of a video of days
_LIKELY = 1 << 14  # bytes that are read at first: the box of a video of half a minute


def append_table(file: BinaryIO, table: FrameTable) -> None:
    """Writes a video's table after it, as that of the longer file."""
    size = file.seek(0, os.SEEK_END)
    box, data = 0, b""
    while box != _HEAD.size + len(data) + _SIZE.size:  # the size of the file is in the table
        box = _HEAD.size + len(data) + _SIZE.size
        data = replace(table, file_size=size + box).to_bytes()
    file.write(_HEAD.pack(box, _KIND) + data + _SIZE.pack(box))


def own_table(file: InputFile | RemoteFile) -> FrameTable | None:
    """Returns the table that a video holds; None if it has none, or a damaged one. An OSError if it can't be read."""
    end = file.read(max(0, file.size - _LIKELY), _LIKELY)
    size = int.from_bytes(end[-_SIZE.size :], "big")
    if not _HEAD.size + _SIZE.size <= size <= min(file.size, _LARGEST):
        return None
    box = end[-size:] if size <= len(end) else file.read(file.size - size, size)
    if not box.startswith(_HEAD.pack(size, _KIND)):
        return None
    try:
        return FrameTable.from_bytes(box[_HEAD.size : -_SIZE.size])
    except ValueError:
        return None
