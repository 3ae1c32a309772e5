"""Makes small videos whose frames tell which they are, and reads them back by PyAV alone."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

BITS = 8
"""Binary digits of the number drawn into a frame."""

Matrix = tuple[int, int, int, int]
TURNS: dict[int | str, Matrix] = {
    90: (0, 1, -1, 0),
    180: (-1, 0, 0, -1),
    270: (0, -1, 1, 0),
    "mirrored": (-1, 0, 0, 1),
    "upside down": (1, 0, 0, -1),
    "transposed": (0, 1, 1, 0),
}
"""Of the track header (`tkhd`): rows of the 3 x 3 display matrix for a picture that is to be turned clockwise."""


def numbered_frames(count: int, height: int = 48, width: int = 64, *, first: int = 0) -> np.ndarray:
    """Frames T x H x W x 3 with their number in binary, most significant digit first, in white and black columns.

    The digits fill the upper half, above a white left and a black right quarter, so that a frame that is turned or
    mirrored can't be read. Between them is a pattern that moves and makes every frame a little different.
    """
    frames = np.empty((count, height, width, 3), np.uint8)
    rows, columns = np.mgrid[:height, :width]
    for place, number in enumerate(range(first, first + count)):
        digits = np.array([number >> bit & 1 for bit in reversed(range(BITS))])
        pattern = 128 + 60 * np.sin((columns + 3 * number) / 7) * np.cos((rows - 2 * number) / 5)
        frames[place] = np.stack([pattern, np.roll(pattern, number, axis=1), 255 - pattern], axis=-1).astype(np.uint8)
        frames[place, : height // 2] = np.where(digits[columns[: height // 2] * BITS // width] > 0, 255, 0)[..., None]
        frames[place, height * 3 // 4 :, : width // 2] = 255
        frames[place, height * 3 // 4 :, width // 2 :] = 0
    return frames


def number_of(frame: np.ndarray) -> int:
    """The number drawn into a frame H x W x 3, or -1 if it doesn't stand as it was drawn."""
    gray = np.asarray(frame, np.float32).mean(axis=-1)
    height, width = gray.shape
    floor = gray[height * 7 // 8 :]
    if floor[:, : width // 2 - 2].mean() < 160 or floor[:, width // 2 + 2 :].mean() > 96:
        return -1
    number = 0
    for digit in range(BITS):
        left, right = -(-digit * width // BITS), -(-(digit + 1) * width // BITS)
        number = 2 * number + (gray[2 : height // 2 - 2, left + 1 : right - 1].mean() > 128)
    return int(number)


def write_video(
    path: str | os.PathLike[str],
    frames: Iterable[np.ndarray],
    *,
    codec: str = "libx264",
    rate: int = 30,
    options: dict[str, str] | None = None,
    pix_fmt: str = "yuv420p",
    rotation: int | str = 0,
    pts: Sequence[int] | None = None,
    container_options: dict[str, str] | None = None,
    format: str | None = None,
    audio: bool = False,
) -> Path:
    """Writes frames H x W x 3 (uint8 RGB) as a video. Skips the test if this FFmpeg lacks the encoder.

    Args:
        path: Its suffix tells the container, unless `format` does.
        frames: All of one size.
        codec: Name of the encoder.
        rate: Frames per second.
        options: Of the encoder, such as g (largest GOP) and bf (B-frames).
        pix_fmt: How pixels are stored.
        rotation: Degrees clockwise by which a player has to turn frames, or "mirrored", "upside down", "transposed"; in
            mp4 and mov only.
        pts: Times of the frames, in units of 1 / rate; one after the other unless given.
        container_options: Of the muxer.
        format: Name of the container.
        audio: Whether a second of silence is added.
    """
    try:
        av.Codec(codec, "w")
    except ValueError:
        pytest.skip(f"this FFmpeg has no encoder {codec}")
    path = Path(path)
    with av.open(f"file:{path}", "w", format=format, options=container_options or {}) as container:
        stream = None
        sound = container.add_stream("aac", rate=8000) if audio else None
        for number, pixels in enumerate(frames):
            if stream is None:
                stream = container.add_stream(codec, rate=rate, options=options or {})
                stream.height, stream.width = pixels.shape[:2]
                stream.pix_fmt = pix_fmt
                stream.thread_count = 1
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
            frame.pts = number if pts is None else pts[number]
            frame.time_base = Fraction(1, rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
        if sound is not None:
            silence = av.AudioFrame.from_ndarray(np.zeros((1, 8000), np.float32), format="fltp", layout="mono")
            silence.sample_rate, silence.pts = 8000, 0
            container.mux(sound.encode(silence))
            container.mux(sound.encode())
    if rotation:
        path.write_bytes(mp4_turned(path.read_bytes(), TURNS[rotation]))
    return path


def mp4_turned(data: bytes, matrix: Matrix, one: int = 1) -> bytes:
    """With a display matrix a, b, c, d, times `one`, in its track header; ISO/IEC 14496-12, 8.3.2."""
    header = data.index(b"tkhd")
    at = header + (56 if data[header + 4] else 44)
    a, b, c, d = (value * (1 << 16) // one for value in matrix)
    return data[:at] + struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30) + data[at + 36 :]


def decode_all(path: str | os.PathLike[str]) -> np.ndarray:
    """All frames T x H x W x 3 as they come out of PyAV from the beginning, with square pixels, turned as they say.

    Those of a damaged file are what comes out past the damage.
    """
    frames = []
    with av.open(f"file:{os.fspath(path)}") as container:
        stream = container.streams.best("video")
        stream.thread_count = 1
        for packet in container.demux(stream):
            with suppress(av.FFmpegError):
                for frame in packet.decode() if packet.size or packet.dts is None else []:
                    width = round(frame.width * (stream.sample_aspect_ratio or 1))
                    pixels = frame.reformat(format="rgb24", width=width, height=frame.height).to_ndarray()
                    frames.append(np.rot90(pixels, frame.rotation // 90))
    return np.stack(frames)
