"""What a folder of images holds: found once for many clips, as a long folder is listed slowly."""

from __future__ import annotations

import os
import re
import threading
import time
import zlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from lightning_multigrid.decode.video_file import VideoError
from lightning_multigrid.files import FRAME_SUFFIXES, is_frame

_TIME = r"[0-9]+\.[0-9]+"  # as a name
_MOST_BYTES = 1 << 24  # kept by a thread: of some 10,000 folders of 300 images
_SETTLED = 3.0  # seconds since the last change; file systems count changes within up to 2 s as one


@dataclass(frozen=True)
class Listing:
    """The images of a folder, sorted.

    Args:
        names: The images' names.
        times: When each begins, and when the last ends, in frames.
        height: Rows of the first image as it is shown.
        width: Columns of the first image as it is shown.
    """

    names: list[str]
    times: Sequence[float]
    height: int
    width: int


def list_folder(path: str, size_of: Callable[[str], tuple[int, int]]) -> Listing:
    """Lists a folder, or takes what this thread found when it was last listed, unless the folder has changed.

    `size_of` opens an image by its name, for its width and height. Raises a `VideoError` as `FrameFolder` does.
    """
    try:
        stamp = _stamp(path)
        if (known := _kept.take(path, stamp)) is not None:
            return known
        with os.scandir(path) as entries:
            names = [entry.name for entry in entries if is_frame(entry.name) and entry.is_file()]
    except OSError as error:
        raise VideoError(path, f"no folder of frames ({error.strerror})") from error
    if not names:
        raise VideoError(path, f"holds no images ({' '.join(FRAME_SUFFIXES)})")
    numbered = _numbered(path, names)
    names = [name for _, name in numbered]
    first = os.path.join(path, names[0])
    stamps = stamp, _stamp_of_image(first)  # before it is opened
    width, height = size_of(names[0])
    listing = Listing(names, _times([numbers for numbers, _ in numbered]), height, width)
    _kept.put(path, stamps, listing)
    return listing


_Stamp = tuple[int, ...]  # which file it is, and in ns when it was written and changed


def _stamp(path: str) -> _Stamp:
    found = os.stat(path)
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns


def _stamp_of_image(path: str) -> _Stamp:
    """The stamp of an image; none if it can't be had, for which whoever opens the image says why."""
    try:
        return _stamp(path)
    except OSError:
        return ()


class _Kept(threading.local):
    """The listings that a thread keeps, of the folders that it listed last. They are packed, and a fork has its copy.

    What changed a moment ago isn't kept: another change might get the same time. An image may be written over, which
    the folder's time does not tell, so the first has a stamp of its own.
    """

    def __init__(self) -> None:
        self._listings: dict[str, tuple[tuple[_Stamp, _Stamp], str, bytes, tuple[int, int]]] = {}
        self._bytes = 0

    def take(self, path: str, stamp: _Stamp) -> Listing | None:
        kept = self._listings.pop(path, None)
        if kept is None:
            return None
        stamps, first, packed, size = kept
        if stamps != (stamp, _stamp_of_image(os.path.join(path, first))):
            self._bytes -= len(packed)
            return None
        self._listings[path] = kept  # at the end, so that the first is the least recently used
        data = zlib.decompress(packed)
        length = int.from_bytes(data[:8], "big")
        names = os.fsdecode(data[8 : 8 + length]).split("/")
        return Listing(names, array("d", data[8 + length :]), *size)

    def put(self, path: str, stamps: tuple[_Stamp, _Stamp], listing: Listing) -> None:
        newest = max((moment for stamp in stamps for moment in stamp[2:]), default=0)
        if not all(stamps) or newest > time.time_ns() - _SETTLED * 1e9:
            return
        names = os.fsencode("/".join(listing.names))  # no name holds a slash
        data = len(names).to_bytes(8, "big") + names + array("d", listing.times).tobytes()
        packed = zlib.compress(data, 1)
        self._listings[path] = stamps, listing.names[0], packed, (listing.height, listing.width)
        self._bytes += len(packed)
        while self._bytes > _MOST_BYTES:
            self._bytes -= len(self._listings.pop(next(iter(self._listings)))[2])


_kept = _Kept()


def _numbered(path: str, names: Sequence[str]) -> list[tuple[tuple[float, ...], str]]:
    """Returns names with the numbers in them, in their order; refuses those of several videos."""
    stems = [os.path.splitext(name)[0] for name in names]
    times = all(re.fullmatch(_TIME, stem) for stem in stems) and not _of_shots(stems)
    number, value = re.compile(_TIME if times else r"[0-9]+"), float if times else int
    alike = {number.sub("#", stem): name for stem, name in zip(stems, names, strict=True)}
    numbered = sorted((tuple(map(value, number.findall(stem))), name) for stem, name in zip(stems, names, strict=True))
    twice = next((pair for pair in pairwise(numbered) if pair[0][0] == pair[1][0]), ())
    several = [*alike.values()][:2] if len(alike) > 1 else [name for _, name in twice]
    if several:
        reason = f"holds frames of several videos, by names such as {' and '.join(sorted(several))}"
        raise VideoError(path, f"{reason}. Give each video a folder of its own")
    return numbered


def _of_shots(stems: Sequence[str]) -> bool:
    """Whether names such as `1.2` to `1.12` number the frames of shots: without a gap, and with no zero in front."""
    shots: dict[str, list[str]] = {}
    for shot, number in (stem.split(".") for stem in stems):
        shots.setdefault(shot, []).append(number)
    numbers = [sorted(map(int, shot)) for shot in shots.values()]
    numbered = all(shot == [*range(shot[0], shot[0] + len(shot))] for shot in numbers)
    padded = any(number != str(int(number)) for shot in shots.values() for number in shot)
    return numbered and not padded and len({len(stem.split(".")[1]) for stem in stems}) > 1


def _times(numbers: Sequence[tuple[float, ...]]) -> list[float]:
    """When frames with these numbers begin, and when the last ends, in frames."""
    last = [number[-1] if number else 0 for number in numbers]
    counted = isinstance(last[0], int) and all(number[:-1] == numbers[0][:-1] for number in numbers)
    if not counted or len(last) < 2:
        return [float(frame) for frame in range(len(last) + 1)]
    step = min(after - before for before, after in pairwise(last))  # every fifth frame may have been written
    begin = [(number - last[0]) / step for number in last]
    return [*begin, begin[-1] + 1]
