"""Videos as decoded planes: a clip is read from the rows that it shows, without a decoder.

A file holds all frames one after the other, each as bands of 16 rows with a checksum, and at its end what they are::

    frame 0                                    frame 1                    the end
    band 0                band 1      ...      band 0  ...                times | made_from | head
    16 x W Y, 8 x W/2 Cb, 8 x W/2 Cr, check

So a crop is one read for each frame, and what is read of it is checked. The last band is filled up to 16 rows. The
check is XXH3 of a band, with its place in the file as the seed: rows that stand elsewhere don't fit.

Legend: T frames, H W pixels of a frame.
"""

from __future__ import annotations

import math
import operator
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from fractions import Fraction
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
import xxhash
from av.video.frame import VideoFrame
from av.video.reformatter import ColorRange
from torch import Tensor

from lightning_multigrid.decode.frame_pixels import MATRICES, Box, plane_pixels, rgb_frame
from lightning_multigrid.decode.frame_table import MAX_PIXELS
from lightning_multigrid.decode.video import Video, places_of
from lightning_multigrid.decode.video_file import VideoError, VideoFile
from lightning_multigrid.files import PLANES_SUFFIX, RemoteFile, StrPath
from lightning_multigrid.pixels import YuvClip, YuvFormat

_ROWS = 16  # of luma in a band
_CHECK = 8  # bytes of a checksum
_AT_ONCE = 1 << 18  # bytes of frames that are worked on together: what the cache of a processor holds
_MAGIC = b"LMplane2"
_HEAD = struct.Struct("<8s7Q3d")  # and the checksum of all after the frames
_LIKELY = 1 << 13  # bytes that are read at first: the end of a video of half a minute
_LONGEST = 1 << 27  # bytes of the end
_WAY_OUT = "Remove it, and run `lightning-multigrid prepare` again, which makes only what is missing"


class PlaneHead(NamedTuple):
    """What the frames of a file are, apart from their times."""

    frames: int
    height: int
    width: int
    matrix: int  # its number in ITU-T H.273
    ticks: int  # the clock: a tick lasts `ticks / per` seconds
    per: int
    rate: float  # mean frames per second
    start: float  # seconds from the start of the source to its first frame
    last: float  # seconds that the last frame is shown, if longer than others

    @property
    def band(self) -> int:
        return _ROWS * self.width * 3 // 2 + _CHECK  # bytes

    @property
    def bands(self) -> int:
        return -(-self.height // _ROWS)  # of a frame

    @property
    def is_possible(self) -> bool:
        even = self.height % 2 == self.width % 2 == 0
        sizes = even and self.height > 0 < self.width and self.height * self.width <= MAX_PIXELS and self.frames > 0
        colours = self.matrix < 2**8 and 0 < self.ticks < 2**31 and 0 < self.per < 2**31
        seconds = 0 <= self.start < math.inf and 0 <= self.last < math.inf
        return sizes and colours and 0 < self.rate < math.inf and seconds


def planes_bytes(frames: int, height: int, width: int) -> int:
    """Bytes that the planes of a video take, without its end.

    >>> planes_bytes(frames=10, height=128, width=170) / (10 * 128 * 170)  # a byte and a half for each pixel
    1.502941...
    """
    head = PlaneHead(frames, height, width, 0, 1, 1, 1.0, 0.0, 0.0)
    return frames * head.bands * head.band


class PlaneWriter:
    """Writes frames of YUV 4:2:0, upright and of limited range, to a new file; all have the size of the first."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._times: list[int] = []
        self._first: VideoFrame | None = None

    def add(self, frame: VideoFrame) -> None:
        assert frame.format.name == "yuv420p"
        assert frame.pts is not None
        first = self._first = self._first or frame
        assert (frame.height, frame.width) == (first.height, first.width)
        rows = -(-frame.height // _ROWS) * _ROWS
        planes = []
        for plane, down in zip(frame.planes, (1, 2, 2), strict=True):
            whole = np.zeros((rows // down, frame.width // down), np.uint8)
            whole[: plane.height] = plane_pixels(plane, Box(0, 0, plane.height, plane.width))
            planes.append(whole.reshape(rows // _ROWS, -1))
        place = len(self._times) * (rows // _ROWS)
        for number, band in enumerate(np.concatenate(planes, axis=1)):
            data = band.tobytes()
            self._file.write(data + xxhash.xxh3_64_digest(data, place + number))
        self._times.append(frame.pts)

    def end(self, usual: float, start: float, last: float, made_from: str) -> None:
        """Writes what the frames are; `usual` is the rate of a video of one frame, in frames per second."""
        assert self._first is not None
        first, times = self._first, self._times
        clock = first.time_base
        assert clock is not None
        rate = float((len(times) - 1) / ((times[-1] - times[0]) * clock)) if len(times) > 1 else usual
        frames = len(times), first.height, first.width, int(first.colorspace)
        head = PlaneHead(*frames, clock.numerator, clock.denominator, rate, start, last)
        text = made_from.encode()
        data = np.array(times, "<i8").tobytes() + text + _HEAD.pack(_MAGIC, len(text), *head)
        self._file.write(data + xxhash.xxh3_64_digest(data))


class PlaneFile(Video):
    """A file of planes. A `VideoError` if it is not one, or cut short, or its end is damaged."""

    def __init__(self, path: StrPath) -> None:
        self.file = VideoFile(os.fspath(path))
        with ExitStack() as opened:
            opened.callback(self.file.close)
            with self.file.faults():
                self._read_end()
            opened.pop_all()
        self.rate, self.start, self.last = self._head.rate, self._head.start, self._head.last
        self.height, self.width = self._head.height, self._head.width

    def close(self) -> None:
        self.file.close()

    def __len__(self) -> int:
        return self._head.frames

    def __iter__(self) -> Iterator[VideoFrame]:
        for index in range(len(self)):
            luma, chroma = self._planes([index], 0, self._head.bands)
            frame = self._frame(luma[:, : self.height], chroma[:, :, : self.height // 2])
            frame.pts, frame.time_base = int(self.times[index]), Fraction(self._head.ticks, self._head.per)
            yield frame

    def read(self, indices: Sequence[int], box: Box | None = None) -> Tensor:
        box = Box.of(box, self.height, self.width)
        clip = np.empty((len(indices), box.height, box.width, 3), np.uint8)
        rows, columns = _within(box)
        for part, luma, chroma in self._parts(indices, box):
            frame = self._frame(luma, chroma)
            shown = rgb_frame(frame, frame.height, frame.width).planes[0]
            pixels = plane_pixels(shown, Box(0, 0, frame.height, frame.width), 3)
            clip[part] = pixels.reshape(len(luma), -1, self.width, 3)[:, rows, columns]
        return torch.from_numpy(clip)

    def read_yuv(self, indices: Sequence[int], box: Box | None = None) -> YuvClip | Tensor:
        box = Box.of(box, self.height, self.width)
        matrix = MATRICES.get(self._head.matrix)
        if matrix is None:
            return self.read(indices, box)
        format = YuvFormat(len(indices), box.height, box.width, box.top % 2, box.left % 2, matrix, False)
        data = np.empty(format.nbytes, np.uint8)
        luma, chroma = format.planes(data)
        rows, columns = _within(box)
        half_rows, half_columns = _within(box.chroma(), _ROWS // 2)
        for part, y, half in self._parts(indices, box):
            luma[part] = y[:, rows, columns]
            chroma[part] = half[:, :, half_rows, half_columns]
        return format.view(torch.from_numpy(data))

    def _parts(self, indices: Sequence[int], box: Box) -> Iterator[tuple[slice, Any, Any]]:
        """Reads the bands that hold a clip, some frames at a time: which of the clip, and their luma and chroma."""
        top, bottom = box.top // _ROWS, -(-(box.top + box.height) // _ROWS)
        frames = places_of(indices, len(self), self.file.path)
        if isinstance(self.file.bytes, RemoteFile):  # it is asked for all of them at once
            firsts = [index * self._head.bands for index in frames]
            size = self._head.band
            with self.file.faults():
                self.file.bytes.will_read(((first + top) * size, (first + bottom) * size) for first in firsts)
        most = max(1, _AT_ONCE // ((bottom - top) * self._head.band))
        for first in range(0, len(indices), most):
            part = slice(first, first + most)
            yield part, *self._planes([*map(operator.index, indices[part])], top, bottom)

    def _planes(self, frames: Sequence[int], top: int, bottom: int) -> tuple[Any, Any]:
        """Reads and checks the bands [top, bottom) of frames: T x h x W of luma, T x 2 x h / 2 x W / 2 of chroma."""
        head, used, count = self._head, self._head.band - _CHECK, bottom - top
        places = {index: index * head.bands + top for index in frames}  # of the first band of each
        with self.file.faults():
            read = {i: self.file.bytes.read(place * head.band, count * head.band) for i, place in places.items()}
        whole = b"".join(read[index].ljust(count * head.band) for index in frames)  # the file may be cut by now
        data = np.frombuffer(whole, np.uint8).reshape(-1, head.band)
        seeds = [places[index] + band for index in frames for band in range(count)]
        found = list(map(xxhash.xxh3_64_digest, data[:, :used], seeds))
        written = data[:, used:].copy().view(f"V{_CHECK}").ravel().tolist()
        if found != written:
            wrong = [seed for seed, is_, was in zip(seeds, found, written, strict=True) if is_ != was]
            frame, band = divmod(wrong[0], head.bands)
            rows = f"{band * _ROWS} to {(band + 1) * _ROWS - 1} of frame {frame}"
            raise VideoError(self.file.path, f"damaged: rows {rows} are not those written. {_WAY_OUT}")
        luma, half = data[:, : _ROWS * head.width].reshape(len(frames), -1, head.width), head.width // 2
        chroma = data[:, _ROWS * head.width : used].reshape(len(frames), count, 2, _ROWS // 2, half)
        return luma, chroma.swapaxes(1, 2).reshape(len(frames), 2, -1, half)

    def _frame(self, luma: Any, chroma: Any) -> VideoFrame:
        """Frames one below the other, as one frame."""
        frame = VideoFrame(self.width, luma.size // self.width, "yuv420p")
        for plane, rows in zip(frame.planes, (luma, chroma[:, 0], chroma[:, 1]), strict=True):
            plane_pixels(plane, Box(0, 0, plane.height, plane.width))[:] = rows.reshape(plane.height, plane.width)
        frame.colorspace, frame.color_range = self._head.matrix, ColorRange.MPEG
        return frame

    def _read_end(self) -> None:
        """Reads what the frames are. Nothing of it is believed before it fits the size of the file."""
        file, least = self.file.bytes, _HEAD.size + _CHECK
        end = file.read(max(0, file.size - _LIKELY), _LIKELY)
        if len(end) < least or not end[-least:].startswith(_MAGIC):
            raise VideoError(self.file.path, f"cut short, or not a file of planes. {_WAY_OUT}")
        _, length, *values = _HEAD.unpack(end[-least:-_CHECK])
        self._head = head = PlaneHead(*values)
        size = 8 * head.frames + length + least
        fits = head.is_possible and size <= _LONGEST and head.frames * head.bands * head.band + size == file.size
        if fits and size > len(end):
            end = file.read(file.size - size, size)
        end = end[-size:]
        if not fits or xxhash.xxh3_64_digest(end[:-_CHECK]) != end[-_CHECK:]:
            raise VideoError(self.file.path, f"damaged: its end does not fit the file. {_WAY_OUT}")
        self.times = np.frombuffer(end, "<i8", head.frames)
        if not bool((self.times[1:] > self.times[:-1]).all()):
            raise VideoError(self.file.path, f"damaged: its times do not ascend. {_WAY_OUT}")
        # From which video it was prepared, and how.
        self.made_from = end[8 * head.frames : -least].decode("utf-8", "replace")


def _within(box: Box, rows: int = _ROWS) -> tuple[slice, slice]:
    """The rows and columns of a box, counted from the band of so many rows in which it begins."""
    top = box.top % rows
    return slice(top, top + box.height), slice(box.left, box.left + box.width)


def is_plane_file(path: StrPath) -> bool:
    """Whether a file is one of planes by its name, as `prepare` gives it."""
    return os.fspath(path).lower().endswith(PLANES_SUFFIX)
