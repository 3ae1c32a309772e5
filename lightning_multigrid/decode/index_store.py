"""The indices of many videos in one file, which all workers share in memory."""

from __future__ import annotations

import mmap
import os
import stat
import struct
from collections.abc import Iterable
from hashlib import blake2b

import numpy as np

from lightning_multigrid.decode.index import PacketIndex
from lightning_multigrid.files import new_file

__all__ = ["IndexStore"]

_MAGIC = b"LMGSTO\2\n"
# Magic, where the table lies, and how many entries it has. Then the records, then the table: hashes of the names,
# ascending, and the positions of their records.
_HEAD = struct.Struct("<8sQQ")
# Of a record: bytes of the name and of the index; both follow.
_RECORD = struct.Struct("<II")


class IndexStore:
    """A read-only file of packet indices by the name of the video. Its length is the number of videos.

    Opening it costs the same for a few videos and for millions. It is pickled by its path, for workers. Whether a video
    is still the one that was indexed is told by the index itself, not here.

    >>> IndexStore("no_such.index")
    Traceback (most recent call last):
    FileNotFoundError: [Errno 2] No such file or directory: 'no_such.index'

    Args:
        path: A file that `write` has made.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is anything else, or cut short.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(os.fspath(path)) if os.path.exists(path) else os.fspath(path)
        # Looked at before it is opened: to open a pipe waits for its writer.
        if not stat.S_ISREG(os.stat(self.path).st_mode):
            raise self._error("it is no ordinary file")
        with open(self.path, "rb") as file:
            if os.fstat(file.fileno()).st_size < _HEAD.size:
                raise self._error("it is too short")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        magic, table, count = _HEAD.unpack_from(self._map)
        if magic != _MAGIC:
            raise self._error("it begins otherwise, or is of another version")
        if table + 16 * count != len(self._map) or table < _HEAD.size:
            raise self._error("its length is not what its head says")
        self._hashes = np.frombuffer(self._map, "<u8", count, table)
        self._places = np.frombuffer(self._map, "<u8", count, table + 8 * count)

    def __len__(self) -> int:
        return len(self._hashes)

    def __reduce__(self) -> tuple[type[IndexStore], tuple[str]]:
        return IndexStore, (self.path,)

    def get(self, name: str) -> PacketIndex | None:
        """The index of a video by its name, as it was given to `write`; None if the store has none.

        Raises:
            ValueError: If the store is damaged there.
        """
        encoded = _encoded(name)
        # As a number of the table's own kind: for any other one, NumPy would convert the table, at each call.
        key = np.uint64(_hash(encoded))
        at = int(np.searchsorted(self._hashes, key))
        while at < len(self._hashes) and self._hashes[at] == key:
            found, data = self._record(int(self._places[at]))
            if found == encoded:
                try:
                    return PacketIndex.from_bytes(data)
                except ValueError as error:
                    raise self._error(f"the entry of {name!r} is damaged") from error
            at += 1
        return None

    def _record(self, place: int) -> tuple[bytes, bytes]:
        try:
            name_bytes, index_bytes = _RECORD.unpack_from(self._map, place)
        except (struct.error, OverflowError) as error:
            raise self._error("an entry lies beyond its end") from error
        start = place + _RECORD.size
        middle, end = start + name_bytes, start + name_bytes + index_bytes
        if end > len(self._map):
            raise self._error("an entry lies beyond its end")
        return self._map[start:middle], self._map[middle:end]

    def _error(self, what: str) -> ValueError:
        return ValueError(
            f"{self.path} is no index of videos, or a damaged one: {what}. Delete it, and let `prepare` write it anew."
        )

    @staticmethod
    def write(path: str | os.PathLike[str], entries: Iterable[tuple[str, PacketIndex]]) -> None:
        """Writes a store: the old file or the new one is there, never a part.

        Args:
            path: Where to.
            entries: For each video its name and its index. Of several with one name the last holds.

        Raises:
            OutputError: If it cannot be written, for instance for want of space.
        """
        with new_file(path) as file:
            file.write(_HEAD.pack(_MAGIC, 0, 0))
            places: dict[bytes, int] = {}
            for name, index in entries:
                encoded, data = _encoded(name), index.to_bytes()
                places[encoded] = file.tell()
                file.write(_RECORD.pack(len(encoded), len(data)))
                file.write(encoded)
                file.write(data)
            table = np.array(sorted((_hash(name), place) for name, place in places.items()), "<u8").reshape(-1, 2)
            start = file.tell()
            file.write(table.T.tobytes())
            file.seek(0)
            file.write(_HEAD.pack(_MAGIC, start, len(table)))


def _encoded(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _hash(name: bytes) -> int:
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "little")
