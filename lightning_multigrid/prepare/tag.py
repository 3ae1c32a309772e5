"""What a prepared video says of itself, in a box behind all others: what it was made of and how, and its frame table.

So `prepare` knows what is done, and merges parts, without a list beside the videos that might say otherwise. Players
skip the box (`uuid`; ISO/IEC 14496-12, 4.2).
"""

import json
import os
import struct
from dataclasses import dataclass, replace
from uuid import UUID

from lightning_multigrid.decode import FrameTable

_KIND = b"uuid" + UUID("5f0c1f8e-6a3b-4c52-9d4c-2f1b7d8e63a1").bytes
_HEAD = struct.Struct(">I20s")
_LENGTHS = struct.Struct("<II")  # of the table and of the rest, at the end: the box is found from there


@dataclass(frozen=True)
class Tag:
    """Where a prepared video comes from.

    Args:
        label: What its source was, and the settings; videos of equal labels are equal.
        damaged: Whether its source is damaged.
        notes: What a user may want to know of its source, in sentences.
    """

    label: str
    damaged: bool = False
    notes: tuple[str, ...] = ()


def append_tag(path: str, tag: Tag, table: FrameTable) -> None:
    """Writes the tag and the table of a video behind it, as that of the file which this makes."""
    text = json.dumps([tag.label, tag.damaged, tag.notes]).encode()
    size = whole = os.path.getsize(path)
    data = b""
    while whole != size + _HEAD.size + len(data) + len(text) + _LENGTHS.size:  # the size of the file is in the table
        whole = size + _HEAD.size + len(data) + len(text) + _LENGTHS.size
        data = replace(table, file_size=whole).to_bytes()
    with open(path, "r+b") as file:  # which makes no new file, if another `prepare` has just removed this one
        file.seek(size)
        file.write(_HEAD.pack(whole - size, _KIND) + data + text + _LENGTHS.pack(len(data), len(text)))


def read_tag(path: str) -> tuple[Tag, bytes] | None:
    """Returns the tag of a video and its table, as bytes; None if there is no such file, or it has none."""
    try:
        with open(path, "rb", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - _LENGTHS.size))
            of_table, of_text = _LENGTHS.unpack(file.read(_LENGTHS.size))
            box = _HEAD.size + of_table + of_text + _LENGTHS.size
            if box > end:
                return None
            file.seek(end - box)
            data = file.read(box)
        if _HEAD.unpack_from(data) != (box, _KIND):
            return None
        table, text = data[_HEAD.size :][:of_table], data[_HEAD.size + of_table :][:of_text]
        match json.loads(text):
            case [str(label), bool(damaged), list(notes)]:
                return Tag(label, damaged, tuple(map(str, notes))), table
    except (OSError, ValueError, struct.error, RecursionError):
        pass
    return None
