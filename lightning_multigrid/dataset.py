"""Videos to clips: which source frames and pixels a request needs, and the mini-batch as it travels to the device.

The spans and strides of a clip's sampling grid are drawn as in the paper (Sec. 3.1 and 4). In space, resizing a frame
from a short side of h pixels to a drawn one of h', and cropping it to S x S, is the same as cropping S h/h' source
pixels, and resampling them to S x S. So only that crop leaves the worker, as bytes, and the device resamples it.

Legend: B clips, T frames, S size of a mini-batch; h and w source pixels of one crop.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.utils.data import Dataset

from lightning_multigrid.decode import Box, VideoError, VideoReader
from lightning_multigrid.grid import frame_indices, short_side_range, span, stride_range
from lightning_multigrid.manifest import Manifest
from lightning_multigrid.sampler import ClipRequest, derive_seed

__all__ = [
    "BrokenVideosError",
    "Clip",
    "ClipBatch",
    "ClipSampling",
    "Failure",
    "SourceGrid",
    "VideoDataset",
    "collate_clips",
    "collate_readable",
]

# With a quarter of the videos broken (`max_bad_fraction`), that none of 16 is readable happens once in 4 billion clips.
_ATTEMPTS = 16


class BrokenVideosError(ValueError):
    """Too many videos of a dataset cannot be read."""


@dataclass(frozen=True)
class SourceGrid:
    """Where a clip lies in its video.

    Args:
        indices: Source frames, one per frame of the clip.
        box: Source pixels.
        flip: Whether the clip is mirrored left to right.
    """

    indices: tuple[int, ...]
    box: Box
    flip: bool


@dataclass(frozen=True)
class ClipSampling:
    """How the grid of a clip is drawn, for the baseline and for the coarser grids of multigrid training.

    With `mode="stride"` (Kinetics, Charades) a clip of t frames takes frames at a random integer stride in
    [stride, stride T/t], from a random start. With `mode="segments"` (Something-Something) the video is cut into t
    equal segments, and one frame is taken of each; the stride is then without effect.

    The short side of the frame is drawn from `short_side`, whose lower end scales with the size of the grid (Sec. 4:
    [256 h/H, 340]), and a square crop is taken at a random place.

    Args:
        frames: Frames of a baseline clip (T).
        size: Height and width of a baseline clip, in pixels (H = W).
        stride: Temporal stride of a baseline clip, in source frames.
        mode: Whether frames are taken at a stride or one per segment.
        short_side: Smallest and largest short side for clips of the baseline size, in pixels; None is the paper's
            [256, 340] for 224 pixels, scaled with the size.
        flip: Whether half of the clips are mirrored in training. Not where left and right have a meaning.

    Raises:
        ValueError: If one of them is out of range.

    >>> sampling = ClipSampling(frames=4, size=56, stride=2)
    >>> sampling.centre(length=20, height=64, width=100, frames=4, size=56).indices
    (6, 8, 10, 12)
    """

    frames: int
    size: int
    stride: int
    mode: Literal["stride", "segments"] = "stride"
    short_side: tuple[float, float] | None = None
    flip: bool = True

    def __post_init__(self) -> None:
        for name in ("frames", "size", "stride"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, got {getattr(self, name)}.")
        if self.mode not in ("stride", "segments"):
            raise ValueError(f"`sampling` must be 'stride' or 'segments', got {self.mode!r}.")
        low, high = self.short_side_range(self.size)
        if not self.size <= low <= high:
            raise ValueError(
                f"`short_side` must be two increasing numbers of pixels, not below `size={self.size}`: a crop of this "
                f"size is taken from a frame of that short side. Got {self.short_side}."
            )

    def short_side_range(self, size: int) -> tuple[float, float]:
        """Smallest and largest short side for clips of a size, in pixels."""
        if self.short_side is None:
            return short_side_range(size, self.size)
        low, high = self.short_side
        return low * size / self.size, high

    def draw(self, length: int, height: int, width: int, frames: int, size: int, rng: random.Random) -> SourceGrid:
        """A random grid for training, for a clip of `frames` and `size` in a video of `length` x `height` x `width`."""
        if self.mode == "segments":
            indices = [_segment_frame(length, frames, i, rng.random()) for i in range(frames)]
        else:
            stride = rng.randint(*stride_range(frames, self.frames, self.stride))
            start = rng.randint(0, max(0, length - span(frames, stride)))
            indices = list(frame_indices(length, frames, stride, start))
        side = _crop_side(height, width, size, rng.uniform(*self.short_side_range(size)))
        top, left = rng.randint(0, height - side), rng.randint(0, width - side)
        return SourceGrid(tuple(indices), Box(top, left, side, side), self.flip and rng.random() < 0.5)

    def centre(self, length: int, height: int, width: int, frames: int, size: int) -> SourceGrid:
        """The grid for validation and test: the middle of the video at the baseline's stride, and of the frame."""
        if self.mode == "segments":
            indices = [_segment_frame(length, frames, i, 0.5) for i in range(frames)]
        else:
            start = max(0, length - span(frames, self.stride)) // 2
            indices = list(frame_indices(length, frames, self.stride, start))
        side = _crop_side(height, width, size, self.short_side_range(size)[0])
        box = Box((height - side) // 2, (width - side) // 2, side, side)
        return SourceGrid(tuple(indices), box, flip=False)


def _segment_frame(length: int, frames: int, segment: int, place: float) -> int:
    """The frame at a place in [0, 1) of one of `frames` equal segments, which need not be whole frames long."""
    return min(int((segment + place) * length / frames), length - 1)


def _crop_side(height: int, width: int, size: int, short_side: float) -> int:
    """Source pixels that a crop of `size` spans after the frame's short side was resized to `short_side`."""
    short = min(height, width)
    return min(short, max(1, round(size * short / short_side)))


@dataclass(frozen=True)
class Failure:
    """A video that could not be read, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class Clip:
    """A decoded clip, not yet resampled.

    Args:
        crop: T x h x w x 3 uint8.
        size: Height and width that it is to be resampled to, in pixels.
        flip: Whether it is to be mirrored.
        labels: Class ids: one, or any number of them if the dataset has several labels per video.
        index: Index in the dataset of the video that it is from.
        failures: Videos that were tried before this one; with any, the clip is a substitute.
    """

    crop: Tensor
    size: int
    flip: bool
    labels: tuple[int, ...]
    index: int
    failures: tuple[Failure, ...] = ()


class ClipBatch:
    """Clips on their way to the device: one block of bytes, and what it means.

    One tensor per mini-batch instead of one per clip keeps the hand-over from the worker cheap. Moved and pinned like
    a tensor, `resample_clips(batch.crops(), batch.size, flips=batch.flips)` makes it the model's input.

    Not a dataclass: Lightning's half and double precision look into dataclasses, and refuse frozen ones.

    Args:
        pixels: The crops one after the other, flat, uint8.
        crop_sizes: Height and width of each crop.
        frames: Frames of each clip (T).
        size: Height and width that the clips are to be resampled to, in pixels (S).
        flips: Whether each clip is to be mirrored.
        labels: Class ids of each clip.
        indices: Index in the dataset of each clip's video.
        failures: Videos that could not be read.
    """

    def __init__(
        self,
        pixels: Tensor,
        crop_sizes: tuple[tuple[int, int], ...],
        frames: int,
        size: int,
        flips: tuple[bool, ...],
        labels: tuple[tuple[int, ...], ...],
        indices: tuple[int, ...],
        failures: tuple[Failure, ...],
    ) -> None:
        self.pixels, self.crop_sizes, self.frames, self.size = pixels, crop_sizes, frames, size
        self.flips, self.labels, self.indices, self.failures = flips, labels, indices, failures

    def __len__(self) -> int:
        return len(self.crop_sizes)

    def crops(self) -> list[Tensor]:
        """The crops, T x h x w x 3 each, as views of the block."""
        shapes = [(self.frames, height, width, 3) for height, width in self.crop_sizes]
        blocks = torch.split(self.pixels, [math.prod(shape) for shape in shapes])
        return [block.view(shape) for block, shape in zip(blocks, shapes, strict=True)]

    def class_ids(self) -> Tensor:
        """The single label of each clip: B, int64, on the device of the pixels."""
        return torch.tensor([label for (label,) in self.labels], device=self.pixels.device)

    def multi_hot(self, num_classes: int) -> Tensor:
        """1 for each label of each clip, else 0: B x num_classes, float32, on the device of the pixels."""
        hot = torch.zeros(len(self), num_classes)
        for row, labels in zip(hot, self.labels, strict=True):
            row[list(labels)] = 1
        return hot.to(self.pixels.device)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> ClipBatch:
        """The mini-batch on a device. A pinned one never blocks: Lightning asks for that with tensors only."""
        return self._with(self.pixels.to(device, non_blocking=non_blocking or self.pixels.is_pinned()))

    def pin_memory(self) -> ClipBatch:
        """The mini-batch in memory from which the device copies on its own; the loader calls this."""
        return self._with(self.pixels.pin_memory())

    def _with(self, pixels: Tensor) -> ClipBatch:
        batch = copy.copy(self)
        batch.pixels = pixels
        return batch


def collate_clips(clips: Sequence[Clip]) -> ClipBatch:
    """The mini-batch of some clips, for training.

    Raises:
        ValueError: If the clips differ in frames or size.
    """
    return _collate(clips, clips)


def collate_readable(clips: Sequence[Clip]) -> ClipBatch:
    """The mini-batch of some clips without the substitutes, for validation and test.

    A metric then counts each readable video once, and broken ones never. Only where no clip would be left does one
    substitute stay, because a model needs at least one.
    """
    return _collate([clip for clip in clips if not clip.failures] or clips[:1], clips)


def _collate(kept: Sequence[Clip], clips: Sequence[Clip]) -> ClipBatch:
    shapes = {(len(clip.crop), clip.size) for clip in kept}
    if len(shapes) != 1:
        raise ValueError(f"The clips of a mini-batch must have one shape, got (frames, size) in {sorted(shapes)}.")
    [(frames, size)] = shapes
    return ClipBatch(
        pixels=torch.cat([clip.crop.reshape(-1) for clip in kept]),
        crop_sizes=tuple((clip.crop.shape[1], clip.crop.shape[2]) for clip in kept),
        frames=frames,
        size=size,
        flips=tuple(clip.flip for clip in kept),
        labels=tuple(clip.labels for clip in kept),
        indices=tuple(clip.index for clip in kept),
        failures=tuple(failure for clip in clips for failure in clip.failures),
    )


class VideoDataset(Dataset[Clip]):
    """The videos of a manifest as clips on any grid; an ordinary map-style dataset of baseline clips, too.

    A video that cannot be read is replaced by another one, drawn from the request's seed (in evaluation: from the
    index), so that a run neither stops nor depends on the number of workers. The clip says which videos failed.

    No file is held open, so workers may be forked or spawned.

    Args:
        manifest: Paths and labels.
        sampling: The baseline's grid, and how grids are drawn.
        training: Draw grids at random; else all clips are from the centre, without augmentation.

    Raises:
        ValueError: If the manifest is empty.
    """

    def __init__(self, manifest: Manifest, sampling: ClipSampling, *, training: bool) -> None:
        if not len(manifest):
            raise ValueError("The manifest is empty; at least one video is needed.")
        self.manifest, self.sampling, self.training = manifest, sampling, training
        self.frames, self.size, self.stride = sampling.frames, sampling.size, sampling.stride

    def __len__(self) -> int:
        return len(self.manifest)

    def __getitem__(self, index: int) -> Clip:
        """A clip of the baseline's frames and size; in training seeded by torch's random state."""
        seed = int(torch.randint(2**63 - 1, ())) if self.training else 0
        return self.read_clip(ClipRequest(index, self.frames, self.size, seed))

    def read_clip(self, request: ClipRequest) -> Clip:
        """The clip for a request, or a substitute.

        Raises:
            BrokenVideosError: If no video could be read in many attempts.
        """
        failures: list[Failure] = []
        for index in self._candidates(request):
            path = self.manifest.path(index)
            try:
                return self._decode(index, path, request, tuple(failures))
            except VideoError as error:
                failures.append(Failure(path, error.reason))
            except Exception as error:
                # Whatever one video does to the decoder or the memory must not end a run of days. What is wrong with
                # all of them does: as the error below, or as too large a fraction in the data module.
                failures.append(Failure(path, f"{type(error).__name__}: {error}"))
        raise BrokenVideosError(
            f"None of {len(failures)} videos of {len(self)} can be read, at least one must be. Check the paths and "
            f"`root`. The first: {failures[0].path}: {failures[0].reason}"
        )

    def _candidates(self, request: ClipRequest) -> Iterator[int]:
        yield request.index
        draw = random.Random(derive_seed(request.seed if self.training else request.index, 1))
        # Without replacement, so that a small dataset with one readable video finds it.
        for index in draw.sample(range(len(self)), min(_ATTEMPTS, len(self))):
            if index != request.index:
                yield index

    def _decode(self, index: int, path: str, request: ClipRequest, failures: tuple[Failure, ...]) -> Clip:
        with VideoReader(path) as reader:
            video = len(reader), reader.height, reader.width
            if self.training:
                grid = self.sampling.draw(*video, request.frames, request.size, random.Random(request.seed))
            else:
                grid = self.sampling.centre(*video, request.frames, request.size)
            crop = reader.read(grid.indices, grid.box)
        return Clip(crop, request.size, grid.flip, self.manifest.labels(index), index, failures)
