"""The indices of many videos in one file. Workers map it into memory, so they share its pages."""

import mmap
import os
import stat
import struct
from collections.abc import Iterable
from hashlib import blake2b

import numpy as np

from lightning_multigrid.decode.index import PacketIndex
from lightning_multigrid.files import new_file

_MAGIC = b"LMGSTO\2\n"
# The file is a head, records, and a table: the hashes of all names, ascending, then the positions of their records.
# The head holds the magic bytes, the position of the table, and its number of entries.
_HEAD = struct.Struct("<8sQQ")
# A record is the length of a name, the length of an index, the name, and the index.
_RECORD = struct.Struct("<II")


class IndexStore:
    """A read-only file of packet indices by the names of their videos. Its length is the number of videos.

    It takes as long to open for a few videos as for millions. It is pickled as its path, for workers. It does not check
    that a video is still the one that was indexed: `VideoReader` does.

    Args:
        path: A file that `write` has made.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is no such file, or cut short.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(os.fspath(path)) if os.path.exists(path) else os.fspath(path)
        # Before `open`, which would wait for the writer of a pipe.
        if not stat.S_ISREG(os.stat(self.path).st_mode):
            raise self._error("it is no ordinary file")
        with open(self.path, "rb") as file:
            if os.fstat(file.fileno()).st_size < _HEAD.size:
                raise self._error("it is too short")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        magic, table, count = _HEAD.unpack_from(self._map)
        if magic != _MAGIC:
            raise self._error("it doesn't begin as one does, or is of another version")
        if table + 16 * count != len(self._map) or table < _HEAD.size:
            raise self._error("its length is not the one in its head")
        self._hashes = np.frombuffer(self._map, "<u8", count, table)
        self._places = np.frombuffer(self._map, "<u8", count, table + 8 * count)

    def __len__(self) -> int:
        return len(self._hashes)

    def __reduce__(self) -> "tuple[type[IndexStore], tuple[str]]":
        return IndexStore, (self.path,)

    def get(self, name: str) -> PacketIndex | None:
        """Looks up the index of a video by its name; None if there is none, a ValueError if the store is damaged."""
        encoded = _encoded(name)
        # As the type of the table: for another type, NumPy would convert the whole table at each call.
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
        start = end = place + _RECORD.size
        if end <= len(self._map):
            name_bytes, index_bytes = _RECORD.unpack_from(self._map, place)
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
        """Writes a store from the name and the index of each video. If a name comes again, the last index counts.

        The file is the old one or the new one at any moment. An `OutputError` if it cannot be written.
        """
        with new_file(path) as file:
            file.write(_HEAD.pack(_MAGIC, 0, 0))
            places: dict[bytes, int] = {}
            for name, index in entries:
                encoded, data = _encoded(name), index.to_bytes()
                places[encoded] = file.tell()
                file.write(_RECORD.pack(len(encoded), len(data)) + encoded + data)
            table = np.array(sorted((_hash(name), place) for name, place in places.items()), "<u8").reshape(-1, 2)
            start = file.tell()
            file.write(table.T.tobytes())
            file.seek(0)
            file.write(_HEAD.pack(_MAGIC, start, len(table)))


def _encoded(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _hash(name: bytes) -> int:
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "little")
