"""The shape of a mini-batch and the grid it is sampled on (Sec. 3.1).

A grid has a *span* (its extent, in source frames or source pixels) and a *stride* (the spacing of its points);
points = span / stride. In time, with a stride of 3 source frames::

    source   f f f f f f f f f f f f
    points   x . . x . . x . . x . .      4 points, span 12 (not 10: the paper divides the span by the stride)

Legend: B clips, T frames, H = W size; lower-case letters are those of a coarser grid.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

# The short side of a training video for the paper's 224-pixel crops: uniform in [256, 340] (Sec. 4).
_PAPER_SIZE = 224
_PAPER_SHORT_SIDE = (256, 340)


class ClipShape(NamedTuple):
    """Shape of a clip: frames x size x size."""

    frames: int
    size: int


@dataclass(frozen=True)
class BatchShape:
    """Shape of a mini-batch: clips x frames x size x size.

    Args:
        clips: Clips per device (B in the paper).
        frames: Frames per clip (T).
        size: Height and width of a frame, in pixels (H = W).

    Raises:
        ValueError: If one of them is below 1.
        TypeError: If one of them is not an integer.
    """

    clips: int
    frames: int
    size: int

    def __post_init__(self) -> None:
        for name in ("clips", "frames", "size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"`{name}` must be an integer, got {value!r}.")
            if value < 1:
                raise ValueError(f"`{name}` must be at least 1, got {value}.")

    def __str__(self) -> str:
        return f"{self.clips} x {self.frames} x {self.size}"

    @property
    def points(self) -> int:
        """Points of the mini-batch, b t s^2; its FLOPs are proportional to them (Sec. 3)."""
        return self.clips * self.frames * self.size**2

    @property
    def clip(self) -> ClipShape:
        """The shape of each clip, whatever their number."""
        return ClipShape(self.frames, self.size)

    def rescaled(self, frames: int, size: int) -> "BatchShape":
        """The shape that costs as much as this one with other frames and size (Eq. 1).

        The *factor* of clips is rounded, as in the published schedule, so that a mini-batch on a coarser grid holds a
        whole number of baseline mini-batches. There is always at least one clip.

        >>> BatchShape(clips=64, frames=32, size=224).rescaled(frames=16, size=158)
        BatchShape(clips=256, frames=16, size=158)
        """
        factor = Fraction(self.frames * self.size**2, frames * size**2)
        clips = self.clips * round(factor) if factor >= 1 else round(self.clips * factor)
        return BatchShape(max(1, clips), frames, size)


def span(points: int, stride: int) -> int:
    """Extent of a grid, in source frames or pixels (Sec. 3.1).

    >>> span(points=4, stride=3)
    12
    """
    return points * stride


def stride_range(frames: int, baseline_frames: int, stride: int) -> tuple[int, int]:
    """Smallest and largest temporal stride of clips of `frames` frames, both included: [stride, stride T/t] (Sec. 4).

    The largest stride is rounded down, so that no clip spans more than a baseline clip.

    >>> stride_range(frames=8, baseline_frames=32, stride=2)
    (2, 8)
    """
    return stride, max(stride, span(baseline_frames, stride) // frames)


def short_side_range(size: int, baseline_size: int) -> tuple[float, float]:
    """Range of short sides, in pixels, to which a frame is resized before a crop of `size` pixels is taken.

    It is [256 h/H, 340] for a baseline of H = 224 (Sec. 4, Multigrid Training Details). For other baselines both ends
    are scaled by H / 224, so that a crop covers the same share of the frame.

    >>> short_side_range(size=112, baseline_size=224)
    (128.0, 340.0)
    """
    low, high = _PAPER_SHORT_SIDE
    return low * size / _PAPER_SIZE, high * baseline_size / _PAPER_SIZE


def frame_indices(length: int, frames: int, stride: int, start: int) -> Sequence[int]:
    """Source frames of a clip, in order. Beyond an end of the video, the frame at that end is repeated.

    >>> list(frame_indices(length=10, frames=4, stride=3, start=2))
    [2, 5, 8, 9]
    """
    return [min(max(start + stride * point, 0), length - 1) for point in range(frames)]
