"""Frames of a video file by their number; see `README.md`. T frames, H W pixels of a frame as it is shown."""

import operator
import os
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import Any

import av
import torch
from av.container import InputContainer
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from torch import Tensor

from lightning_multigrid.decode.frame_pixels import Box, Pixels, rgb_pixels, show, stored, yuv_format, yuv_planes
from lightning_multigrid.decode.packet_index import SHOWN, TIMED, Orientation, PacketIndex
from lightning_multigrid.decode.ranges import PacketRange, packet_ranges
from lightning_multigrid.decode.scan import index_of, is_sealed
from lightning_multigrid.decode.thread_cache import ThreadCache
from lightning_multigrid.decode.video_file import Damage, VideoError, VideoFile, demuxed
from lightning_multigrid.files import StrPath
from lightning_multigrid.pixels import YuvClip, YuvFormat

_PIECE, _GAP = 1 << 22, 1 << 16  # most bytes of one read, and of a gap that is read along with packets

_Place = tuple[int, int, int, int]


def places_of(indices: Sequence[int], length: int, path: str) -> dict[int, list[int]]:
    """Maps each frame of a clip to its places in the clip, or raises an IndexError if the video has no such frame."""
    places: dict[int, list[int]] = {}
    for place, index in enumerate(map(operator.index, indices)):
        if not 0 <= index < length:
            raise IndexError(f"`indices` must lie in 0 to {length - 1} in {path}, got {index}.")
        places.setdefault(index, []).append(place)
    return places


def read_frames(path: StrPath, indices: Sequence[int]) -> Tensor:
    """Reads frames of a video as a uint8 tensor T x H x W x 3 (RGB), one for each index, in the order of `indices`.

    Frames are counted from 0 in presentation order; repeats and any order are allowed. What is counted are the frames
    that the file holds: one that can't be decoded keeps its number, and asking for it is an error, while a sequential
    decode leaves it out and counts on. Where packets have no usable times, frames are counted as they come out.

    Raises:
        IndexError: If the video has no such frame.
        VideoError: If the file can't be read as a video, or a frame can't be decoded.
    """
    with VideoReader(path) as video:
        return video.read(indices)


def build_index(path: StrPath, *, read_timeout: float = 60.0) -> PacketIndex:
    """Builds the index of a video file, for `VideoReader`. Arguments and errors are those of `VideoReader`."""
    with closing(VideoFile(os.fspath(path), read_timeout)) as file:
        return index_of(file)


class VideoReader:
    """A video file, open for reading until `close` or the end of a `with`. Its length is its number of frames.

    A `VideoError` if the file is missing, damaged, cut short, no video, too slow, or has frames above 67 megapixels.

    Args:
        path: An ordinary file on disk, whatever its name looks like, or a URL that fsspec knows (`s3://bucket/a.mp4`).
        index: The file's index from `build_index`. If it is None, or the file has changed, the reader builds one.
        read_timeout: Seconds that a read of the file may take before it is an error.

    Attributes:
        file: The open file.
        index: The index of the file.
        height: H, in pixels.
        width: W, in pixels.
        rate: Mean frames per second, 0.0 if unknown.
        packets_fed: Packets given to the decoder so far: the cost of decoding, free of noise.
        damage: What FFmpeg reported where the file had to be decoded from its beginning, as damaged ones have to be.
    """

    def __init__(self, path: StrPath, index: PacketIndex | None = None, *, read_timeout: float = 60.0) -> None:
        self.file = VideoFile(os.fspath(path), read_timeout)
        self._key = self.file.path, self.file.bytes.modified, self.file.bytes.size
        self._demuxer: tuple[InputContainer, VideoStream] | None = None
        self.packets_fed = 0
        self.damage = Damage()
        try:
            with self.file.faults():
                if index is None or not is_sealed(index, self.file):
                    index = _cache.index(self._key, lambda: index_of(self.file))
        except BaseException:
            self.close()
            raise
        self.index = index
        self.rate, self.height, self.width = index.rate, index.height, index.width

    def __enter__(self) -> "VideoReader":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self.index)

    def close(self) -> None:
        self._close_demuxer()
        self.file.close()

    def _close_demuxer(self) -> None:
        if self._demuxer is not None:
            self._demuxer[0].close()
            self._demuxer = None

    def read(self, indices: Sequence[int], box: Box | None = None) -> Tensor:
        """Reads frames as a uint8 tensor T x H x W x 3 (RGB), one for each index, in the order of `indices`.

        Args:
            indices: Frames, counted from 0 in presentation order; repeats and any order are allowed.
            box: The part of each frame to return, whose height and width are H and W. The whole frame if None.

        Raises:
            IndexError: If the video has no such frame.
            ValueError: If `box` does not lie within the frame.
            VideoError: If a frame cannot be decoded.
        """
        clip = self._clip(indices, box, yuv=False)
        assert isinstance(clip, Tensor)
        return clip

    def read_yuv(self, indices: Sequence[int], box: Box | None = None) -> YuvClip | Tensor:
        """Reads frames as they are stored, if that is YUV 4:2:0 of 8 bits, and otherwise as `read` does.

        It also does as `read` does for frames of odd height, frames that are turned to be shown, colours other than
        BT.601's and BT.709's, and clips whose frames differ in these. The colours are those of `read` within 3 of 255.
        Arguments and errors are those of `read`; the box may begin at any pixel.
        """
        # FFmpeg's converter interpolates the chroma of frames of odd height.
        return self._clip(indices, box, yuv=self.index.orientation == Orientation() and self.index.height % 2 == 0)

    def _clip(self, indices: Sequence[int], box: Box | None, *, yuv: bool) -> YuvClip | Tensor:
        """Reads a clip as RGB, or if `yuv` and its frames allow that, as they are stored."""
        places = places_of(indices, len(self), self.file.path)
        shown = Box.of(box, self.height, self.width)
        size = self.index.stored_height, self.index.stored_width
        format: YuvFormat | None = None
        clip: YuvClip | Tensor = torch.empty((0, shown.height, shown.width, 3), dtype=torch.uint8)
        targets: tuple[Pixels, ...] = ()  # the parts of the clip to which parts of a frame are written
        with self.file.faults():
            for index, frame in self._find(sorted(places)):
                self._refuse_other_turn(index, frame)
                own = yuv_format(frame, len(indices), shown) if yuv and (frame.height, frame.width) == size else None
                if targets and own != format:
                    return self.read(indices, box)  # the first frame is not like this one
                if not targets:
                    format = own
                    if own is None:
                        top, left, height, width = stored(shown, self.index.orientation, self.height, self.width)
                        clip = torch.empty((len(indices), height, width, 3), dtype=torch.uint8)
                        targets = (clip.numpy(),)
                    else:
                        clip = own.view(torch.empty(own.nbytes, dtype=torch.uint8))
                        chroma = clip.chroma.numpy()
                        targets = clip.luma.numpy(), chroma[:, 0], chroma[:, 1]
                rgb = self._rgb(frame)[top : top + height, left : left + width] if own is None else None
                for target, part in zip(targets, yuv_planes(frame, shown) if rgb is None else (rgb,), strict=True):
                    for place in places[index]:
                        target[place] = part
        return show(clip, self.index.orientation) if targets and isinstance(clip, Tensor) else clip

    def frames(self) -> Iterator[VideoFrame]:
        """Decodes all frames as they are stored, without the rotation, from the beginning and past damage.

        Behind the last of them `damage` is that of the whole video.
        """
        with self.file.faults(), closing(self._sequential(self.index.shown_times.tolist())) as frames:
            for index, frame in frames:
                self._refuse_other_turn(index, frame)
                yield frame

    def time_of(self, frame: int) -> float:
        """Seconds from the first frame to another one, or to the end of the last; for videos of a known rate."""
        return self.index.time_of(frame)

    def _rgb(self, frame: VideoFrame) -> Pixels:
        """Pixels of a stored frame, scaled to the size of the first frame if it has another."""
        scaler = _cache.scalers[frame.format.name]
        return rgb_pixels(frame, scaler, self.index.stored_height, self.index.stored_width)

    def _refuse_other_turn(self, index: int, frame: VideoFrame) -> None:
        """Raises a `VideoError` if a frame is to be turned otherwise than the first; all are shown as that is."""
        # Frames without a display matrix ask for no turn. A decoder that works without the container gives none out.
        if round(frame.rotation / 90) % 4 not in (0, self.index.orientation.quarter_turns):
            raise VideoError(self.file.path, f"frame {index} is to be turned otherwise than the first")

    def _find(self, wanted: Sequence[int]) -> Iterator[tuple[int, VideoFrame]]:
        """Decodes the frames `wanted` (ascending), each with its number; some of them again if the index is wrong."""
        if not wanted:
            return
        for _ in range(2):
            index, kept = self.index, self._demuxer is not None
            if not len(index.times):
                break
            try:
                yield from self._by_index(wanted)
                return
            except (_Disagreement, av.FFmpegError):
                # What has decoded may hold parts of a damaged file, which could show in the next frames.
                _cache.forget_decoder(index)
                self._close_demuxer()
                self._renew_index()
                if self.index == index and not kept:
                    break
        yield from self._from_start(wanted)

    def _renew_index(self) -> None:
        """Rebuilds the index after the first disagreement: it may be another file's, or older than the file."""
        if self._key not in _cache.by_time:
            _cache.forget(self._key)
        index = _cache.index(self._key, lambda: index_of(self.file))
        if (len(index), index.height, index.width) != (len(self), self.height, self.width):
            raise VideoError(self.file.path, "is not the file that was indexed, or was changed while it was read")
        self.index = index

    def _by_index(self, wanted: Sequence[int]) -> Iterator[tuple[int, VideoFrame]]:
        """Decodes the packets that the index names. Packets get numbers in place of times, and so do their frames."""
        try:
            ranges = packet_ranges(self.index, wanted)
        except ValueError as error:
            raise _Disagreement from error
        for packet_range in ranges:
            with closing(self._direct(packet_range) if self.index.direct else self._demuxed(packet_range)) as decoded:
                yield from self._checked(packet_range, decoded)

    def _checked(self, packet_range: PacketRange, decoded: Iterator[VideoFrame]) -> Iterator[tuple[int, VideoFrame]]:
        """Compares decoded frames with the index, and yields those that are wanted, each with its number."""
        index = self.index
        expected, missing = iter(packet_range.shown), dict(packet_range.wanted)
        entry = packet_range.packets[0]
        for frame in decoded:
            number = frame.pts
            if number is None or not 0 <= number < len(index.times) or frame.is_corrupt:
                raise _Disagreement
            if not index.flags[number] & SHOWN or index.times[number] < index.times[entry]:
                continue
            # What is shown from an entry that is no keyframe may need something before it.
            if number != next(expected, None) or (number == entry and not frame.key_frame):
                raise _Disagreement
            # FFmpeg may take it from the frame before whether a frame of H.264 is interlaced, and so is converted.
            if frame.interlaced_frame and index.flags[number] & TIMED:
                raise _Disagreement
            if number in missing:
                yield missing.pop(number), frame
                if not missing:
                    return
        raise _Disagreement

    def _direct(self, packet_range: PacketRange) -> Generator[VideoFrame, None, None]:
        """Decodes packets that this reader reads from the file itself."""
        with _cache.decoder(self.index) as codec:
            for number, data in self._packets(packet_range.packets):
                packet: Packet[Any] = Packet(data)
                packet.pts = packet.dts = number
                self.packets_fed += 1
                yield from codec.decode(packet)
            yield from codec.decode(None)

    def _packets(self, numbers: list[int]) -> Iterator[tuple[int, bytes]]:
        index = self.index
        columns = (column[numbers].tolist() for column in (index.positions, index.sizes, index.checksums))
        for start, end, piece in _pieces(list(zip(numbers, *columns, strict=True))):
            data = self.file.bytes.read([(start, end - start)])[0]
            for number, position, size, checksum in piece:
                packet = data[position - start : position - start + size]
                if zlib.crc32(packet) != checksum:
                    raise _Disagreement
                yield number, packet

    def _demuxed(self, packet_range: PacketRange) -> Generator[VideoFrame, None, None]:
        """Decodes packets that FFmpeg reads from the file's container."""
        if self._demuxer is None:
            self._demuxer = self.file.open(strict=True)
        container, stream = self._demuxer
        index, first, needed = self.index, packet_range.packets[0], set(packet_range.packets)
        # A container that takes this for a time of presentation seeks to an earlier entry.
        container.seek(int(index.decoding_times[first]), stream=stream)
        number = -1
        for packet in demuxed(container, stream):
            if number < 0 and not (packet.is_keyframe and packet.pts == index.times[first]):
                continue
            number = first if number < 0 else number + 1
            # After a seek some containers give packets other times than before.
            if packet.pts != index.times[number] or zlib.crc32(packet) != index.checksums[number]:
                raise _Disagreement
            if number in needed:
                packet.pts = number
                self.packets_fed += 1
                yield from packet.decode()
            if number == packet_range.packets[-1]:
                yield from stream.codec_context.decode(None)
                return
        raise _Disagreement

    def _from_start(self, wanted: Sequence[int]) -> Iterator[tuple[int, VideoFrame]]:
        """Decodes the file from its beginning, past damage, and finds frames by their times, or by counting them."""
        times, missing = self.index.shown_times.tolist(), set(wanted)
        by_time = bool(times) and _cache.is_by_time(self._key, self._is_by_time)
        with closing(self._sequential(times if by_time else [])) as frames:
            for number, frame in frames:
                if number in missing:
                    missing.remove(number)
                    yield number, frame
                    if not missing:
                        return
        self.file.check_reads()
        raise VideoError(self.file.path, f"damaged: frame {min(missing)} of {len(self)} does not come out")

    def _is_by_time(self) -> bool:
        """Whether times tell frames apart: unless all come out, and in another order than that of their times."""
        met = Damage()
        numbers = [number for number, _ in self.file.sequential(self.index.shown_times.tolist(), met)]
        return bool(met.refused) or len(numbers) != len(self) or numbers == list(range(len(self)))

    def _sequential(self, times: list[int]) -> Generator[tuple[int, VideoFrame], None, None]:
        """Decodes the file from its beginning. Notes what that costs, and the damage."""
        met = Damage()
        try:
            yield from self.file.sequential(times, met)
        finally:
            self.packets_fed += met.packets_fed
            self.damage = met or self.damage


class _Disagreement(Exception):
    """The index says one thing, the file or the decoder says another."""


_cache = ThreadCache()


def _pieces(packets: list[_Place]) -> Iterator[tuple[int, int, list[_Place]]]:
    """Groups packets, each (number, position, size, checksum), whose bytes from start to end are read in one go."""
    piece: list[_Place] = []
    start = end = 0
    for packet in packets:
        _, position, size, _ = packet
        low, high = min(start, position), max(end, position + size)
        if piece and (high - low > _PIECE or position - end > _GAP or start - position - size > _GAP):
            yield start, end, piece
            piece = []
        start, end = (low, high) if piece else (position, position + size)
        piece.append(packet)
    if piece:
        yield start, end, piece
