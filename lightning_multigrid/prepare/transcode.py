"""Re-encodes a video so that clips of it decode fast: same frames, same times, upright, small.

Packets cost time (see `decode`), so they become few and cheap: short groups of pictures, many pictures that no other
one refers to, and no costly coding tools (arithmetic coding, loop filter, weighted prediction).
"""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from io import FileIO
from typing import Any, BinaryIO

import av
import numpy as np
from av.container import OutputContainer
from av.video.frame import VideoFrame
from av.video.reformatter import ColorRange, Colorspace, Interpolation, VideoReformatter

from lightning_multigrid.decode import (
    ONE_THREAD,
    FrameFolder,
    Orientation,
    VideoError,
    VideoReader,
    is_full_range,
    open_video,
)
from lightning_multigrid.files import require, sync_to_disk
from lightning_multigrid.prepare.workers import TaskFailure

_FINEST_CLOCK = 90_000  # ticks per second of the output's clock, at most; a coarser clock of a source is kept
_LONGEST_BREAK_SECONDS = 3600  # a longer one comes from a wrong time stamp; mp4 could not hold it


@dataclass(frozen=True)
class Encoding:
    """How videos are encoded (H.264, yuv420p, without sound). An argument outside its range is a ValueError.

    Args:
        short_side: Pixels of the shorter side, even. Smaller videos keep their size, up to a row or column that makes
            it odd.
        crf: Constant rate factor of x264, 0 (lossless) to 51: 6 more is about half the bytes.
        preset: How much time x264 may take. It hardly matters to decoding.
        gop: Frames from one keyframe to the next.
        b_frames: Frames between two that others refer to; no frame refers to these.
    """

    short_side: int = 256
    crf: float = 21.0
    preset: str = "medium"
    gop: int = 33
    b_frames: int = 15

    def __post_init__(self) -> None:
        even = self.short_side >= 16 and self.short_side % 2 == 0
        require(even, "short_side", self.short_side, "an even number of at least 16 pixels")
        require(0 <= self.crf <= 51, "crf", self.crf, "from 0 (lossless) to 51 (worst)")
        require(self.preset in _PRESETS, "preset", self.preset, f"one of {', '.join(_PRESETS)}")
        require(self.gop >= 1, "gop", self.gop, "at least 1 frame")
        require(0 <= self.b_frames <= 16, "b_frames", self.b_frames, "from 0 to 16, the limits of x264")

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Returns the height and width for a video of this size: the short side scaled down, both even."""
        scale = min(Fraction(1), Fraction(self.short_side, min(height, width)))
        # To the nearest even number, but not beyond the source.
        high, wide = (max(2, min(int(side * scale / 2 + Fraction(1, 2)), side // 2) * 2) for side in (height, width))
        return high, wide

    def options(self) -> dict[str, str]:
        """Options of FFmpeg's libx264."""
        return {
            "preset": self.preset,
            # Spend bits where they lower the squared error, not where an eye would want them.
            "tune": "psnr,fastdecode",
            "crf": f"{self.crf:g}",
            "g": str(self.gop),
            "keyint_min": str(self.gop),
            "sc_threshold": "0",
            "bf": str(self.b_frames),
            "b_strategy": "0",
            # In small videos x264's macroblock trees are a little different each time: it reads memory that was never
            # set.
            "x264-params": "b-pyramid=none:mbtree=0",
        }


_PRESETS = ("ultrafast", "superfast", "veryfast", "faster", "fast", "medium", "slow", "slower", "veryslow")


@dataclass(frozen=True)
class TranscodeJob:
    """A video, or with `frame_rate` a folder of frames, and its new `target`, whose folder exists."""

    source: str
    target: str
    encoding: Encoding
    frame_rate: float | None = None
    keep_damaged: bool = False  # write a damaged video as FFmpeg decodes it, without the frames that don't come out


@dataclass(frozen=True)
class Prepared:
    """A video that was made: number and pixels of its frames, and whether its source is damaged."""

    frames: int
    height: int
    width: int
    damaged: bool = False


def transcode(job: TranscodeJob, beat: Callable[[], None] = lambda: None) -> Prepared | TaskFailure | OSError:
    """Re-encodes a video: frame i of the target is frame i of the source, shown at the same time after the first.

    With a `Prepared` the target is complete and on the disk, else it is not there. An OSError is that of the disk.
    """
    failure: TaskFailure | OSError
    try:
        with open_video(job.source, job.frame_rate) as source:
            frames, damaged = _encode(source, job, beat)
            height, width = job.encoding.size(source.height, source.width)
        sync_to_disk(job.target)
        with VideoReader(job.target) as made:
            made.read([frames - 1])
            if (len(made), made.height, made.width) == (frames, height, width):
                return Prepared(frames, height, width, damaged)
            failure = TaskFailure(f"{frames} frames became {len(made)} of {made.height} x {made.width}")
    except VideoError as error:
        failure = TaskFailure(error.reason)
        if error.path == job.target and not os.path.exists(job.target):
            failure = OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    except av.FFmpegError as error:
        failure = TaskFailure(f"cannot be encoded ({error.strerror})")
    except OSError as error:
        failure = OSError(error.errno or 0, error.strerror or str(error))
    with suppress(OSError):
        os.remove(job.target)
    return failure


def _encode(source: VideoReader | FrameFolder, job: TranscodeJob, beat: Callable[[], None]) -> tuple[int, bool]:
    """Writes all frames, and returns how many there are, and whether the source is damaged."""
    listed = source.index.shown_times if isinstance(source, VideoReader) else np.empty(0, np.int64)
    found = _encode_at(listed, source, job, beat)
    damaged = bool(source.damage) or len(found) != len(source)
    if damaged and not job.keep_damaged:
        reason = str(source.damage) if source.damage else f"damaged: {len(found)} of {len(source)} frames come out"
        raise VideoError(job.source, reason)
    if damaged and len(listed) and found != listed.tolist():  # now it is known when what comes out is shown
        found = _encode_at(np.array([listed[0] if time is None else time for time in found]), source, job, beat)
    return len(found), damaged


def _encode_at(
    times: np.ndarray, source: VideoReader | FrameFolder, job: TranscodeJob, beat: Callable[[], None]
) -> list[int | None]:
    """Writes a frame for each of some times, or evenly spaced ones; returns the times of all frames in the source."""
    found: list[int | None] = []
    time_base, ticks = _clock(source, times)
    with _opened(job.target) as container:
        stream = container.add_stream("libx264", rate=_whole_rate(source.rate), options=job.encoding.options())
        for time, picture in _pictures(source, job.encoding):
            if not found:
                codec = stream.codec_context
                codec.width, codec.height, codec.pix_fmt = picture.width, picture.height, "yuv420p"
                codec.thread_count = 1  # there are other processes; and equal input makes equal bytes
                codec.colorspace, codec.color_range = picture.colorspace, ColorRange.MPEG
                stream.time_base = codec.time_base = time_base
            found.append(time)
            if len(found) <= len(ticks):
                picture.pts, picture.time_base = ticks[len(found) - 1], time_base
                container.mux(stream.encode(picture))
            beat()
        container.mux(stream.encode())
    return found


class _File(FileIO):
    """A file without a buffer, which FFmpeg has: so an error comes from the write that it belongs to."""

    refused: OSError | None = None  # by the system

    def write(self, data: Any) -> int:
        left = memoryview(data)
        try:
            while left:
                left = left[super().write(left) :]
        except OSError as error:  # FFmpeg may tell it as an error of its own
            self.refused = error
            raise
        return len(data)


@contextmanager
def _opened(path: str) -> Iterator[OutputContainer]:
    """Opens a new MP4 file, whose index will stand before its frames.

    Through files of ours: one that PyAV opens by a path (15 to 18) stays open for good if its end can't be written.
    """
    # Neither the muxer's version nor the time of day goes into the file.
    options = {"movflags": "+faststart", "fflags": "+bitexact"}
    with ExitStack() as files:
        file = files.enter_context(_File(path, "w+"))

        def read_again(url: str, flags: int, options: dict[str, str]) -> BinaryIO:  # to move frames behind the index
            return files.enter_context(open(path, "rb"))

        container = av.open(file, "w", format="mp4", options=options, io_open=read_again)
        try:
            yield container
            container.close()
        except av.FFmpegError:
            if file.refused is not None:
                raise file.refused from None
            raise
        finally:
            with suppress(OSError, av.FFmpegError):
                container.close()


def _whole_rate(rate: float) -> Fraction:
    """Frames per second for the encoder, which uses them only to share out the bytes among frames."""
    return Fraction(min(max(rate or 30.0, 1.0), 1000.0)).limit_denominator(1001)


def _clock(source: VideoReader | FrameFolder, times: np.ndarray) -> tuple[Fraction, list[int]]:
    """Seconds per tick, and the tick at which each frame is shown: as in the source, from 0, with faults mended."""
    usual = 1 / _whole_rate(source.rate)
    listed = source.index.shown_times if isinstance(source, VideoReader) else times
    if len(listed) < 2 or not source.rate:
        return usual, list(range(len(source)))
    steps = np.diff(times).astype(np.float64)
    # The mean rate gives the length of the source's tick.
    tick = Fraction((len(listed) - 1) / (source.rate * float(listed[-1] - listed[0]))).limit_denominator(10**10)
    base = max(tick, Fraction(1, _FINEST_CLOCK))
    steps[steps * float(tick) > _LONGEST_BREAK_SECONDS] = float(usual / tick) if tick else 1.0
    later = np.rint(np.cumsum(steps) * float(tick / base)).astype(np.int64)
    # Each frame is at least a tick after the one before.
    ticks = np.concatenate([[0], later]) - np.arange(len(times))
    return base, (np.maximum.accumulate(ticks) + np.arange(len(times))).tolist()


def _pictures(source: VideoReader | FrameFolder, encoding: Encoding) -> Iterator[tuple[int | None, VideoFrame]]:
    """All frames, each with its time in the source, ready to be encoded: small, upright, yuv420p of limited range."""
    frames: Iterator[VideoFrame]
    if isinstance(source, VideoReader):
        frames, turn = source.frames(), source.index.orientation
    else:
        images = (source.read([index])[0].numpy() for index in range(len(source)))
        frames, turn = (VideoFrame.from_ndarray(image, format="rgb24") for image in images), Orientation()
    height, width = encoding.size(source.height, source.width)
    if turn.transposed:
        height, width = width, height
    scaler = VideoReformatter()
    for frame in frames:
        scaled = scaler.reformat(
            frame,
            width=width,
            height=height,
            format="yuv420p",
            interpolation=Interpolation.BICUBIC,
            src_color_range=ColorRange.JPEG if is_full_range(frame) else ColorRange.MPEG,
            dst_color_range=ColorRange.MPEG,
            # RGB has no matrix; it gets the one that readers take where none is named.
            dst_colorspace=Colorspace.ITU601 if frame.format.is_rgb else None,
            **ONE_THREAD,
        )
        time = frame.pts  # `scaled` may be this very frame, and get another time
        upright = _upright(scaled, turn)
        upright.pict_type = 0  # else the encoder would keep the source's picture types
        yield time, upright


def _upright(frame: VideoFrame, turn: Orientation) -> VideoFrame:
    if turn == Orientation():
        return frame
    packed = frame.to_ndarray()
    luma, chroma = packed[: frame.height], packed[frame.height :].reshape(2, frame.height // 2, frame.width // 2)
    planes = [plane.T if turn.transposed else plane for plane in (luma, *chroma)]
    shown = [plane[:: -1 if turn.upside_down else 1, :: -1 if turn.mirrored else 1] for plane in planes]
    array = np.concatenate([plane.reshape(-1) for plane in shown]).reshape(-1, shown[0].shape[1])
    turned = VideoFrame.from_ndarray(array, format="yuv420p")
    turned.colorspace, turned.color_range = frame.colorspace, frame.color_range
    return turned
