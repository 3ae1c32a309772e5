"""From a frame as it is *stored* in the decoder to its pixels as they are *shown*, with the rotation applied."""

import math
import struct
from fractions import Fraction
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from av.filter import Graph
from av.video.frame import VideoFrame
from torch import Tensor

from lightning_multigrid.decode.frame_table import Orientation
from lightning_multigrid.decode.packets import of_thread
from lightning_multigrid.pixels import YuvFormat

Pixels = npt.NDArray[np.uint8]

_YUV_420 = ("yuv420p", "yuvj420p")
# Numbers of the matrices that clips may have as planes, ITU-T H.273, table 4. 2 is "unspecified", which FFmpeg's
# converter takes for BT.601.
MATRICES: dict[int, Literal["bt601", "bt709"]] = {1: "bt709", 2: "bt601", 5: "bt601", 6: "bt601"}
_MATRIX, _KINDS = 6, 64  # FFmpeg's AV_FRAME_DATA_DISPLAYMATRIX; more than it has kinds of side data
_FULL_RANGE = 2  # FFmpeg's AVCOL_RANGE_JPEG


class Box(NamedTuple):
    """A part of a shown frame, in pixels from the frame's top left corner."""

    top: int
    left: int
    height: int
    width: int

    @staticmethod
    def of(box: "Box | None", height: int, width: int) -> "Box":
        """Checks a box of a frame of `height` x `width` pixels. None is the whole frame."""
        box = Box(0, 0, height, width) if box is None else Box(*box)
        if min(box) < 0 or 0 in box[2:] or box.top + box.height > height or box.left + box.width > width:
            raise ValueError(f"`box` must lie within the frame of {height} x {width} pixels, got {box}.")
        return box

    def stored(self, turn: Orientation, height: int, width: int) -> "Box":
        """Where a box of a shown frame of `height` x `width` pixels lies in the stored frame."""
        top = height - self.top - self.height if turn.upside_down else self.top
        left = width - self.left - self.width if turn.mirrored else self.left
        return Box(left, top, self.width, self.height) if turn.transposed else self._replace(top=top, left=left)

    def chroma(self) -> "Box":
        """The samples of chroma, of half the height and width, that cover the box."""
        top, left, bottom, right = self.top // 2, self.left // 2, self.top + self.height, self.left + self.width
        return Box(top, left, (bottom + 1) // 2 - top, (right + 1) // 2 - left)


def orientation_of(frame: VideoFrame) -> Orientation:
    """How to show a decoded frame, as the `ffmpeg` program does; a ValueError for anything but quarter turns."""
    side_data: Any  # typed as if it held motion vectors only
    try:
        side_data = frame.side_data
    except ValueError:  # PyAV (18.1) gives none, as it doesn't know a kind: EXIF
        others = (f"sidedata=delete:{kind}" for kind in range(_KINDS) if kind != _MATRIX)
        side_data = filtered(frame, *others).side_data
    if (matrix := side_data.get("DISPLAYMATRIX")) is None:
        return Orientation()
    a, b, _, c, d, *_ = struct.unpack("9i", bytes(matrix))  # x' = a x + c y, y' = b x + d y
    turn = round(math.degrees(math.atan2(b * math.hypot(a, c), a * math.hypot(b, d)))) % 360
    if turn % 90:
        raise ValueError(f"its display matrix turns frames by {turn} degrees; only quarter turns are applied")
    if turn % 180:
        return Orientation(transposed=True, upside_down=b < 0, mirrored=c < 0)
    return Orientation(transposed=False, upside_down=d < 0, mirrored=a < 0)


def filtered(frame: VideoFrame, *filters: str) -> VideoFrame:
    """What FFmpeg's filters, such as `copy`, make of a frame."""
    graph = Graph()
    source = graph.add_buffer(None, frame.width, frame.height, frame.format, time_base=frame.time_base or Fraction(1))
    named = [graph.add(name, *given) for name, *given in (one.split("=") for one in filters)]
    graph.link_nodes(source, *named, graph.add("buffersink")).configure()
    graph.push(frame)
    made = graph.pull()
    assert isinstance(made, VideoFrame)
    return made


def show(clip: Tensor, turn: Orientation) -> Tensor:
    """Turns stored frames, T x H x W x 3, to be shown."""
    if turn.transposed:
        clip = clip.transpose(1, 2)
    axes = [axis for axis, turned in ((1, turn.upside_down), (2, turn.mirrored)) if turned]
    return (clip.flip(axes) if axes else clip).contiguous()


def is_full_range(frame: VideoFrame) -> bool:
    """Whether black is 0 and white 255, not 16 and 235."""
    return frame.format.name.startswith("yuvj") or int(frame.color_range) == _FULL_RANGE


def yuv_format(frame: VideoFrame, frames: int, box: Box) -> YuvFormat | None:
    """The format of a clip of frames like this one; None unless it is progressive YUV 4:2:0 of 8 bits."""
    matrix = MATRICES.get(int(frame.colorspace))
    if frame.format.name not in _YUV_420 or matrix is None or frame.interlaced_frame:
        return None
    if any(plane.line_size < 0 for plane in frame.planes):  # stored upside down, as AMV does
        return None
    return YuvFormat(frames, box.height, box.width, box.top % 2, box.left % 2, matrix, is_full_range(frame))


def rgb_frame(frame: VideoFrame, height: int, width: int) -> VideoFrame:
    """A frame as RGB, scaled to a size."""
    return of_thread.scaler.reformat(frame, width=width, height=height, format="rgb24", threads=1)


def plane_pixels(plane: Any, box: Box, *channels: int) -> Pixels:
    """The bytes of a part of a plane, in place. NumPy copies so few bytes faster than torch, whose calls cost more."""
    strides = (plane.line_size, *channels, 1)
    start = box.top * strides[0] + box.left * strides[1]
    pixels: Pixels = np.ndarray((box.height, box.width, *channels), np.uint8, plane, start, strides)
    return pixels
