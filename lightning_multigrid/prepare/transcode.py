"""Writes a video anew so that clips of it are read fast: same frames, same times, upright, small, of square pixels.

As H.264, packets cost time (see `decode`), so they become few and cheap: short groups of pictures, many pictures that
no other one refers to, and no costly coding tools (arithmetic coding, loop filter, weighted prediction). As planes,
frames are stored as the encoder would get them, and nothing is decoded any more.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import BinaryIO, ClassVar, Final

import av
import numpy as np
from av.video.frame import VideoFrame
from av.video.reformatter import ColorRange, Colorspace, Interpolation, VideoReformatter

from lightning_multigrid.decode import (
    FrameClock,
    Orientation,
    PlaneWriter,
    Video,
    VideoError,
    append_table,
    is_full_range,
    make_table,
    open_whole,
)
from lightning_multigrid.files import PLANES_SUFFIX, new_file, require

ENCODER: Final = "libx264"
_PRESETS = ("ultrafast", "superfast", "veryfast", "faster", "fast", "medium", "slow", "slower", "veryslow")
_UNNAMED = 2  # a matrix, as ITU-T H.273 counts them
_FINEST_CLOCK = 90_000  # ticks per second of the output's clock, at most; a coarser clock of a source stays


@dataclass(frozen=True)
class Encoding:
    """How videos are encoded (H.264, yuv420p, without sound). An argument outside its range is a ValueError.

    Args:
        short_side: Pixels of the shorter side, even. Smaller videos keep their size, but for an odd row or column.
        crf: Constant rate factor of x264, 0 (lossless) to 51: 6 more is about half the bytes.
        preset: How much time x264 may take. Faster ones make more bytes (docs/evidence.md), and decode no faster.
    """

    short_side: int = 256
    crf: float = 21.0
    preset: str = "medium"
    suffix: ClassVar[str] = ".mp4"

    def __post_init__(self) -> None:
        even = self.short_side >= 16 and self.short_side % 2 == 0
        require(even, "short_side", self.short_side, "an even number of at least 16 pixels")
        require(0 <= self.crf <= 51, "crf", self.crf, "from 0 (lossless) to 51 (worst)")
        require(self.preset in _PRESETS, "preset", self.preset, f"one of {', '.join(_PRESETS)}")

    def size(self, height: int, width: int) -> tuple[int, int]:
        scale = min(Fraction(1), Fraction(self.short_side, min(height, width)))
        # To the nearest even number, but not beyond the source.
        high, wide = (max(2, min(int(side * scale / 2 + Fraction(1, 2)), side // 2) * 2) for side in (height, width))
        return high, wide

    def options(self) -> dict[str, str]:
        return {
            "preset": self.preset,
            # Spend bits where they lower the squared error, not where an eye would want them.
            "tune": "psnr,fastdecode",
            "crf": f"{self.crf:g}",
            # A keyframe every 33 frames; 15 frames to which none refers between two others.
            "g": "33",
            "keyint_min": "33",
            "sc_threshold": "0",
            "bf": "15",
            "b_strategy": "0",
            # In small videos x264's macroblock trees are a little different each time, as if from unset memory.
            "x264-params": "b-pyramid=none:mbtree=0",
        }


@dataclass(frozen=True)
class Planes:
    """How videos are stored as decoded planes: no second loss, and clips that need no decoder, for many bytes."""

    short_side: int = 256
    suffix: ClassVar[str] = PLANES_SUFFIX

    def __post_init__(self) -> None:
        Encoding(self.short_side)  # a ValueError for the same values

    def size(self, height: int, width: int) -> tuple[int, int]:
        return Encoding(self.short_side).size(height, width)


@dataclass(frozen=True)
class TranscodeJob:
    """A video, or with `images_per_second` a folder of images, and its new `target`, whose folder exists."""

    source: str
    target: str
    encoding: Encoding | Planes
    images_per_second: float | None = None
    made_from: str = ""  # for the table or the end of the target


def transcode(job: TranscodeJob) -> None:
    """Writes a video anew: frame i of the target is frame i of the source, shown at the same time after the first.

    A `VideoError` if the source can't be read, or is damaged; then there is no target.
    """
    with new_file(job.target) as file:
        try:
            if isinstance(job.encoding, Planes):
                _store(job, file)
            else:
                _encode(job, job.encoding, file)
        except av.FFmpegError as error:
            if isinstance(error.__context__, OSError) and error.__context__.errno is not None:
                raise error.__context__ from None  # of the target, as of a full disk, which PyAV's own error hides
            raise VideoError(job.source, f"cannot be encoded ({error.strerror})") from error


def _store(job: TranscodeJob, file: BinaryIO) -> None:
    with open_whole(job.source, job.images_per_second) as source:
        planes, rate = PlaneWriter(file), _rate(source)
        for picture in _pictures(job, source, rate):
            planes.add(picture)
        planes.end(float(rate), source.start, source.last, job.made_from)


def _encode(job: TranscodeJob, encoding: Encoding, file: BinaryIO) -> None:
    number = height = width = 0
    with open_whole(job.source, job.images_per_second) as source:
        rate = _rate(source)
        with av.open(file, "w", format="mp4", options={"fflags": "+bitexact"}) as container:  # no version, no time
            stream = container.add_stream(ENCODER, rate=rate, options=encoding.options())
            for number, picture in enumerate(_pictures(job, source, rate), 1):
                if number == 1:
                    height, width = picture.height, picture.width
                    codec = stream.codec_context
                    codec.width, codec.height, codec.pix_fmt = width, height, "yuv420p"
                    codec.thread_count = 1  # there are other processes; and equal input makes equal bytes
                    codec.colorspace, codec.color_range = picture.colorspace, ColorRange.MPEG
                    stream.time_base = codec.time_base = picture.time_base
                container.mux(stream.encode(picture))
            container.mux(stream.encode())
        start, last = source.start, source.last
    file.flush()
    table = make_table(file.name)
    if (len(table), table.height, table.width) != (number, height, width):
        raise VideoError(job.source, f"encoding made {len(table)} frames of its {number}, or another size")
    append_table(file, replace(table, start=start, last=last, made_from=job.made_from))


def _rate(source: Video) -> Fraction:
    """Frames per second, as the source says; an encoder uses it only to share out the bytes among frames."""
    return Fraction(min(max(source.rate or 30.0, 1.0), 1000.0)).limit_denominator(1001)


def _pictures(job: TranscodeJob, source: Video, rate: Fraction) -> Iterator[VideoFrame]:
    """All frames of a source as they are stored: scaled, upright, in time; a `VideoError` after damaged ones."""
    scaler, clock = VideoReformatter(), None
    for frame in source:
        if clock is None:
            turn = source.orientation  # known once the first frame is there
            height, width = job.encoding.size(source.height, source.width)
            size = (width, height) if turn.transposed else (height, width)
            # A copy has one matrix. RGB gets the one that readers take where none is named.
            first = frame.colorspace
            matrix = Colorspace.ITU601 if frame.format.is_rgb or first == _UNNAMED else first
            # The frames that come out last don't have a tick.
            base = max(frame.time_base, Fraction(1, _FINEST_CLOCK)) if frame.time_base else 1 / rate
            clock = FrameClock(frame.time_base or None, 1 / rate, base, joined=source.joined)
        ticks = clock.ticks(frame.pts)  # before the frame is scaled, which may leave it as it is
        same = frame.colorspace == first and not frame.format.is_rgb
        picture = _picture(scaler, frame, size, turn, None if same else matrix)
        picture.pts, picture.time_base = ticks, base
        yield picture
    if source.damage:
        raise VideoError(job.source, str(source.damage))


def _picture(
    scaler: VideoReformatter, frame: VideoFrame, size: tuple[int, int], turn: Orientation, matrix: int | None
) -> VideoFrame:
    scaled = scaler.reformat(
        frame,
        width=size[1],
        height=size[0],
        format="yuv420p",
        interpolation=Interpolation.BICUBIC,
        src_color_range=ColorRange.JPEG if is_full_range(frame) else ColorRange.MPEG,
        dst_color_range=ColorRange.MPEG,
        dst_colorspace=matrix,
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
