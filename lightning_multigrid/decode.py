"""Frames of a video file by their place in it: exactly those asked for, in presentation order.

A file is indexed once, from its packets. A frame is found by seeking to the last point before it at which decoding can
begin, and decoding forward, no further than the last frame wanted. What comes out is checked against the index, frame by
frame; where they disagree the file is decoded from its beginning: first right, then fast.

T frames, H W pixels of a frame as it is shown (rotation applied). Times are in ticks of the stream's own clock.
"""

from __future__ import annotations

import errno
import math
import operator
import os
import stat
import struct
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType
from typing import BinaryIO, NamedTuple

import av
import torch
from av.container import InputContainer
from av.packet import Packet
from av.stream import Disposition
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from av.video.stream import VideoStream
from torch import Tensor

__all__ = ["Box", "VideoError", "VideoReader", "read_frames"]

# Containers that hold their own pictures. FFmpeg also "plays" playlists, concat scripts and image patterns, which name
# other files or hosts: whoever can place such a file in a dataset could read what the training run can read.
_CONTAINERS = "mov,matroska,avi,asf,flv,mpeg,mpegts,mpegvideo,ogg,ivf,gif,h264,hevc,m4v,mjpeg"
# A frame of 8192 x 8192 pixels: twice an 8K one. A few bytes of header can declare far more.
_MAX_PIXELS = 2**26
# Frames that must come out as indexed before an index is believed.
_PROBE = 4
# Frames listed by the indices that a thread keeps: 8 MB of times.
_KEPT_FRAMES = 1_000_000
# From this version on the scaler would start a thread per core, for every frame.
_ONE_THREAD = {"threads": 1} if int(av.__version__.split(".")[0]) >= 17 else {}


class VideoError(ValueError):
    """A file that cannot be read as a video, or a frame of it that cannot. Its text is one line, `path: reason`.

    Args:
        path: The file as it was given.
        reason: What is wrong with it, for a person.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        text = f"{self.path}: {self.reason}"
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class Box(NamedTuple):
    """A part of a frame as it is shown, in pixels from its top left corner."""

    top: int
    left: int
    height: int
    width: int


class VideoReader:
    """A video file, open for reading. Use it in a `with` statement.

    Args:
        path: An ordinary file on disk, whatever its name looks like.

    Attributes:
        height: H of a frame as it is shown (rotation applied), in pixels.
        width: W, likewise.
        rate: Mean frames per second, 0.0 if unknown.
        packets_fed: Packets that the decoder was given so far by `read`: what decoding costs.

    Raises:
        VideoError: If the file is missing, damaged, cut short, not a video, or too large (over 67 megapixels).
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self.packets_fed = 0
        with _faults(self._path):
            key = _file_key(self._path)
            self._container = _open(self._path)
            try:
                index = _of_thread.indices.get(key) or _build_index(self._path, self._container)
            except BaseException:
                self._container.close()
                raise
        _of_thread.indices.keep(key, index)
        self._index = index
        self.rate = index.rate
        self.height, self.width = index.orientation.shown(index.height, index.width)

    def __enter__(self) -> VideoReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return self._index.length

    def close(self) -> None:
        """Lets go of the file."""
        self._container.close()

    def read(self, indices: Sequence[int], box: Box | None = None) -> Tensor:
        """Frames as a uint8 tensor T x H x W x 3 (RGB), one for each index, in that order.

        Args:
            indices: Frames, counted from 0 in presentation order; repeats and any order allowed.
            box: The part of each frame that is wanted; all of it unless given.

        Raises:
            IndexError: If the video has no such frame.
            ValueError: If `box` does not lie within the frame.
            VideoError: If a frame cannot be decoded.
        """
        places: dict[int, list[int]] = {}
        for place, index in enumerate(map(operator.index, indices)):
            if not 0 <= index < len(self):
                raise IndexError(f"Expected indices from 0 to {len(self) - 1}, the frames of {self._path}, got {index}.")
            places.setdefault(index, []).append(place)
        orientation = self._index.orientation
        top, left, height, width = orientation.stored(self._checked(box), self.height, self.width)
        clip = torch.empty((len(indices), height, width, 3), dtype=torch.uint8)
        with _faults(self._path):
            for index, frame in self._find(sorted(places)):
                crop = self._rgb(frame)[top : top + height, left : left + width]
                for place in places[index]:
                    clip[place] = crop
        return orientation.show(clip)

    def _checked(self, box: Box | None) -> Box:
        if box is None:
            return Box(0, 0, self.height, self.width)
        top, left, height, width = box
        if min(height, width) < 1 or not (0 <= top <= self.height - height and 0 <= left <= self.width - width):
            raise ValueError(f"`box` must lie within the frame of {self.height} x {self.width} pixels, got {box}.")
        return Box(top, left, height, width)

    def _rgb(self, frame: VideoFrame) -> Tensor:
        """Pixels of a frame as it is stored, H x W x 3. A frame of another size is scaled to that of the first."""
        height, width = self._index.height, self._index.width
        rgb = _of_thread.scaler.reformat(frame, width=width, height=height, format="rgb24", **_ONE_THREAD)
        plane = rgb.planes[0]
        return torch.frombuffer(plane, dtype=torch.uint8).as_strided((height, width, 3), (plane.line_size, 3, 1))

    def _find(self, wanted: Sequence[int]) -> Iterator[tuple[int, VideoFrame]]:
        """Frames with their indices; some of them again when the index proves wrong on the way."""
        if self._index.times:
            try:
                yield from self._by_seeking(wanted)
                return
            except (_Disagreement, av.FFmpegError):
                pass
            try:
                yield from self._by_time(wanted)
                return
            except _Disagreement:
                pass
        yield from self._by_counting(wanted)

    def _by_seeking(self, wanted: Sequence[int]) -> Iterator[tuple[int, VideoFrame]]:
        times, entries = self._index.times, self._index.entries
        for run in _runs(wanted, times, entries):
            entry = entries[bisect_right(entries, times[run[0]]) - 1]
            index = bisect_left(times, entry)
            left = iter(run)
            next_wanted = next(left)
            for frame in self._decoded_from(entry):
                if frame.pts is not None and frame.pts < entry:
                    continue  # a leading picture of an open GOP: it needs what lies before the entry
                if index == len(times) or frame.pts != times[index]:
                    raise _Disagreement
                if index == next_wanted:
                    yield index, frame
                    if index == run[-1]:
                        break
                    next_wanted = next(left)
                index += 1
            else:
                raise _Disagreement

    def _by_time(self, wanted: Sequence[int]) -> Iterator[tuple[int, VideoFrame]]:
        times, missing, last = self._index.times, set(wanted), -math.inf
        for frame in self._decoded():
            if frame.pts is None or frame.pts <= last:
                raise _Disagreement
            last = frame.pts
            index = bisect_left(times, frame.pts)
            if index in missing and times[index] == frame.pts:
                missing.remove(index)
                yield index, frame
            if index >= wanted[-1]:
                break
        if missing:
            raise VideoError(self._path, f"damaged: frame {min(missing)} of {len(self)} does not come out")

    def _by_counting(self, wanted: Sequence[int]) -> Iterator[tuple[int, VideoFrame]]:
        missing = set(wanted)
        for index, frame in enumerate(self._decoded()):
            if index in missing:
                missing.remove(index)
                yield index, frame
            if not missing:
                return
        if missing:
            raise VideoError(self._path, f"damaged: frame {min(missing)} of {len(self)} does not come out")

    def _decoded_from(self, entry: int) -> Iterator[VideoFrame]:
        stream = _video(self._path, self._container)
        self._container.seek(entry - self._index.delay, stream=stream)
        packets = _packets(self._container, stream)
        for packet in packets:  # containers land on the entry or before it
            if packet.is_keyframe and packet.pts == entry:
                break
        else:
            raise _Disagreement
        ...
