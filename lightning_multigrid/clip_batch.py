"""Decoded clips, and the mini-batch as it travels from a worker to the device.

Legend: B clips, T frames, S size of a mini-batch; h and w source pixels of one crop.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Clip", "ClipBatch", "Failure", "collate_clips", "collate_readable"]


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
