"""Frames of a video file by their place in it: exactly those asked for, in presentation order.

A file is indexed once, from its packets. A frame is found by decoding from the last packet before it at which decoding
can begin, without the packets that nobody needs, no further than the last frame wanted. What comes out is compared with
the index, frame by frame; where they disagree the file is decoded from its beginning. First right, then fast.

T frames, H W pixels of a frame as it is shown, that is with its rotation applied.
"""

from __future__ import annotations

import operator
import os
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import av
import torch
from av.container import InputContainer
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from torch import Tensor

from lightning_multigrid.decode.frame_pixels import (
    Pixels,
    plane_pixels,
    rgb_options,
    show,
    stored,
    yuv_format,
    yuv_planes,
)
from lightning_multigrid.decode.index import SHOWN, Orientation, PacketIndex, Run
from lightning_multigrid.decode.indexing import index_of, is_sealed
from lightning_multigrid.decode.thread_cache import Kept
from lightning_multigrid.decode.video_file import VideoError, VideoFile, demuxed
from lightning_multigrid.pixels import Box, YuvClip

__all__ = ["Box", "VideoError", "VideoReader", "build_index", "places_of", "read_frames"]

# Bytes of packets that are read at a time, and between packets that are read rather than skipped.
_PIECE, _GAP = 1 << 22, 1 << 16

_Place = tuple[int, int, int, int]


def places_of(indices: Sequence[int], length: int, path: str) -> dict[int, list[int]]:
    """Where in a clip each of its frames stands.

    Args:
        indices: The frames of the clip.
        length: How many frames its video has.
        path: Of the video.

    Raises:
        IndexError: If the video has no such frame.
    """
    places: dict[int, list[int]] = {}
    for place, index in enumerate(map(operator.index, indices)):
        if not 0 <= index < length:
            raise IndexError(f"`indices` must lie in 0 to {length - 1} in {path}, got {index}.")
        places.setdefault(index, []).append(place)
    return places


def read_frames(path: str | os.PathLike[str], indices: Sequence[int]) -> Tensor:
    """Frames of a video as a uint8 tensor T x H x W x 3 (RGB), one for each index, in the order of `indices`.

    Frames are counted from 0 in presentation order; repeats and any order are allowed.

    >>> read_frames("no_such_video.mp4", [0])
    Traceback (most recent call last):
    lightning_multigrid.decode.video_file.VideoError: no_such_video.mp4: there is no such file

    Raises:
        IndexError: If the video has no such frame.
        VideoError: If the file cannot be read as a video, or a frame cannot be decoded.
    """
    with VideoReader(path) as video:
        return video.read(indices)


def build_index(path: str | os.PathLike[str], *, read_timeout: float = 60.0) -> PacketIndex:
    """The index of a video file, for `VideoReader`.

    Args:
        path: An ordinary file on disk, whatever its name looks like, or a URL that fsspec knows (`s3://bucket/a.mp4`).
        read_timeout: Seconds that a read of the file may take.

    Raises:
        VideoError: As of `VideoReader`.
    """
    file = VideoFile(os.fspath(path), read_timeout)
    try:
        return index_of(file)
    finally:
        file.close()


class VideoReader:
    """A video file, open for reading until `close` or the end of a `with`. Its length is its number of frames.

    Args:
        path: An ordinary file on disk, whatever its name looks like, or a URL that fsspec knows (`s3://bucket/a.mp4`).
        index: What `build_index` told of the file. It is built, and kept for a while, if None, and built anew if it is
            not that of the file as it is.
        read_timeout: Seconds that a read of the file may take: one that hangs is an error then.

    Attributes:
        height: H, in pixels.
        width: W, in pixels.
        rate: Mean frames per second, 0.0 if unknown.
        packets_fed: Packets given to the decoder by `read` so far: what decoding costs, free of noise.

    Raises:
        VideoError: If the file is missing, damaged, cut short, no video, cannot be read in time, or has frames of more
            than 67 megapixels.
    """

    def __init__(
        self, path: str | os.PathLike[str], index: PacketIndex | None = None, *, read_timeout: float = 60.0
    ) -> None:
        self._file = VideoFile(os.fspath(path), read_timeout)
        self._key = self._file.path, self._file.bytes.modified, self._file.bytes.size
        self._demuxer: tuple[InputContainer, VideoStream] | None = None
        self.packets_fed = 0
        try:
            with self._file.faults():
                if index is None or not is_sealed(index, self._file):
                    index = _kept.index(self._key, lambda: index_of(self._file))
        except BaseException:
            self.close()
            raise
        self._index = index
        self.rate, self.height, self.width = index.rate, index.height, index.width

    def __enter__(self) -> VideoReader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._index)

    def close(self) -> None:
        """Lets go of the file."""
        if self._demuxer is not None:
            self._demuxer[0].close()
            self._demuxer = None
        self._file.close()

    def read(self, indices: Sequence[int], box: Box | None = None) -> Tensor:
        """Frames as a uint8 tensor T x H x W x 3 (RGB), one for each index, in the order of `indices`.

        Args:
            indices: Frames, counted from 0 in presentation order; repeats and any order are allowed.
            box: The part of each frame that is returned, H and W being its height and width. The whole frame if None.

        Raises:
            IndexError: If the video has no such frame.
            ValueError: If `box` does not lie within the frame.
            VideoError: If a frame cannot be decoded.
        """
        places = places_of(indices, len(self), self._file.path)
        shown = Box.of(box, self.height, self.width)
        orientation = self._index.orientation
        top, left, height, width = stored(shown, orientation, self.height, self.width)
        clip = torch.empty((len(indices), height, width, 3), dtype=torch.uint8)
        pixels = clip.numpy()
        with self._file.faults():
            for index, frame in self._find(sorted(places)):
                crop = self._rgb(frame)[top : top + height, left : left + width]
                for place in places[index]:
                    pixels[place] = crop
        return show(clip, orientation)

    def frames(self) -> Iterator[tuple[int, VideoFrame]]:
        """All frames as they are stored, that is without the rotation, each with its index.

        They begin anew at 0, with another `index`, if that proves wrong on the way.

        Raises:
            VideoError: If a frame cannot be decoded.
        """
        with self._file.faults():
            yield from self._find(range(len(self)))

    @property
    def file(self) -> VideoFile:
        """The open file."""
        return self._file

    @property
    def index(self) -> PacketIndex:
        """What is known of the file."""
        return self._index

    def time_of(self, frame: int) -> float:
        """Seconds from the first frame to another one, or to the end of the last; for videos of a known rate."""
        return self._index.time_of(frame)

    def read_yuv(self, indices: Sequence[int], box: Box | None = None) -> YuvClip | Tensor:
        """Frames as they are stored, without conversion; as `read` gives them where those are not YUV 4:2:0 of 8 bits.

        So are those of odd height, those that are shown in another orientation, those in other colours than BT.601's or
        BT.709's, and those that differ from frame to frame. The colours are those of `read` within 3 of 255.

        Args:
            indices: See `read`, as for `box`.
            box: The part of each frame that is returned, at any place.

        Raises:
            IndexError: If the video has no such frame.
            ValueError: If `box` does not lie within the frame.
            VideoError: If a frame cannot be decoded.
        """
        places = places_of(indices, len(self), self._file.path)
        shown = Box.of(box, self.height, self.width)
        # Of frames of odd height FFmpeg's converter interpolates the chroma.
        if not places or self._index.orientation != Orientation() or self._index.height % 2:
            return self.read(indices, box)
        clip: YuvClip | None = None
        with self._file.faults():
            for index, frame in self._find(sorted(places)):
                format = yuv_format(frame, len(indices), shown) if self._is_of_first_size(frame) else None
                if clip is None and format is not None:
                    clip = YuvClip(torch.empty(format.nbytes, dtype=torch.uint8), format)
                    luma, chroma = clip.luma.numpy(), clip.chroma.numpy()
                if clip is None or format != clip.format:
                    return self.read(indices, box)
                y, cb, cr = yuv_planes(frame, shown)
                for place in places[index]:
                    luma[place], chroma[place, 0], chroma[place, 1] = y, cb, cr
        return clip or self.read(indices, box)

    def _is_of_first_size(self, frame: VideoFrame) -> bool:
        return (frame.height, frame.width) == (self._index.stored_height, self._index.stored_width)

    def _rgb(self, frame: VideoFrame) -> Pixels:
        """Pixels of a frame as it is stored. A frame of another size than the first is scaled to that."""
        height, width = self._index.stored_height, self._index.stored_width
        scaler = _kept.scalers[frame.format.name]
        rgb = scaler.reformat(frame, width=width, height=height, format="rgb24", **rgb_options(frame))
        return plane_pixels(rgb.planes[0], height, width, 3)

    def _find(self, wanted: Sequence[int]) -> Iterator[tuple[int, VideoFrame]]:
        """The frames of `wanted` (ascending) with their indices; some of them again if the index proves wrong."""
        if not wanted:
            return
        for _ in range(2):
            index = self._index
            if not len(index.times) or self._key in _kept.distrusted:
                break
            try:
                yield from self._planned(wanted)
                return
            except (_Disagreement, av.FFmpegError) as error:
                self._renew_index()
                if self._index == index:
                    if isinstance(error, _Disagreement):
                        _kept.distrust(self._key)
                    break
        by_time = len(self._index.times) and self._comes_in_order()
        yield from self._from_start(wanted, self._number_by_time if by_time else enumerate)

    def _renew_index(self) -> None:
        """After a disagreement: the index may be that of another file, or of this one as it was before."""
        _kept.forget(self._key)
        index = _kept.index(self._key, lambda: index_of(self._file))
        if (len(index), index.height, index.width) != (len(self), self.height, self.width):
            raise VideoError(self._file.path, "is not the file that was indexed, or was changed while it was read")
        self._index = index

    def _planned(self, wanted: Sequence[int]) -> Iterator[tuple[int, VideoFrame]]:
        """Frames by the index.

        Packets go to the decoder with their number in lieu of their time, so that a frame tells what it is made of.
        """
        index = self._index
        try:
            runs = index.runs(wanted)
        except ValueError as error:
            raise _Disagreement from error
        for run in runs:
            expected, members = iter(run.shown), dict(run.wanted)
            first = index.times[run.packets[0]]
            for frame in self._direct(run) if index.direct else self._demuxed(run):
                number = frame.pts
                if number is None or not 0 <= number < len(index.times):
                    raise _Disagreement
                if not index.flags[number] & SHOWN or index.times[number] < first:
                    continue
                if number != next(expected, None):
                    raise _Disagreement
                if number in members:
                    yield members.pop(number), frame
                    if not members:
                        break
            if members:
                raise _Disagreement

    def _direct(self, run: Run) -> Iterator[VideoFrame]:
        """Frames of packets that are read from the file without its container."""
        with _kept.decoder(self._index) as codec:
            for number, data in self._packets(run):
                packet: Packet[Any] = Packet(data)
                packet.pts = packet.dts = number
                self.packets_fed += 1
                yield from codec.decode(packet)
            yield from codec.decode(None)

    def _packets(self, run: Run) -> Iterator[tuple[int, bytes]]:
        index = self._index
        columns = (column[run.packets].tolist() for column in (index.positions, index.sizes, index.checksums))
        for piece in _pieces(list(zip(run.packets, *columns, strict=True))):
            start = min(position for _, position, _, _ in piece)
            end = max(position + size for _, position, size, _ in piece)
            data = self._file.bytes.read([(start, end - start)])[0]
            for number, position, size, checksum in piece:
                packet = data[position - start : position - start + size]
                if zlib.crc32(packet) != checksum:
                    raise _Disagreement
                yield number, packet

    def _demuxed(self, run: Run) -> Iterator[VideoFrame]:
        """Frames of packets that FFmpeg reads from the file's container."""
        if self._demuxer is None:
            self._demuxer = self._file.open()
        container, stream = self._demuxer
        index, first, fed = self._index, run.packets[0], set(run.packets)
        # Containers that seek by the time of presentation land on an earlier entry then.
        container.seek(int(index.decoding_times[first]), stream=stream)
        number = -1
        for packet in demuxed(container, stream):
            if number < 0 and not (packet.is_keyframe and packet.pts == index.times[first]):
                continue
            number = first if number < 0 else number + 1
            if not packet.size or packet.pts != index.times[number] or packet.size != index.sizes[number]:
                raise _Disagreement
            if number in fed:
                packet.pts = number
                self.packets_fed += 1
                yield from packet.decode()
            if number == run.packets[-1]:
                yield from stream.codec_context.decode(None)
                return
        raise _Disagreement

    def _from_start(
        self,
        wanted: Sequence[int],
        number: Callable[[Iterator[VideoFrame]], Iterator[tuple[int, VideoFrame]]],
    ) -> Iterator[tuple[int, VideoFrame]]:
        missing = set(wanted)
        with self._file.opened() as (container, stream):
            for index, frame in number(self._decode(demuxed(container, stream))):
                if index in missing:
                    missing.remove(index)
                    yield index, frame
                if index >= wanted[-1]:
                    break
        if missing:
            raise VideoError(self._file.path, f"damaged: frame {min(missing)} of {len(self)} does not come out")

    def _number_by_time(self, frames: Iterator[VideoFrame]) -> Iterator[tuple[int, VideoFrame]]:
        times = self._index.shown_times.tolist()
        return ((bisect_left(times, frame.pts or 0), frame) for frame in frames)

    def _comes_in_order(self) -> bool:
        """Whether times tell frames apart when the file is decoded from its beginning, as far as that goes."""
        known, last = set(self._index.shown_times.tolist()), None
        with self._file.opened() as (container, stream), suppress(av.FFmpegError):
            for frame in self._decode(demuxed(container, stream)):
                if frame.pts is None or frame.pts not in known or (last is not None and frame.pts <= last):
                    return False
                last = frame.pts
        return True

    def _decode(self, packets: Iterator[Packet[VideoStream]]) -> Iterator[VideoFrame]:
        for packet in packets:
            self.packets_fed += packet.size > 0
            yield from packet.decode()


class _Disagreement(Exception):
    """The index says one thing, the file or the decoder another."""


_kept = Kept()


def _pieces(packets: list[_Place]) -> Iterator[list[_Place]]:
    """Packets whose bytes are read in one go, as (number, position, size, checksum)."""
    piece: list[_Place] = []
    start = end = 0
    for packet in packets:
        _, position, size, _ = packet
        low, high = min(start, position), max(end, position + size)
        if piece and (high - low > _PIECE or position - end > _GAP or start - position - size > _GAP):
            yield piece
            piece = []
        start, end = (low, high) if piece else (position, position + size)
        piece.append(packet)
    if piece:
        yield piece
