"""Which source frames and pixels a clip is made of (Sec. 3.1 and 4).

Resizing a frame from a short side of h pixels to a drawn one of h', and then cropping it to S x S, is the same as
cropping S h/h' source pixels and resampling them to S x S. So frames and one crop of them define a clip.

Legend: T frames and S size of a baseline clip; t frames of a coarser one.
"""

import random
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Literal

from lightning_multigrid.clips.opening import Stretch
from lightning_multigrid.decode import Box, VideoError
from lightning_multigrid.files import require
from lightning_multigrid.schedule import frame_indices, short_side_range, span, stride_range


@dataclass(frozen=True)
class SourceGrid:
    """Where a clip lies in its video: a source frame per frame, the source pixels, and whether it is mirrored."""

    indices: tuple[int, ...]
    box: Box
    flip: bool


@dataclass(frozen=True)
class ClipSampling:
    """How the grid of a training clip is drawn, for the baseline and for the coarser grids of multigrid training.

    With `mode="stride"` (Kinetics, Charades) a clip of t frames takes frames at a random integer stride in
    [stride, stride T/t], from a random start. With `mode="segments"` (Something-Something) the video is cut into t
    equal segments, and the clip takes one frame from each; the stride is then without effect.

    The short side of the frame is drawn from `short_side`, whose lower end scales with the size of the grid (Sec. 4:
    [256 h/H, 340]). The square crop lies at a random place.

    `draw` counts in frames of the video. With a `frame_rate`, it counts in frames of as many per second, whatever the
    rate of the video, and `in_source` finds the frames of the video that show them. So clips of videos of different
    rates, or of a variable one, last equally long.

    The arguments are those of `VideoDataModule`; `mode` is its `sampling`.

    Raises:
        ValueError: If one of them is out of range.

    >>> sampling = ClipSampling(frames=4, size=56, stride=2)
    >>> sampling.draw(length=7, height=64, width=64, frames=4, size=56, rng=random.Random(0)).indices
    (0, 2, 4, 6)
    """

    frames: int
    size: int
    stride: int
    mode: Literal["stride", "segments"] = "stride"
    short_side: tuple[float, float] | None = None
    flip: bool = True
    short_side_sampling: Literal["uniform", "inverse_uniform"] = "uniform"
    frame_rate: float | None = None

    def __post_init__(self) -> None:
        for name in ("frames", "size", "stride"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        require(self.mode in ("stride", "segments"), "sampling", self.mode, "'stride' or 'segments'")
        drawn = self.short_side_sampling
        require(drawn in ("uniform", "inverse_uniform"), "short_side_sampling", drawn, "'uniform' or 'inverse_uniform'")
        rate = self.frame_rate is None or (0 < self.frame_rate < float("inf") and self.mode == "stride")
        require(rate, "frame_rate", self.frame_rate, "above 0 and beside `sampling='stride'`")
        low, high = self.short_side_range(self.size)
        required = f"two increasing numbers of pixels, not below `size={self.size}`, that of the crop"
        require(self.size <= low <= high, "short_side", self.short_side, required)

    def short_side_range(self, size: int) -> tuple[float, float]:
        """Smallest and largest short side for clips of a size, in pixels."""
        if self.short_side is None:
            return short_side_range(size, self.size)
        low, high = self.short_side
        return low * size / self.size, high

    def draw(self, length: int, height: int, width: int, frames: int, size: int, rng: random.Random) -> SourceGrid:
        """Draws the grid of a training clip of `frames` and `size` from a video of `length` x `height` x `width`."""
        if self.mode == "segments":
            indices = [segment_frame(length, frames, i, rng.random()) for i in range(frames)]
        else:
            stride = rng.randint(*stride_range(frames, self.frames, self.stride))
            start = rng.randint(0, max(0, length - span(frames, stride)))
            indices = list(frame_indices(length, frames, stride, start))
        low, high = self.short_side_range(size)
        inverse = self.short_side_sampling == "inverse_uniform"
        short_side = 1 / rng.uniform(1 / high, 1 / low) if inverse else rng.uniform(low, high)
        side = crop_side(height, width, size, short_side)
        top, left = rng.randint(0, height - side), rng.randint(0, width - side)
        return SourceGrid(tuple(indices), Box(top, left, side, side), self.flip and rng.random() < 0.5)

    def length(self, video: Stretch) -> int:
        """Frames of a video: its own, or those that it has at `frame_rate`.

        Raises:
            VideoError: If `frame_rate` is given, and the video's rate is unknown.
        """
        if self.frame_rate is None:
            return len(video)
        if not video.rate:
            raise VideoError(video.path, f"has no known frame rate, which `frame_rate={self.frame_rate}` needs")
        return max(1, round(video.time_of(len(video)) * self.frame_rate))

    def in_source(self, grid: SourceGrid, video: Stretch) -> SourceGrid:
        """The grid with frames of the video: for each frame at `frame_rate`, the one that is shown in its middle."""
        if self.frame_rate is None:
            return grid
        own = range(len(video))
        middles = [(index + 0.5) / self.frame_rate for index in grid.indices]
        return replace(grid, indices=tuple(max(0, bisect_right(own, t, key=video.time_of) - 1) for t in middles))


def segment_frame(length: int, frames: int, segment: int, place: float) -> int:
    """The frame at a place in [0, 1) of one of `frames` equal segments, which need not be whole frames long.

    >>> [segment_frame(length=10, frames=4, segment=i, place=0.5) for i in range(4)]
    [1, 3, 6, 8]
    """
    return min(int((segment + place) * length / frames), length - 1)


def crop_side(height: int, width: int, size: int, short_side: float) -> int:
    """Source pixels that a crop of `size` spans after the frame's short side was resized to `short_side`.

    >>> crop_side(height=128, width=170, size=224, short_side=256)
    112
    """
    short = min(height, width)
    return min(short, max(1, round(size * short / short_side)))
