"""Frames decoded by torchcodec, where they are those of `VideoReader`, bit for bit; by that one elsewhere.

torchcodec opens whatever its FFmpeg takes for a video, scripts that name other files and hosts included. So it gets
bytes only, and only of mp4, mov and Matroska files that were recognised here.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_multigrid.decode import Box, VideoReader
from lightning_multigrid.kept import FileKey
from lightning_multigrid.nal import H264Packets
from lightning_multigrid.packet_index import ENTRY, Orientation, PacketIndex
from lightning_multigrid.video_file import VideoError, VideoFile, demuxed
from lightning_multigrid.watched_file import Cursor

__all__ = ["TorchcodecReader", "check_torchcodec"]

# What torchcodec may see, and where its frames were found to be the same: containers, codecs, and kinds of pixels.
_CONTAINERS = ("mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm")
_CODECS = ("h264", "hevc", "vp8", "vp9", "av1", "libdav1d")
_PIXELS = ("yuv420p", "yuvj420p", "yuv444p", "gray")
_BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide")
_EBML = b"\x1a\x45\xdf\xa3"
# Seconds by which a frame's time may differ from the index: some versions tell times in single precision.
_TOLERANCE = 1e-3
# Files that a thread remembers to have looked at.
_MOST_KEPT = 10_000


def check_torchcodec() -> None:
    """Raises unless torchcodec can decode.

    Raises:
        ImportError: If it is not installed, or finds no FFmpeg.
    """
    try:
        from torchcodec.decoders import VideoDecoder
    except (ImportError, OSError, RuntimeError) as error:  # some versions look for FFmpeg at once
        raise ImportError(_missing(error)) from error
    try:
        VideoDecoder(b"no video")
    except Exception as error:
        if "libtorchcodec" in str(error):
            raise ImportError(_missing(error)) from error


def _missing(error: Exception) -> str:
    return (
        f"`decoder` is 'torchcodec', which cannot be used ({str(error).partition(chr(10))[0]}). It needs "
        '`pip install "lightning-multigrid[torchcodec]"` in a version made for this PyTorch, and the shared libraries '
        "of FFmpeg where the system finds them. Or leave `decoder` at 'pyav', which needs neither."
    )


class TorchcodecReader:
    """A video file, for use like the `VideoReader` that it is made of.

    What torchcodec would give otherwise is read by that one: videos that are shown turned, interlaced or of more than
    8 bits, those of other containers and codecs, those with keyframes at which decoding cannot begin, damaged ones.

    Args:
        reader: The open video. It is closed with this one.

    Attributes:
        clips_decoded: How many calls of `read` torchcodec has answered.
    """

    def __init__(self, reader: VideoReader) -> None:
        self._reader = reader
        self._decoder: Any = None
        self.rate, self.height, self.width = reader.rate, reader.height, reader.width
        self.clips_decoded = 0

    def __enter__(self) -> TorchcodecReader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._reader)

    def time_of(self, frame: int) -> float:
        """See `VideoReader`."""
        return self._reader.time_of(frame)

    def close(self) -> None:
        """Lets go of the file."""
        self._decoder = None
        self._reader.close()

    def read(self, indices: Sequence[int], box: Box | None = None) -> Tensor:
        """Frames as a uint8 tensor T x H x W x 3 (RGB), as `VideoReader.read` gives them, with its errors."""
        try:
            frames = self._decode([operator.index(index) for index in indices], box)
        except (OSError, RuntimeError, ValueError, IndexError, VideoError):  # torchcodec's, which say less than ours
            frames = None
            self._decoder = None
        if frames is None:
            return self._reader.read(indices, box)
        self.clips_decoded += 1
        return frames

    def _decode(self, indices: list[int], box: Box | None) -> Tensor | None:
        """The frames, or None if they are for the other reader."""
        if not indices or not 0 <= min(indices) <= max(indices) < len(self):
            return None
        top, left, height, width = Box.of(box, self.height, self.width)
        time_base = _looked_at.time_base(self._reader)
        if time_base is None:
            return None
        if self._decoder is None:
            self._decoder = _opened(self._reader.file)
        if len(self._decoder) != len(self):
            return None
        batch = self._decoder.get_frames_at(indices)
        times = self._reader.index.shown_times[indices] * float(time_base)
        if float(np.abs(batch.pts_seconds.numpy() - times).max()) > _TOLERANCE:
            return None
        frames = batch.data[:, top : top + height, left : left + width]
        same = frames.dtype == torch.uint8 and tuple(frames.shape) == (len(indices), height, width, 3)
        return frames.clone() if same else None


def _opened(file: VideoFile) -> Any:
    """A decoder of bytes: torchcodec is told neither path nor name."""
    from torchcodec.decoders import VideoDecoder

    source = Cursor(file.bytes, "")
    return VideoDecoder(source, dimension_order="NHWC", num_ffmpeg_threads=1, seek_mode="exact", device="cpu")


class _LookedAt(threading.local):
    """What a thread knows of files."""

    def __init__(self) -> None:
        self._known: dict[FileKey, Fraction | None] = {}

    def time_base(self, reader: VideoReader) -> Fraction | None:
        """Seconds per unit of a video's times, or None if it is not for torchcodec."""
        file = reader.file
        key = file.path, file.bytes.modified, file.bytes.size
        if key not in self._known:
            self._known[key] = _time_base(reader)
            if len(self._known) > _MOST_KEPT:
                del self._known[next(iter(self._known))]
        return self._known[key]


_looked_at = _LookedAt()


def _time_base(reader: VideoReader) -> Fraction | None:
    index, file = reader.index, reader.file
    if not len(index.times) or index.orientation != Orientation() or not _begins_like_video(file):
        return None
    with file.faults(), file.opened() as (container, stream):
        codec = stream.codec_context
        known = container.format.name in _CONTAINERS and codec.name in _CODECS and codec.pix_fmt in _PIXELS
        if not known or (codec.name == "h264" and not H264Packets(codec.extradata or b"").frames_only):
            return None
        packets = (packet for packet in demuxed(container, stream) if packet.size)
        first = next(frame for packet in packets for frame in packet.decode())
        return None if first.interlaced_frame or not _entries_agree(file, index) else stream.time_base
    raise AssertionError  # for the type checker: `faults` swallows nothing


def _entries_agree(file: VideoFile, index: PacketIndex) -> bool:
    """Whether decoding can begin where the container says, which torchcodec believes."""
    with file.opened() as (container, stream):
        claimed = [packet.is_keyframe for packet in demuxed(container, stream) if packet.size]
    known: list[bool] = (index.flags & ENTRY != 0).tolist()
    return claimed == known


def _begins_like_video(file: VideoFile) -> bool:
    """Whether a file begins as mp4, mov or Matroska, and in no way as text.

    FFmpeg tells scripts by text, which to it ends with the first zero byte, whatever follows.
    """
    head = file.bytes.read([(0, 64)])[0]
    if head[:4] == _EBML:
        text, zero, _ = head.partition(b"\0")
        return bool(zero) and b"<" not in text and b"\n" not in text
    return head[:1] == b"\0" and head[4:8] in _BOXES
