"""What a video file may cost. A few bytes can claim billions of frames, and FFmpeg would prepare for them."""

import time
from typing import NamedTuple

from lightning_multigrid.files import WatchedFile

# Pixels that all frames of a file may have together: 2,000 frames of 1080p, and more the larger the file is. Frames of
# 1080p where nothing moves take 34 bytes each in AV1, 61,000 pixels a byte; those of a GIF of 5,000 bytes could have
# 67 million pixels each.
_PIXELS, _PIXELS_PER_BYTE = 1 << 32, 1 << 19
# CPU seconds that a decode of a whole file may take. An hour of 1080p, a GB, takes some minutes.
_SECONDS, _SECONDS_PER_BYTE = 600.0, 1e-5

_MOST = 1 << 20  # boxes that are looked at: a day of fragments of two seconds, or five hours of single frames
_OF_SAMPLES = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"moof", b"traf")
_LARGEST_TABLE = 1 << 26  # larger ones belong to videos of days; they are not looked at


class Budget:
    """What is left of what a decode of a whole file may cost."""

    def __init__(self, file_size: int) -> None:
        self._size, self._pixels, self._started = file_size, 0, time.thread_time()
        self._most_pixels = _PIXELS + _PIXELS_PER_BYTE * file_size
        self._most_seconds = _SECONDS + _SECONDS_PER_BYTE * file_size

    def spend(self, pixels: int) -> str:
        """Counts pixels of frames; returns what is wrong once the file costs too much, else nothing."""
        self._pixels += pixels
        if self._pixels > self._most_pixels:
            return f"holds more than {self._most_pixels} pixels in {self._size} bytes; a file of that size may not"
        if time.thread_time() - self._started > self._most_seconds:
            return f"takes more than {self._most_seconds:.0f} s to decode; a file of {self._size} bytes may not"
        return ""


class _FileBox(NamedTuple):
    """A box of an mp4 file: its type, and where it lies, its head included."""

    kind: bytes
    position: int
    size: int


def claimed_by_samples(file: WatchedFile) -> int:
    """Bytes that the samples of an mp4 file claim, at least, where no table lists them one by one.

    FFmpeg allocates 36 bytes for each of them, and more for those in fragments, before it looks for any.
    """
    of_track, of_fragments = 0, 0
    for box in _outermost_boxes(file):
        if box.kind not in (b"moov", b"moof") or box.size > _LARGEST_TABLE:
            continue
        table = file.read(box.position, box.size)
        spans = [(0, len(table))]
        while spans:
            at, end = spans.pop()
            while at + 8 <= end:
                size, kind = int.from_bytes(table[at : at + 4], "big"), table[at + 4 : at + 8]
                after = min(at + size, end) if size >= 8 else end
                first, second = (int.from_bytes(table[at + 12 + n : at + 16 + n], "big") for n in (0, 4))
                if kind in _OF_SAMPLES:
                    spans.append((at + 8, after))
                elif kind == b"stsz":  # of one size each, if it is not 0; ISO/IEC 14496-12, 8.7.3
                    of_track = max(of_track, first * second)
                elif kind == b"trun":  # 8.8.8
                    of_fragments += first
                at = after
    return max(of_track, of_fragments)


def _outermost_boxes(file: WatchedFile) -> list[_FileBox]:
    """The boxes of an mp4 file as long as they claim to be; ISO/IEC 14496-12, 4.2. Of other files there are none."""
    boxes: list[_FileBox] = []
    end = 0
    while len(boxes) < _MOST and len(head := file.read(end, 16)) >= 8:
        if not boxes and head[4:8] not in (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"styp", b"moof"):
            break
        size = int.from_bytes(head[:4], "big")
        if size == 1:
            size = int.from_bytes(head[8:16], "big")
        if size < 8:  # to the end of the file
            size = file.size - end
        boxes.append(_FileBox(head[4:8], end, size))
        end += size
    return boxes
