"""Re-encodes a video so that clips of it decode fast: same frames, same times, upright, small, of square pixels.

Packets cost time (see `decode`), so they become few and cheap: short groups of pictures, many pictures that no other
one refers to, and no costly coding tools (arithmetic coding, loop filter, weighted prediction).
"""

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from io import FileIO
from typing import Any, BinaryIO, Final, NamedTuple

import av
import numpy as np
from av.container import OutputContainer
from av.video.frame import VideoFrame
from av.video.reformatter import ColorRange, Colorspace, Interpolation, VideoReformatter

from lightning_multigrid.decode import (
    FrameFolder,
    FrameTable,
    FullDecode,
    Orientation,
    VideoError,
    append_table,
    is_full_range,
    make_table,
)
from lightning_multigrid.files import require, sync_to_disk
from lightning_multigrid.prepare.processes import TaskFailure

DAMAGED = " damaged"
"""So ends what a video was made from, if that is damaged."""

_ENCODER: Final = "libx264"
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


def require_encoder() -> None:
    """Raises a ValueError if this FFmpeg can't encode H.264."""
    try:
        av.Codec(_ENCODER, "w")
    except ValueError:  # PyAV's UnknownCodecError
        raise ValueError(
            f"`prepare` needs the encoder {_ENCODER}, which this FFmpeg lacks. The wheels of PyAV have it: "
            "`pip install --force-reinstall av`. Or train on the videos as they are, after `lightning-multigrid index`."
        ) from None


_PRESETS = ("ultrafast", "superfast", "veryfast", "faster", "fast", "medium", "slow", "slower", "veryslow")


@dataclass(frozen=True)
class TranscodeJob:
    """A video, or with `frame_rate` a folder of frames, and its new `target`, whose folder exists."""

    source: str
    target: str
    encoding: Encoding
    frame_rate: float | None = None
    keep_damaged: bool = False  # write a damaged video as FFmpeg decodes it, without the frames that don't come out
    made_from: str = ""  # for the table of the target


class _Written(NamedTuple):
    """Number and pixels of the frames that were encoded."""

    frames: int
    height: int
    width: int


def transcode(job: TranscodeJob) -> FrameTable | TaskFailure | OSError:
    """Re-encodes a video: frame i of the target is frame i of the source, shown at the same time after the first.

    The source is decoded once, the target once more for its table, which stands behind it.

    Returns:
        The table; then the target is complete and on the disk, else it is not there. An OSError is the disk's.
    """
    failure: TaskFailure | OSError
    try:
        written, source = _encode(job)
        table = make_table(job.target)
        if (len(table), table.height, table.width) == written:
            damaged, notes = (bool(source.damage), source.notes) if source is not None else (False, ())
            table = replace(table, made_from=job.made_from + DAMAGED * damaged, notes=notes)
            table = append_table(job.target, table)
            sync_to_disk(job.target)
            return table
        expected = f"{written.frames} frames of {written.height} x {written.width}"
        failure = TaskFailure(f"{expected} became {len(table)} of {table.height} x {table.width}")
    except VideoError as error:
        failure = TaskFailure(error.reason)
        if error.path == job.target and not os.path.exists(job.target):
            failure = OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    except av.FFmpegError as error:
        failure = TaskFailure(f"cannot be encoded ({error.strerror})", killed=error.errno == errno.ENOMEM)
    except OSError as error:
        failure = OSError(error.errno or 0, error.strerror or str(error))
    with suppress(OSError):
        os.remove(job.target)
    return failure


def _encode(job: TranscodeJob) -> tuple[_Written, FrameTable | None]:
    """Writes all frames of a video or a folder of them. Returns the table of a video, too."""
    if job.frame_rate is not None:
        folder = FrameFolder(job.source, job.frame_rate)
        images = (folder.read([index])[0].numpy() for index in range(len(folder)))
        frames = (VideoFrame.from_ndarray(image, format="rgb24") for image in images)
        return _write(job, frames, folder, Orientation(), _Clock(job.frame_rate)), None
    for evenly in (False, True):
        with FullDecode(job.source) as source:
            clock = _Clock(source.rate, evenly)
            written = _write(job, iter(source), source, None, clock)
            table = source.table(entries=False)
        if table.damage and not job.keep_damaged:
            raise VideoError(job.source, str(table.damage))
        if len(table.times) or not clock.has_times:
            break  # else some frames have no time, or that of an earlier one, which shows only at the end
    return written, table


def _write(
    job: TranscodeJob,
    frames: Iterator[VideoFrame],
    source: FullDecode | FrameFolder,
    turn: Orientation | None,
    clock: "_Clock",
) -> _Written:
    """Encodes frames, to be turned as is given or as the source says once its first frame is there."""
    number = height = width = 0
    scaler = VideoReformatter()
    with _opened(job.target) as container:
        stream = container.add_stream(_ENCODER, rate=_whole_rate(source.rate), options=job.encoding.options())
        for number, frame in enumerate(frames, 1):
            turned = source.orientation if turn is None and isinstance(source, FullDecode) else turn or Orientation()
            ticks = clock.ticks(frame)  # before the frame is scaled, which may leave it as it is
            if number == 1:
                height, width = job.encoding.size(source.height, source.width)
            picture = _picture(scaler, frame, (width, height) if turned.transposed else (height, width), turned)
            if number == 1:
                codec = stream.codec_context
                codec.width, codec.height, codec.pix_fmt = picture.width, picture.height, "yuv420p"
                codec.thread_count = 1  # there are other processes; and equal input makes equal bytes
                codec.colorspace, codec.color_range = picture.colorspace, ColorRange.MPEG
                stream.time_base = codec.time_base = clock.base
            picture.pts, picture.time_base = ticks, clock.base
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
    return _Written(number, height, width)


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


class _Clock:
    """When frames are shown, in ticks from the first: as in the source, with faults mended, or evenly.

    Attributes:
        base: Seconds per tick, once the first frame was asked for.
        has_times: Whether any frame was shown at its own time.
    """

    def __init__(self, rate: float, evenly: bool = True) -> None:
        self._usual, self._evenly = 1 / _whole_rate(rate), evenly
        self.base, self.has_times = self._usual, False
        self._tick: Fraction | None = None  # of the source; the frames that come out last don't have it
        self._before: Fraction | None = None
        self._ticks, self._seconds = -1, Fraction(0)

    def ticks(self, frame: VideoFrame) -> int:
        if self._ticks < 0 and not self._evenly and frame.time_base:
            self._tick = frame.time_base
            self.base = max(self._tick, Fraction(1, _FINEST_CLOCK))
        time = None if self._tick is None or frame.pts is None else frame.pts * self._tick
        if self._ticks >= 0:
            step = self._usual if time is None or self._before is None else time - self._before
            self.has_times |= time is not None
            self._seconds += self._usual if step > _LONGEST_BREAK_SECONDS else step
        self._before = time
        # Each frame is at least a tick after the one before.
        self._ticks = max(self._ticks + 1, round(self._seconds / self.base))
        return self._ticks


def _picture(scaler: VideoReformatter, frame: VideoFrame, size: tuple[int, int], turn: Orientation) -> VideoFrame:
    """A frame ready to be encoded: of some rows and columns as it is stored, upright, yuv420p of limited range."""
    scaled = scaler.reformat(
        frame,
        width=size[1],
        height=size[0],
        format="yuv420p",
        interpolation=Interpolation.BICUBIC,
        src_color_range=ColorRange.JPEG if is_full_range(frame) else ColorRange.MPEG,
        dst_color_range=ColorRange.MPEG,
        # RGB has no matrix; it gets the one that readers take where none is named.
        dst_colorspace=Colorspace.ITU601 if frame.format.is_rgb else None,
        threads=1,
    )
    upright = _upright(scaled, turn)
    upright.pict_type = 0  # else the encoder would keep the source's picture types
    return upright


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
