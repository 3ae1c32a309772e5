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
from typing_extensions import Self

__all__ = ["Clip", "ClipBatch", "Failure", "PixelBatch", "collate_clips"]


@dataclass(frozen=True)
class Failure:
    """A video that could not be read, and why.

    Args:
        path: The video.
        reason: What is wrong with it.
        substitute: Whether it was tried in place of another broken one.
    """

    path: str
    reason: str
    substitute: bool = False


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
        seed: Of what is drawn for it on the device.
    """

    crop: Tensor
    size: int
    flip: bool
    labels: tuple[int, ...]
    index: int
    failures: tuple[Failure, ...] = ()
    seed: int = 0


class PixelBatch:
    """Decoded pixels on their way to the device: one block of bytes, and what it means.

    One tensor per mini-batch instead of one per clip keeps the hand-over from the worker cheap. It is moved and pinned
    like a tensor.

    Not a dataclass: Lightning's half and double precision look into dataclasses, and refuse frozen ones.

    Args:
        pixels: Blocks of frames one after the other, flat, uint8.
        block_sizes: Frames, height and width of each block.
        size: Height and width that clips are to be resampled to, in pixels (S).
        labels: Class ids of each block.
        indices: Index in the dataset of each block's video.
        failures: Videos that could not be read.
    """

    def __init__(
        self,
        pixels: Tensor,
        block_sizes: tuple[tuple[int, int, int], ...],
        size: int,
        labels: tuple[tuple[int, ...], ...],
        indices: tuple[int, ...],
        failures: tuple[Failure, ...],
    ) -> None:
        self.pixels, self.block_sizes, self.size = pixels, block_sizes, size
        self.labels, self.indices, self.failures = labels, indices, failures

    def __len__(self) -> int:
        return len(self.block_sizes)

    def blocks(self) -> list[Tensor]:
        """The blocks, frames x height x width x 3 each, as views of the bytes."""
        shapes = [(*size, 3) for size in self.block_sizes]
        blocks = torch.split(self.pixels, [math.prod(shape) for shape in shapes])
        return [block.view(shape) for block, shape in zip(blocks, shapes, strict=True)]

    def class_ids(self) -> Tensor:
        """The single label of each block: B, int64, on the device of the pixels."""
        return torch.tensor([label for (label,) in self.labels], device=self.pixels.device)

    def multi_hot(self, num_classes: int) -> Tensor:
        """1 for each label of each block, else 0: B x num_classes, float32, on the device of the pixels."""
        hot = torch.zeros(len(self), num_classes)
        for row, labels in zip(hot, self.labels, strict=True):
            row[list(labels)] = 1
        return hot.to(self.pixels.device)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """The mini-batch on a device. A pinned one never blocks: Lightning asks for that with tensors only."""
        return self._with(self.pixels.to(device, non_blocking=non_blocking or self.pixels.is_pinned()))

    def pin_memory(self) -> Self:
        """The mini-batch in memory from which the device copies on its own; the loader calls this."""
        return self._with(self.pixels.pin_memory())

    def _with(self, pixels: Tensor) -> Self:
        batch = copy.copy(self)
        batch.pixels = pixels
        return batch


class ClipBatch(PixelBatch):
    """Clips of one length, a block each.

    `resample_clips(batch.crops(), batch.size, flips=batch.flips)` makes it the model's input.

    Args:
        pixels: See `PixelBatch`, as for those not named here.
        block_sizes: Frames, height and width of each crop.
        size: Height and width of the clips.
        labels: Class ids of each clip.
        indices: Index of each clip's video.
        failures: Videos that could not be read.
        flips: Whether each clip is to be mirrored.
        seeds: Of what is drawn for each clip on the device.
    """

    def __init__(
        self,
        pixels: Tensor,
        block_sizes: tuple[tuple[int, int, int], ...],
        size: int,
        labels: tuple[tuple[int, ...], ...],
        indices: tuple[int, ...],
        failures: tuple[Failure, ...],
        flips: tuple[bool, ...],
        seeds: tuple[int, ...],
    ) -> None:
        super().__init__(pixels, block_sizes, size, labels, indices, failures)
        self.flips, self.seeds = flips, seeds

    @property
    def frames(self) -> int:
        """Frames of each clip (T)."""
        return self.block_sizes[0][0]

    def crops(self) -> list[Tensor]:
        """The crops, T x h x w x 3 each, as views of the bytes."""
        return self.blocks()


def collate_clips(clips: Sequence[Clip]) -> ClipBatch:
    """The mini-batch of some clips, for training.

    Raises:
        ValueError: If the clips differ in frames or size.
    """
    shapes = {(len(clip.crop), clip.size) for clip in clips}
    if len(shapes) != 1:
        raise ValueError(f"The clips of a mini-batch must have one shape, got (frames, size) in {sorted(shapes)}.")
    [(frames, size)] = shapes
    return ClipBatch(
        pixels=torch.cat([clip.crop.reshape(-1) for clip in clips]),
        block_sizes=tuple((frames, clip.crop.shape[1], clip.crop.shape[2]) for clip in clips),
        size=size,
        labels=tuple(clip.labels for clip in clips),
        indices=tuple(clip.index for clip in clips),
        failures=tuple(failure for clip in clips for failure in clip.failures),
        flips=tuple(clip.flip for clip in clips),
        seeds=tuple(clip.seed for clip in clips),
    )
