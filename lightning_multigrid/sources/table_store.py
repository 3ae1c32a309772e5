"""A folder of frame tables of videos that were not prepared, which any number of processes may add to."""

import os
import secrets
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import torch

from lightning_multigrid.files import StrPath, WatchedFile, names_at, path_argument
from lightning_multigrid.sources.array_file import check_offsets, read_arrays, save_arrays
from lightning_multigrid.sources.table_column import TableColumn

_ABOUT = {"kind": "frame tables", "version": 1}
_KINDS = {"hashes": ("uint64", 2), "offsets": ("int64", 1)}
_SUFFIX = ".safetensors"


class TableStore:
    """Frame tables by the absolute paths of their videos, or their URLs.

    The folder holds segments, each of which is written once, whole or not at all, under a name of its own: nobody waits
    for another one. Of several tables of a video, the one counts that was added last. A segment that can't be read is
    left out, with a warning.

    Args:
        folder: It is made by the first `add`.
    """

    def __init__(self, folder: StrPath) -> None:
        self._folder = os.path.abspath(path_argument("folder", folder))
        self._segments: dict[str, _Segment | None] = {}

    def missing(self, paths: Iterable[str]) -> list[str]:
        """Returns the paths without a table, each once."""
        distinct = list(dict.fromkeys(paths))
        found, _ = self._find(distinct)
        return [path for path, (_, start, end) in zip(distinct, found.tolist(), strict=True) if start == end]

    def add(self, tables: Mapping[str, bytes]) -> None:
        """Adds the tables of some videos as one segment; an `OutputError` if they can't be written."""
        if not tables:
            return
        os.makedirs(self._folder, exist_ok=True)
        # Later than all others, whatever the clocks of other machines say: names are sorted.
        newest = max((int(name.split("-")[0]) for name in self._names()), default=0)
        name = f"{max(time.time_ns(), newest + 1):020d}-{secrets.token_hex(4)}{_SUFFIX}"
        arrays = {"hashes": _hashes(tables), "offsets": np.cumsum([0, *map(len, tables.values())])}
        save_arrays(os.path.join(self._folder, name), _ABOUT, arrays, tables.values())

    def tables(self, paths: Sequence[str]) -> TableColumn:
        """Returns the tables of the videos at some paths, in their order: empty bytes where there is none."""
        places, names = self._find(paths)
        return TableColumn([os.path.join(self._folder, name) for name in names], torch.from_numpy(places))

    def _find(self, paths: Sequence[str]) -> tuple[np.ndarray, list[str]]:
        """Returns P x 3, the number of a segment and where in it a table begins and ends, and the segments' names."""
        segments = {name: segment for name in self._names() if (segment := self._segment(name)) is not None}
        places = np.zeros((len(paths), 3), np.int64)
        if not segments or not paths:
            return places, []
        hashes = np.concatenate([segment.hashes for segment in segments.values()])
        known = np.concatenate([segment.places(number) for number, segment in enumerate(segments.values())])
        wanted = _hashes(paths)
        # Only the first halves are sorted. Where two videos share one, the newer has its table, the older one none.
        order = np.argsort(hashes[:, 0], kind="stable")
        last = np.searchsorted(hashes[order, 0], wanted[:, 0], side="right") - 1
        nearest = order[last]
        found = (hashes[nearest] == wanted).all(axis=1)
        places[found] = known[nearest[found]]
        return places, list(segments)

    def _names(self) -> list[str]:
        """Names of the segments, the oldest first."""
        names = (name for name in names_at(self._folder) if name.endswith(_SUFFIX))
        return sorted(name for name in names if name.split("-")[0].isdecimal())

    def _segment(self, name: str) -> "_Segment | None":
        if name not in self._segments:
            path = os.path.join(self._folder, name)
            try:
                self._segments[name] = _read_segment(path)
            except (OSError, ValueError, RecursionError) as error:
                self._segments[name] = None
                warnings.warn(
                    f"{path} is left out, as it is damaged or can't be read: {error}. Its videos are read from their "
                    "beginning, which is slower. Remove it, and make their tables again.",
                    stacklevel=4,
                )
        return self._segments[name]


class _Segment(NamedTuple):
    """The hashes of N paths, N x 2, and where in the file their tables begin and end, N + 1."""

    hashes: np.ndarray
    offsets: np.ndarray

    def places(self, number: int) -> np.ndarray:
        return np.stack([np.full(len(self.hashes), number), self.offsets[:-1], self.offsets[1:]], axis=1)


def _read_segment(path: str) -> _Segment:
    file = WatchedFile(path)
    about, arrays, start = read_arrays(file, _KINDS)
    if about != _ABOUT:
        raise ValueError("it is of another version")
    hashes, offsets = arrays["hashes"], arrays["offsets"]
    check_offsets(offsets, file.size - start, "tables")
    if hashes.shape != (len(offsets) - 1, 2):
        raise ValueError("its paths and tables differ in number")
    return _Segment(hashes, offsets + start)


def _hashes(paths: Iterable[str]) -> np.ndarray:
    """Hashes of paths, N x 2: no list of paths need be kept, and none is compared."""
    digests = b"".join(blake2b(path.encode("utf-8", "surrogateescape"), digest_size=16).digest() for path in paths)
    return np.frombuffer(digests, "<u8").reshape(-1, 2)
