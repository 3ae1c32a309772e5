"""A folder of frame tables of videos that were not prepared, which any number of processes may add to."""

import mmap
import os
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from glob import escape, glob
from typing import NamedTuple

from xxhash import xxh3_128_digest

from lightning_multigrid.files import (
    StrPath,
    new_file,
    open_input,
    output_errors,
    path_argument,
    remove_partial,
    state_of,
    temporary_name,
)

_SUFFIX = ".table"
_END = 1 << 16  # bytes at each end of a video that are hashed
_MARKED = 30 * 86_400.0  # seconds after which a table that is read is marked as used anew
_KEYS, _KEY = "keys", 16  # the file of the keys of files; bytes of a key
_MOST_KEYS = 1 << 21
_READERS, _AT_ONCE = 16, 32  # threads, as a file on a server takes milliseconds; files that one takes at a time


class TableStore:
    """Frame tables by the contents of their videos: a file for each, which is whole or absent.

    A video is known by its size and a hash of its first and last 64 kB, so one that was copied or moved keeps its
    table. Where another one has the same, its frames differ from the checksums in the table.

    Args:
        folder: It is made by `begin`, or the first `add`.
    """

    DAYS = 180
    """After so many days in which a table was not read, `begin` removes it."""

    def __init__(self, folder: StrPath) -> None:
        self.folder = os.path.abspath(path_argument("folder", folder))

    def read(self, path: str) -> bytes:
        """Returns the table of a video, not checked; empty if there is none, or no such video.

        An OSError if it can't be read.
        """
        try:
            names = _key_of(path).names
        except (OSError, ValueError):  # who opens the video says why
            return b""
        for name in names:
            with suppress(FileNotFoundError, NotADirectoryError), open(self._file(name), "rb") as file:
                table = file.read()
                if time.time() - os.fstat(file.fileno()).st_mtime > _MARKED:
                    with suppress(OSError):  # it is another user's
                        os.utime(file.fileno())
                return table
        return b""

    def add(self, path: str, table: bytes, *, dated: bool = False) -> None:
        """Adds the table of a video, or replaces it; an `OutputError` if it can't be written.

        One that is `dated` holds as long as the video has its time of change.
        An OSError if the video can't be read.
        """
        of_this, of_all = map(self._file, _key_of(path).names)
        file = of_this if dated else of_all
        with output_errors(self.folder):
            os.makedirs(os.path.dirname(file), exist_ok=True)
            with new_file(file, synced=False) as part:  # a table has a checksum
                part.write(table)
        if not dated:
            with suppress(OSError):
                os.remove(of_this)

    def remove(self, path: str) -> None:
        """Removes the table of a video, as far as this user may."""
        with suppress(OSError):
            for name in _key_of(path).names:
                with suppress(FileNotFoundError):
                    os.remove(self._file(name))

    def missing(self, paths: Iterable[str]) -> list[str]:
        """Returns the paths without a table, each once; those of files that can't be read, too."""
        there = set(glob(f"??/*{_SUFFIX}", root_dir=self.folder))
        distinct = list(dict.fromkeys(paths))
        pieces = [distinct[start : start + _AT_ONCE] for start in range(0, len(distinct), _AT_ONCE)]
        recalled = self.recall()
        with ThreadPoolExecutor(_READERS) as threads:
            keys = [key for piece in threads.map(_keys, pieces) for key in piece]
        self._remember(recalled, {key.of_file: key.of_content for key in keys if key})
        return [path for path, key in zip(distinct, keys, strict=True) if not key or there.isdisjoint(key.names)]

    def recall(self) -> dict[bytes, bytes]:
        """Recalls the keys of files that any process has read before: only what has changed is read again."""
        try:
            with open(self._file(_KEYS), "rb") as file:
                data = file.read()
        except OSError:
            return {}
        data, check = data[:-_KEY], data[-_KEY:]
        if xxh3_128_digest(data) != check:
            return {}
        places = range(0, len(data), 2 * _KEY)
        recalled = {data[at : at + _KEY]: data[at + _KEY : at + 2 * _KEY] for at in places}
        _recalled.update(recalled)
        return recalled

    def _remember(self, recalled: dict[bytes, bytes], keys: dict[bytes, bytes]) -> None:
        """Keeps keys for later calls, as far as the folder is there and may be written to."""
        if keys.items() <= recalled.items():
            return
        newest = list((recalled | keys).items())[-_MOST_KEYS:]
        data = b"".join(of_file + key for of_file, key in newest)
        with suppress(OSError), new_file(self._file(_KEYS), synced=False) as part:
            part.write(data + xxh3_128_digest(data))

    def begin(self) -> None:
        """Begins to add tables: an `OutputError` if none can be added, so that none is made in vain.

        Tables that nobody has read for `DAYS` days are removed; whoever reads one at this moment still gets it whole.
        """
        with output_errors(self.folder):
            os.makedirs(self.folder, exist_ok=True)
            tried = temporary_name(self.folder)
            with open(tried, "xb"):
                pass
            os.remove(tried)
        remove_partial(self.folder)
        before = time.time() - self.DAYS * 86_400
        for file in glob(f"{escape(self.folder)}/??/*{_SUFFIX}"):
            with suppress(OSError):  # another process has removed it, or it is another user's
                found = os.stat(file)  # who may not mark it, another user, has at least accessed it
                if max(found.st_mtime, found.st_atime) < before:
                    os.remove(file)

    def _file(self, name: str) -> str:
        return os.path.join(self.folder, name)


def content_key(path: str) -> str:
    """The name of a video's table, in one of 256 folders, as large folders are slow; an OSError if it can't be read.

    A file that has its size and time of change of before isn't read again.
    """
    return _key_of(path).names[1]


class _Key(NamedTuple):
    """What a file is known as by its path, size and time of change; by what is in it; and by that and the time."""

    of_file: bytes
    of_content: bytes
    dated: bytes

    @property
    def names(self) -> tuple[str, str]:
        """Of the tables that it may have: of a dated one, and of one that holds for all such files."""
        dated, whole = (os.path.join(key[:1].hex(), key[1:].hex() + _SUFFIX) for key in (self.dated, self.of_content))
        return dated, whole


def _key_of(path: str) -> _Key:
    found = state_of(path)
    of_file = xxh3_128_digest(f"{path}\0{found.size}\0{found.changed}".encode("utf-8", "surrogateescape"))
    key = _recalled.get(of_file) or _known.get(of_file)
    if key is None:
        with closing(open_input(path)) as file:
            ends = file.read(0, _END) + file.read(max(0, file.size - _END), _END)
            key = xxh3_128_digest(f"{file.size} ".encode() + ends)
        _known.put(of_file, key)
    return _Key(of_file, key, xxh3_128_digest(key + f"{found.changed}".encode()))


def _keys(paths: Sequence[str]) -> list[_Key | None]:
    """`_key_of` each path; None for files that can't be read."""
    keys: list[_Key | None] = []
    for path in paths:
        try:
            keys.append(_key_of(path))
        except (OSError, ValueError):
            keys.append(None)
    return keys


class _Known:
    """Keys of files that were read, in memory that forks share: what one worker has read, no other one reads again.

    A key lies at a place that the file's name gives, with a checksum of both: what another file, or half of a write,
    has left there is not found.
    """

    _PLACES = 1 << 20

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, self._PLACES * 2 * _KEY)  # of which the system gives what is written to

    def get(self, known_as: bytes) -> bytes | None:
        place = self._place(known_as)
        key, check = self._memory[place : place + _KEY], self._memory[place + _KEY : place + 2 * _KEY]
        return key if check == xxh3_128_digest(known_as + key) else None

    def put(self, known_as: bytes, key: bytes) -> None:
        place = self._place(known_as)
        self._memory[place : place + 2 * _KEY] = key + xxh3_128_digest(known_as + key)

    def _place(self, known_as: bytes) -> int:
        return int.from_bytes(xxh3_128_digest(known_as)[:8], "big") % self._PLACES * 2 * _KEY


_known = _Known()
_recalled: dict[bytes, bytes] = {}  # from `_KEYS`
