"""The images of a folder in their order: found once for many clips, as a long folder is listed slowly."""

import os
import re
import threading
import time
import zlib
from collections.abc import Sequence

from lightning_multigrid.decode.video_file import VideoError
from lightning_multigrid.files import FRAME_SUFFIXES, is_frame

_MOST_BYTES = 1 << 24  # kept by a thread: of some 10,000 folders of 300 images
_SETTLED = 3.0  # seconds since the last change; file systems count changes within up to 2 s as one


def list_folder(path: str) -> list[str]:
    """Lists a folder, or takes what this thread found when it was last listed, unless the folder has changed.

    Raises a `VideoError` as `FrameFolder` does.
    """
    try:
        found = os.stat(path)
        stamp = found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns
        if known := _kept.take(path, stamp):
            return known
        with os.scandir(path) as entries:
            names = [entry.name for entry in entries if is_frame(entry.name) and entry.is_file()]
    except OSError as error:
        raise VideoError(path, f"no folder of frames ({error.strerror})") from error
    if not names:
        raise VideoError(path, f"holds no images ({' '.join(FRAME_SUFFIXES)})")
    names = _in_order(path, names)
    _kept.put(path, stamp, names)
    return names


_Stamp = tuple[int, int, int, int]  # which folder it is, and in ns when it was written and changed


class _Kept(threading.local):
    """The images of the folders that a thread listed last. They are packed, and a fork has its copy.

    What changed a moment ago isn't kept: another change might get the same time.
    """

    def __init__(self) -> None:
        self._packed: dict[str, tuple[_Stamp, bytes]] = {}

    def take(self, path: str, stamp: _Stamp) -> list[str]:
        kept = self._packed.pop(path, None)
        if kept is None or kept[0] != stamp:
            return []
        self._packed[path] = kept  # at the end, so that the first is the least recently used
        return os.fsdecode(zlib.decompress(kept[1])).split("/")

    def put(self, path: str, stamp: _Stamp, names: Sequence[str]) -> None:
        if max(stamp[2:]) > time.time_ns() - _SETTLED * 1e9:
            return
        self._packed[path] = stamp, zlib.compress(os.fsencode("/".join(names)), 1)  # no name holds a slash
        surplus = sum(len(packed) for _, packed in self._packed.values()) - _MOST_BYTES
        while surplus > 0:
            surplus -= len(self._packed.pop(next(iter(self._packed)))[1])


_kept = _Kept()


def _in_order(path: str, names: Sequence[str]) -> list[str]:
    """Sorts names by the numbers in them, the first of which counts most; refuses those that have no clear order."""
    numbers: dict[tuple[int, ...], str] = {}
    alike: dict[str, str] = {}
    decimals: dict[tuple[int, ...], str] = {}
    for name in sorted(names):
        stem = os.path.splitext(name)[0]
        alike.setdefault(re.sub("[0-9]+", "#", stem), name)
        decimals.setdefault(tuple(map(len, re.findall(r"(?<=[0-9]\.)[0-9]+", stem))), name)
        if (other := numbers.setdefault(tuple(map(int, re.findall("[0-9]+", stem))), name)) != name or len(alike) > 1:
            two = " and ".join([*alike.values()] if len(alike) > 1 else [other, name])
            raise VideoError(
                path, f"holds frames of several videos, by names such as {two}. Give each video a folder of its own"
            )
    if len(decimals) > 1:
        two = " and ".join([*decimals.values()][:2])
        raise VideoError(
            path, f"has images such as {two}, whose order is not clear: fill up what is behind the point with zeros"
        )
    return [numbers[key] for key in sorted(numbers)]
