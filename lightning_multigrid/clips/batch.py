"""Decoded clips, and the mini-batch as it travels from a worker to the device.

Legend: B clips, T frames, S size of a mini-batch; h and w source pixels of one crop.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.data import get_worker_info
from typing_extensions import Self

from lightning_multigrid.pixels import YuvClip, YuvFormat, to_device

__all__ = [
    "Clip",
    "ClipBatch",
    "Failure",
    "PixelBatch",
    "RgbFormat",
    "collate_clips",
    "flat_bytes",
    "format_of",
]

_T = TypeVar("_T")


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
class RgbFormat:
    """What the bytes of some frames mean: frames x height x width x 3.

    Args:
        frames: Number of frames.
        height: In pixels.
        width: In pixels.
    """

    frames: int
    height: int
    width: int

    @property
    def nbytes(self) -> int:
        """Bytes of the frames."""
        return self.frames * self.height * self.width * 3

    def view(self, data: Tensor) -> Tensor:
        """The frames that some bytes are."""
        return data.view(self.frames, self.height, self.width, 3)


@dataclass(frozen=True)
class Clip:
    """A decoded clip, not yet resampled.

    Args:
        crop: T x h x w x 3 uint8, or YUV planes.
        size: Height and width that it is to be resampled to, in pixels.
        flip: Whether it is to be mirrored.
        labels: Class ids: one, or any number of them if the dataset has several labels per video.
        index: Index in the dataset of the video that it is from.
        failures: Videos that were tried before this one; with any, the clip is a substitute.
        seed: Of what is drawn for it on the device.
    """

    crop: Tensor | YuvClip
    size: int
    flip: bool
    labels: tuple[int, ...]
    index: int
    failures: tuple[Failure, ...] = ()
    seed: int = 0


class PixelBatch:
    """Decoded pixels on their way to the device: flat bytes, and what they mean.

    One tensor per mini-batch, or per piece of it that a worker read, instead of one per clip keeps the hand-over from
    the worker cheap. It is moved and pinned like a tensor.

    Not a dataclass: Lightning's half and double precision look into dataclasses, and refuse frozen ones.

    Args:
        pieces: Bytes of the blocks of frames one after the other, flat, uint8; no block is in two pieces.
        formats: What the bytes of each block mean.
        size: Height and width that clips are to be resampled to, in pixels (S).
        labels: Class ids of each block.
        indices: Index in the dataset of each block's video.
        failures: Videos that could not be read.
    """

    def __init__(
        self,
        pieces: tuple[Tensor, ...],
        formats: tuple[RgbFormat | YuvFormat, ...],
        size: int,
        labels: tuple[tuple[int, ...], ...],
        indices: tuple[int, ...],
        failures: tuple[Failure, ...],
    ) -> None:
        self.pieces, self.formats, self.size = pieces, formats, size
        self.labels, self.indices, self.failures = labels, indices, failures

    def __len__(self) -> int:
        return len(self.formats)

    @property
    def device(self) -> torch.device:
        """Where the pixels are."""
        return self.pieces[0].device

    def blocks(self) -> Iterator[Tensor | YuvClip]:
        """The blocks, frames x height x width x 3 each or YUV planes, as views of the bytes."""
        pieces, rest = iter(self.pieces), self.pieces[0][:0]
        for format in self.formats:
            if not len(rest):
                rest = next(pieces)
            data, rest = rest.tensor_split([format.nbytes])
            yield format.view(data)

    def class_ids(self) -> Tensor:
        """The single label of each block: B, int64, on the device of the pixels."""
        return to_device(torch.tensor([label for (label,) in self.labels]), self.device)

    def multi_hot(self, num_classes: int) -> Tensor:
        """1 for each label of each block, else 0: B x num_classes, float32, on the device of the pixels."""
        hot = torch.zeros(len(self), num_classes)
        for row, labels in zip(hot, self.labels, strict=True):
            row[list(labels)] = 1
        return to_device(hot, self.device)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """The mini-batch on a device. A pinned one goes there while the device computes, and never blocks."""
        if torch.device(device).type == "cuda" and self.pieces[0].is_pinned():
            return self._with(_copied_aside(self.pieces, torch.device(device)))
        return self._with(tuple(piece.to(device, non_blocking=non_blocking) for piece in self.pieces))

    def pin_memory(self) -> Self:
        """The mini-batch in memory from which the device copies on its own; the loader calls this."""
        return self._with(tuple(piece.pin_memory() for piece in self.pieces))

    def _with(self, pieces: tuple[Tensor, ...]) -> Self:
        batch = copy.copy(self)
        batch.pieces = pieces
        return batch


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _copied_aside(pieces: Sequence[Tensor], device: torch.device) -> tuple[Tensor, ...]:
    """Copies of pinned bytes, made on a stream of their own: beside the steps that the device has still to compute.

    What is asked of the device from now on waits for them.
    """
    device = torch.device("cuda", torch.cuda.current_device()) if device.index is None else device
    stream, current = _copy_stream(device), torch.cuda.current_stream(device)
    with torch.cuda.stream(stream):
        copies = tuple(piece.to(device, non_blocking=True) for piece in pieces)
    current.wait_stream(stream)
    for piece in copies:
        piece.record_stream(current)  # else its memory could be given to the next copy while it is still in use
    return copies


class ClipBatch(PixelBatch):
    """Clips of one length, a block each.

    `resample_clips(batch.crops(), batch.size, flips=batch.flips)` makes it the model's input.

    Args:
        pieces: See `PixelBatch`, as for those not named here.
        formats: What the bytes of each crop mean.
        size: Height and width of the clips.
        labels: Class ids of each clip.
        indices: Index of each clip's video.
        failures: Videos that could not be read.
        flips: Whether each clip is to be mirrored.
        seeds: Of what is drawn for each clip on the device.
    """

    def __init__(
        self,
        pieces: tuple[Tensor, ...],
        formats: tuple[RgbFormat | YuvFormat, ...],
        size: int,
        labels: tuple[tuple[int, ...], ...],
        indices: tuple[int, ...],
        failures: tuple[Failure, ...],
        flips: tuple[bool, ...],
        seeds: tuple[int, ...],
    ) -> None:
        super().__init__(pieces, formats, size, labels, indices, failures)
        self.flips, self.seeds = flips, seeds

    @property
    def frames(self) -> int:
        """Frames of each clip (T)."""
        return self.formats[0].frames

    def crops(self) -> list[Tensor | YuvClip]:
        """The crops, T x h x w x 3 each or YUV planes, as views of the bytes."""
        return list(self.blocks())


class _CollateClips:
    """Makes mini-batches of clips."""

    def __call__(self, clips: Sequence[Clip]) -> ClipBatch:
        """The mini-batch of some clips, for training.

        Raises:
            ValueError: If the clips differ in frames or size.
        """
        shapes = {(len(clip.crop), clip.size) for clip in clips}
        if len(shapes) != 1:
            raise ValueError(f"The clips of a mini-batch must have one shape, got (frames, size) in {sorted(shapes)}.")
        [(_, size)] = shapes
        return ClipBatch(
            pieces=(flat_bytes([clip.crop for clip in clips]),),
            formats=tuple(format_of(clip.crop) for clip in clips),
            size=size,
            labels=tuple(clip.labels for clip in clips),
            indices=tuple(clip.index for clip in clips),
            failures=tuple(failure for clip in clips for failure in clip.failures),
            flips=tuple(clip.flip for clip in clips),
            seeds=tuple(clip.seed for clip in clips),
        )

    def join(self, batches: Sequence[ClipBatch]) -> ClipBatch:
        """The mini-batch of which several workers read a piece each, without a copy of the pixels."""
        return ClipBatch(
            pieces=_chained(batch.pieces for batch in batches),
            formats=_chained(batch.formats for batch in batches),
            size=batches[0].size,
            labels=_chained(batch.labels for batch in batches),
            indices=_chained(batch.indices for batch in batches),
            failures=_chained(batch.failures for batch in batches),
            flips=_chained(batch.flips for batch in batches),
            seeds=_chained(batch.seeds for batch in batches),
        )


collate_clips = _CollateClips()
"""The `collate_fn` of `VideoDataset`; see `MultigridLoader` for what its `join` is for."""


def _chained(parts: Iterable[tuple[_T, ...]]) -> tuple[_T, ...]:
    return tuple(chain.from_iterable(parts))


def format_of(block: Tensor | YuvClip) -> RgbFormat | YuvFormat:
    """What the bytes of some frames mean."""
    return block.format if isinstance(block, YuvClip) else RgbFormat(*block.shape[:3])


def flat_bytes(blocks: Sequence[Tensor | YuvClip]) -> Tensor:
    """The bytes of some frames one after the other; in a worker, where the main process finds them without a copy."""
    data = [block.data if isinstance(block, YuvClip) else block.reshape(-1) for block in blocks]
    flat = torch.empty(sum(map(len, data)), dtype=torch.uint8)
    if get_worker_info() is not None:
        flat.share_memory_()  # type: ignore[no-untyped-call]
    return torch.cat(data, out=flat)
