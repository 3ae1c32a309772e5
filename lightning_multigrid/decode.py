"""Frames of a video file by their place in it: exactly those asked for, in presentation order.

A file is indexed once, from its packets. A frame is found by seeking to the last packet before it at which decoding can
begin, and decoding forward, no further than the last frame wanted. What comes out is compared with the index, frame by
frame; where they disagree the file is decoded from its beginning. First right, then fast.

T frames, H W pixels of a frame as it is shown, that is with its rotation applied. Times are pts, in ticks of the
stream's own clock.
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
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from itertools import dropwhile, pairwise
from typing import Any, NamedTuple

import av
import numpy as np
import torch
from av.container import InputContainer
from av.packet import Packet
from av.stream import Disposition
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from av.video.stream import VideoStream
from torch import Tensor

__all__ = ["Box", "Orientation", "VideoError", "VideoReader", "read_frames"]

# Containers that hold their own pictures. FFmpeg also follows playlists, concat scripts and image patterns, whatever
# their file is called: those name other files and hosts.
_CONTAINERS = "mov,matroska,avi,asf,flv,mpeg,mpegts,mpegvideo,ogg,ivf,gif,h264,hevc,m4v,mjpeg"
# 8192 x 8192, twice an 8K frame. A few bytes of a header can declare far more, and FFmpeg would allocate it.
_MAX_PIXELS = 2**26
# Frames that are decoded, to see that they come out as listed, before an index is believed.
_PROBE = 4
# Boxes of an mp4 file that are looked at: a day of fragments. A hostile file could have them by the million.
_MAX_BOXES = 100_000
# Frames listed by all the indices that a thread keeps: 8 MB.
_KEPT_FRAMES = 1_000_000
# From this version on PyAV's scaler starts a thread per core, for every frame, unless told not to.
_ONE_THREAD = {"threads": 1} if int(av.__version__.split(".")[0]) >= 17 else {}


class VideoError(ValueError):
    """A file that cannot be read as a video, or a frame that cannot be decoded. Its text is one line: "path: reason".

    Args:
        path: The file, as it was given.
        reason: What is wrong, for a person.
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


def read_frames(path: str | os.PathLike[str], indices: Sequence[int]) -> Tensor:
    """Frames of a video as a uint8 tensor T x H x W x 3 (RGB), one for each index, in the order of `indices`.

    Frames are counted from 0 in presentation order; repeats and any order are allowed.

    >>> read_frames("no_such_video.mp4", [0])
    Traceback (most recent call last):
    lightning_multigrid.decode.VideoError: no_such_video.mp4: there is no such file

    Raises:
        IndexError: If the video has no such frame.
        VideoError: If the file cannot be read as a video, or a frame cannot be decoded.
    """
    with VideoReader(path) as video:
        return video.read(indices)


class VideoReader:
    """A video file, open for reading until `close` or the end of a `with`. Its length is its number of frames.

    Args:
        path: An ordinary file on disk, whatever its name looks like.

    Attributes:
        height: H, in pixels.
        width: W, in pixels.
        orientation: How a frame as it is stored becomes one as it is shown.
        rate: Mean frames per second, 0.0 if unknown.
        packets_fed: Packets given to the decoder by `read` so far: what decoding costs, free of noise.

    Raises:
        VideoError: If the file is missing, damaged, cut short, no video, or has frames of more than 67 megapixels.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self.packets_fed = 0
        with _faults(self._path):
            key = _file_key(self._path)
            self._container, self._stream = _open(self._path)
            try:
                self._index = _kept.index(key, lambda: _build_index(self._path, self._container, self._stream))
            except BaseException:
                self.close()
                raise
        self.rate = self._index.rate
        self.orientation = self._index.orientation
        self.height, self.width = self.orientation.shown(self._index.height, self._index.width)

    def __enter__(self) -> VideoReader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self._index.length

    def close(self) -> None:
        """Lets go of the file."""
        self._container.close()

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
        places: dict[int, list[int]] = {}
        for place, index in enumerate(map(operator.index, indices)):
            if not 0 <= index < len(self):
                raise IndexError(f"`indices` must lie in 0 to {len(self) - 1} in {self._path}, got {index}.")
            places.setdefault(index, []).append(place)
        shown = Box(0, 0, self.height, self.width) if box is None else Box(*box)
        self._check(shown)
        orientation = self._index.orientation
        top, left, height, width = orientation.stored(shown, self.height, self.width)
        clip = torch.empty((len(indices), height, width, 3), dtype=torch.uint8)
        with _faults(self._path):
            for index, frame in self._find(sorted(places)):
                crop = self._rgb(frame)[top : top + height, left : left + width]
                for place in places[index]:
                    clip[place] = crop
        return orientation.show(clip)

    def frames(self) -> Iterator[tuple[int, VideoFrame]]:
        """All frames as they are stored, that is without the rotation, each with its index.

        They begin anew at 0 if the index proves wrong on the way. Times that tell nothing are left out.

        Raises:
            VideoError: If a frame cannot be decoded.
        """
        with _faults(self._path):
            for index, frame in self._find(range(len(self))):
                if not self._index.times:
                    frame.pts = None
                yield index, frame

    def _check(self, box: Box) -> None:
        top, left, height, width = box
        if min(box) < 0 or not height or not width or top + height > self.height or left + width > self.width:
            raise ValueError(f"`box` must lie within the frame of {self.height} x {self.width} pixels, got {box}.")

    def _rgb(self, frame: VideoFrame) -> Tensor:
        """Pixels of a frame as it is stored. A frame of another size than the first is scaled to that."""
        height, width = self._index.height, self._index.width
        scaler = _kept.scalers[frame.format.name]
        rgb = scaler.reformat(frame, width=width, height=height, format="rgb24", **_ONE_THREAD)
        plane = rgb.planes[0]
        return torch.frombuffer(plane, dtype=torch.uint8).as_strided((height, width, 3), (plane.line_size, 3, 1))

    def _find(self, wanted: Sequence[int]) -> Iterator[tuple[int, VideoFrame]]:
        """The frames of `wanted` (ascending) with their indices; some of them again if the index proves wrong."""
        if not wanted:
            return
        if not self._index.times:
            yield from self._from_start(wanted, enumerate)
            return
        try:
            yield from self._after_seeking(wanted)
        except (_Disagreement, av.FFmpegError):
            yield from self._from_start(wanted, self._number_by_time if self._comes_in_order() else enumerate)

    def _after_seeking(self, wanted: Sequence[int]) -> Iterator[tuple[int, VideoFrame]]:
        times = self._index.times
        for entry, run in _runs(wanted, times, self._index.entries):
            index, members = bisect_left(times, self._index.entries[entry]), set(run)
            for frame in self._decode_from(entry):
                if frame.pts != times[index]:
                    raise _Disagreement
                if index in members:
                    yield index, frame
                if index == run[-1]:
                    break
                index += 1
            else:
                raise _Disagreement

    def _from_start(
        self,
        wanted: Sequence[int],
        number: Callable[[Iterator[VideoFrame]], Iterator[tuple[int, VideoFrame]]],
    ) -> Iterator[tuple[int, VideoFrame]]:
        missing = set(wanted)
        container, stream = _open(self._path)
        with container:
            for index, frame in number(self._decode(_packets(container, stream))):
                if index in missing:
                    missing.remove(index)
                    yield index, frame
                if index >= wanted[-1]:
                    break
        if missing:
            raise VideoError(self._path, f"damaged: frame {min(missing)} of {len(self)} does not come out")

    def _number_by_time(self, frames: Iterator[VideoFrame]) -> Iterator[tuple[int, VideoFrame]]:
        return ((bisect_left(self._index.times, frame.pts or 0), frame) for frame in frames)

    def _comes_in_order(self) -> bool:
        """Whether times tell frames apart when the file is decoded from its beginning, as far as that goes."""
        known, last = set(self._index.times), -math.inf
        container, stream = _open(self._path)
        with container:
            try:
                for frame in self._decode(_packets(container, stream)):
                    if frame.pts is None or frame.pts <= last or frame.pts not in known:
                        return False
                    last = frame.pts
            except av.FFmpegError:
                pass
        return True

    def _decode_from(self, entry: int) -> Iterator[VideoFrame]:
        """Frames from an entry on. Those shown before it lead an open GOP: they may need what lies before."""
        start = self._index.entries[entry]
        frames = self._decode(self._packets_from(entry))
        return dropwhile(lambda frame: frame.pts is not None and frame.pts < start, frames)

    def _packets_from(self, entry: int) -> Iterator[Packet[VideoStream]]:
        self._container.seek(self._index.seeks[entry], stream=self._stream)
        packets = _packets(self._container, self._stream)
        for packet in packets:
            if packet.is_keyframe and packet.pts == self._index.entries[entry]:
                yield packet
                yield from packets
                return
        raise _Disagreement

    def _decode(self, packets: Iterator[Packet[VideoStream]]) -> Iterator[VideoFrame]:
        for packet in packets:
            self.packets_fed += 1
            yield from packet.decode()


class _Disagreement(Exception):
    """The index says one thing, the decoder another."""


@dataclass(frozen=True)
class Orientation:
    """How a frame as it is stored becomes one as it is shown: transposed first, then turned over."""

    transposed: bool
    upside_down: bool
    mirrored: bool

    @staticmethod
    def of(frame: VideoFrame) -> Orientation:
        try:
            side_data: Any = frame.side_data  # typed as if it held motion vectors only
            matrix = side_data.get("DISPLAYMATRIX")
        except ValueError:  # PyAV trips over kinds of side data that it doesn't know
            matrix = None
        if matrix is None:
            angle = math.radians(frame.rotation)
            a, b, c, d = math.cos(angle), -math.sin(angle), math.sin(angle), math.cos(angle)
        else:
            a, b, _, c, d, *_ = struct.unpack("9i", bytes(matrix))
        # x' = a x + c y, y' = b x + d y, turned to the nearest right angle.
        if abs(b) + abs(c) > abs(a) + abs(d):
            return Orientation(transposed=True, upside_down=b < 0, mirrored=c < 0)
        return Orientation(transposed=False, upside_down=d < 0, mirrored=a < 0)

    def shown(self, height: int, width: int) -> tuple[int, int]:
        return (width, height) if self.transposed else (height, width)

    def stored(self, box: Box, height: int, width: int) -> Box:
        """Where a box of the H x W pixels shown lies in the frame as it is stored."""
        top = height - box.top - box.height if self.upside_down else box.top
        left = width - box.left - box.width if self.mirrored else box.left
        return Box(left, top, box.width, box.height) if self.transposed else Box(top, left, box.height, box.width)

    def show_plane(self, plane: np.ndarray) -> np.ndarray:
        """Rows and columns of one plane as they are shown."""
        plane = plane.T if self.transposed else plane
        return plane[:: -1 if self.upside_down else 1, :: -1 if self.mirrored else 1]

    def show(self, clip: Tensor) -> Tensor:
        if self.transposed:
            clip = clip.transpose(1, 2)
        axes = [axis for axis, over in ((1, self.upside_down), (2, self.mirrored)) if over]
        return (clip.flip(axes) if axes else clip).contiguous()


@dataclass(frozen=True)
class _Index:
    """What a file holds.

    Args:
        length: Number of frames.
        times: Times of the frames, ascending; empty if frames can only be told by counting what the decoder gives out.
        entries: Times of the packets at which decoding can begin, ascending.
        seeks: Times to seek to for them: those of decoding. Containers that seek by pts then land on an earlier entry.
        height: Rows of a frame as it is stored.
        width: Columns of a frame as it is stored.
        orientation: How it is shown.
        rate: Mean frames per second, 0.0 if unknown.
    """

    length: int
    times: Sequence[int]
    entries: Sequence[int]
    seeks: Sequence[int]
    height: int
    width: int
    orientation: Orientation
    rate: float


class _Kept(threading.local):
    """What a thread keeps from one video to the next. Threads share nothing: a scaler does not bear two at a time."""

    def __init__(self) -> None:
        # A scaler holds megabytes, so there is none per file. One of its own for each pixel format: before PyAV 17 it
        # takes full-range frames for what came before them, and the other way round.
        self.scalers: defaultdict[str, VideoReformatter] = defaultdict(VideoReformatter)
        self._indices: dict[tuple[str, int, int], _Index] = {}
        self._frames = 0

    def index(self, key: tuple[str, int, int], build: Callable[[], _Index]) -> _Index:
        index = self._indices.pop(key, None)
        if index is None:
            index = build()
            self._frames += index.length
        self._indices[key] = index  # at the end: the first is the one unused for longest
        while self._frames > _KEPT_FRAMES and len(self._indices) > 1:
            self._frames -= self._indices.pop(next(iter(self._indices))).length
        return index


_kept = _Kept()


def _runs(wanted: Sequence[int], times: Sequence[int], entries: Sequence[int]) -> list[tuple[int, list[int]]]:
    """Frames that are decoded in one go, with the number of the entry to begin at. A seek pays if it skips a frame."""
    runs: list[tuple[int, list[int]]] = []
    for index in wanted:
        entry = bisect_right(entries, times[index]) - 1
        if runs and bisect_left(times, entries[entry]) <= runs[-1][1][-1] + 1:
            runs[-1][1].append(index)
        else:
            runs.append((entry, [index]))
    return runs


@contextmanager
def _faults(path: str) -> Iterator[None]:
    """Whatever a file makes FFmpeg or PyAV raise is a `VideoError`: a bit in a header can mean a UnicodeDecodeError."""
    try:
        yield
    except VideoError:
        raise
    except FileNotFoundError as error:
        raise VideoError(path, "there is no such file") from error
    except av.FFmpegError as error:
        # Some are MemoryErrors too, of a header that asks for more than there can be: a fault of the file like others.
        limit = f", or frames of more than {_MAX_PIXELS} pixels" if error.errno == errno.EINVAL else ""
        raise VideoError(path, f"damaged{limit} ({error.strerror})") from error
    except MemoryError:
        raise
    except Exception as error:
        raise VideoError(path, f"cannot be read ({type(error).__name__}: {error})") from error


def _file_key(path: str) -> tuple[str, int, int]:
    """What tells a file from others and from its former self: path, time of change, bytes."""
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):  # FFmpeg would wait for ever at a pipe that nobody writes to
        raise VideoError(path, "a directory" if stat.S_ISDIR(found.st_mode) else "not an ordinary file")
    if not found.st_size:
        raise VideoError(path, "empty, 0 bytes")
    if not os.access(path, os.R_OK):
        raise VideoError(path, "may not be read by this user")
    return path, found.st_mtime_ns, found.st_size


def _open(path: str) -> tuple[InputContainer, VideoStream]:
    try:
        container = av.open(
            f"file:{path}",  # "a:b.mp4" alone would be b.mp4 of the protocol a
            container_options={"format_whitelist": _CONTAINERS, "protocol_whitelist": "file"},
            metadata_errors="replace",
        )
    except av.FFmpegError as error:
        if error.errno == errno.EINVAL:
            raise VideoError(path, f"not a video in one of the containers {_CONTAINERS}") from error
        if isinstance(error, av.InvalidDataError):
            _refuse_cut_short(path)
            raise VideoError(path, f"no video, or damaged at its head ({error.strerror})") from error
        raise
    try:
        return container, _video_stream(path, container)
    except BaseException:
        container.close()
        raise


def _video_stream(path: str, container: InputContainer) -> VideoStream:
    # To FFmpeg the cover picture of a sound file is video.
    streams = [stream for stream in container.streams.video if not stream.disposition & Disposition.attached_pic]
    if not streams:
        raise VideoError(path, "holds no video, only other streams")
    codec = streams[0].codec_context
    if codec is None:
        raise VideoError(path, "holds video that this FFmpeg has no decoder for")
    if codec.width * codec.height > _MAX_PIXELS:
        raise VideoError(path, f"declares frames of {codec.width} x {codec.height} pixels, more than {_MAX_PIXELS}")
    codec.thread_count = 1  # the workers of a loader are the threads: FFmpeg's own cost more than they bring
    codec.options = {"max_pixels": str(_MAX_PIXELS)}
    return streams[0]


def _packets(container: InputContainer, stream: VideoStream) -> Iterator[Packet[VideoStream]]:
    """Packets in decoding order. The last is empty, and makes the decoder give out the frames that it still holds."""
    for packet in container.demux(stream):
        if packet.size or packet.dts is None:  # an empty sample on the way would end decoding
            yield packet


def _build_index(path: str, container: InputContainer, stream: VideoStream) -> _Index:
    _refuse_cut_short(path)
    codec = stream.codec_context
    probe: list[VideoFrame] = []
    times: list[int] = []
    entries: list[tuple[int, int]] = []
    # A program stream has a time per pack, not per frame: those between are made up, and others after a seek.
    regular, corrupt = container.format.name != "mpeg", False
    for packet in _packets(container, stream):
        if len(probe) < _PROBE:
            probe += packet.decode()
        if not packet.size:
            continue
        corrupt = packet.is_corrupt
        if packet.pts is None or _may_be_placeholder(codec, packet):
            regular = False
            continue
        if not packet.is_discard and _is_shown(codec, packet):  # edit lists discard
            times.append(packet.pts)
        if packet.is_keyframe and _is_entry(codec, packet):
            entries.append((packet.pts, packet.pts if packet.dts is None else packet.dts))
    if corrupt and container.format.name != "mpegts":  # a transport stream is cut anywhere
        raise VideoError(path, "cut short: its last packet is not all there")
    if not probe:
        raise VideoError(path, "holds no frame that can be decoded")
    times.sort()
    entries.sort()
    if not (
        regular
        and entries
        and entries[0][0] <= times[0]
        and [frame.pts for frame in probe] == times[: len(probe)]
        and all(now < later for now, later in pairwise(times))
    ):
        times, entries = [], []
    first = probe[0]
    rate = float(stream.average_rate or 0)
    if len(times) > 1 and stream.time_base is not None:
        rate = float((len(times) - 1) / ((times[-1] - times[0]) * stream.time_base))
    return _Index(
        length=len(times) or _count(path),
        times=array("q", times),
        entries=array("q", [time for time, _ in entries]),
        seeks=array("q", [decoding_time for _, decoding_time in entries]),
        height=first.height,
        width=first.width,
        orientation=Orientation.of(first),
        rate=rate,
    )


def _count(path: str) -> int:
    container, stream = _open(path)
    with container:
        return sum(len(packet.decode()) for packet in _packets(container, stream))


def _is_shown(codec: VideoCodecContext, packet: Packet[VideoStream]) -> bool:
    """Whether a frame comes of a packet. VP8 has frames only to refer to: bit 4 of the first byte, RFC 6386, 9.1."""
    return codec.name != "vp8" or bool(bytes(packet)[0] & 0x10)


def _may_be_placeholder(codec: VideoCodecContext, packet: Packet[VideoStream]) -> bool:
    """Whether a packet may stand for no picture of its own.

    "Packed" MPEG-4 of AVI files has two pictures in one packet, and then one of at most 8 bytes in lieu of the second;
    its frames come out with each other's times.
    """
    return codec.name == "mpeg4" and packet.size <= 8


def _is_entry(codec: VideoCodecContext, packet: Packet[VideoStream]) -> bool:
    """Whether what is shown from a keyframe on needs nothing before it.

    Containers also mark recovery points of H.264 and H.265, after which pictures may be wrong for a while. Only an IDR
    picture (H.264, NAL unit type 5) or any IRAP picture (H.265, types 16 to 21) is a clean start.
    """
    if codec.name == "h264":
        return any(header & 0x1F == 5 for header in _nal_headers(codec, bytes(packet)))
    if codec.name == "hevc":
        return any(16 <= header >> 1 & 0x3F <= 21 for header in _nal_headers(codec, bytes(packet)))
    return True


def _nal_headers(codec: VideoCodecContext, data: bytes) -> Iterator[int]:
    """First byte of each NAL unit of a packet: behind start codes, or behind lengths as in mp4 and Matroska."""
    extra = codec.extradata or b""
    if extra[:1] != b"\1":
        at = data.find(b"\0\0\1")
        while 0 <= at < len(data) - 3:
            yield data[at + 3]
            at = data.find(b"\0\0\1", at + 3)
        return
    bytes_of_length = (extra[4 if codec.name == "h264" else 21] & 3) + 1
    at = bytes_of_length
    while at < len(data):
        yield data[at]
        at += int.from_bytes(data[at - bytes_of_length : at], "big") + bytes_of_length


def _refuse_cut_short(path: str) -> None:
    """FFmpeg reads what is left of a file without a word; its outermost boxes tell how long it was."""
    size = os.path.getsize(path)
    with open(path, "rb", buffering=0) as file:
        promised = _promised_size(file)
    if promised > size:
        raise VideoError(path, f"cut short: {size} of {promised} bytes are there")


def _promised_size(file: FileIO) -> int:
    """Bytes that the outermost boxes of an mp4 or Matroska file claim; 0 for other files, or if they don't say."""
    head = file.read(4)
    if head == b"\x1a\x45\xdf\xa3":  # an EBML header, then the segment; RFC 8794
        file.seek(_ebml_size(file), os.SEEK_CUR)
        is_segment = file.read(4) == b"\x18\x53\x80\x67"
        size = _ebml_size(file)
        return file.tell() + size if is_segment else 0
    end = 0
    for _ in range(_MAX_BOXES):  # size and type of each box; ISO/IEC 14496-12, 4.2
        file.seek(end)
        head = file.read(16)
        size = int.from_bytes(head[:4], "big")
        if head[4:8] not in (b"ftyp", b"moov", b"mdat", b"moof", b"free", b"skip", b"wide", b"sidx", b"styp", b"uuid"):
            break
        if size == 1:
            size = int.from_bytes(head[8:16], "big")
        if size < 8:  # to the end of the file
            break
        end += size
    return end


def _ebml_size(file: FileIO) -> int:
    """A number whose leading zero bits tell its length; all ones: unknown, 0 here."""
    first = file.read(1)
    length = 9 - (first or b"\0")[0].bit_length()
    size = int.from_bytes(first + file.read(length - 1), "big") - (1 << 7 * length)
    return size if 0 <= size < (1 << 7 * length) - 1 else 0
