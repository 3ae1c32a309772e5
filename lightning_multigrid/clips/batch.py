"""Decoded clips, and the mini-batch as it travels from a worker to the device.

Legend: B clips, T frames, S size of a mini-batch; h and w source pixels of one crop.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor
from torch.utils.data import get_worker_info
from typing_extensions import Self

from lightning_multigrid.clips.sampling import SourceGrid
from lightning_multigrid.pixels import PackedCrops, YuvClip, to_device


@dataclass(frozen=True)
class BrokenVideo:
    """A video that can't be read, perhaps tried as a `substitute`; or a damaged or `slow` one that is `used_anyway`."""

    path: str
    reason: str
    substitute: bool = False
    used_anyway: bool = False
    slow: bool = False
    index: int = field(default=-1, compare=False)  # its place in the dataset


@dataclass(frozen=True)
class Clip:
    """A decoded clip: T x h x w x 3 uint8, or YUV planes, to be resampled to `size` x `size` pixels.

    `broken` are the videos that were tried before this one, and its own if it is damaged or slow. `seed` is for what is
    drawn for the clip on the device. In evaluation the crop holds the frames of all `views` of its video, each once.
    """

    crop: Tensor | YuvClip
    size: int
    flip: bool
    labels: tuple[int, ...]
    index: int
    broken: tuple[BrokenVideo, ...] = ()
    seed: int = 0
    views: tuple[SourceGrid, ...] = ()


class ClipBatch:
    """Clips on their way to the device, moved and pinned like a tensor: flat bytes, and what they mean.

    Not a dataclass: Lightning's half and double precision look into dataclasses, and refuse frozen ones. `data` are the
    bytes of all crops. `formats`, `labels`, `indices` (of the videos in the dataset), `flips`, `seeds` and `views` have
    an entry for each clip; `size` is the height and width to resample to, in pixels (S).
    `resample_clips(batch.crops(), batch.size, flips=batch.flips)` makes training clips the model's input.
    """

    def __init__(self, clips: Sequence[Clip]) -> None:
        crops = PackedCrops.of([clip.crop for clip in clips])
        self.data = _joined(crops.pieces)
        self.formats = crops.formats
        self.labels = tuple(clip.labels for clip in clips)
        self.indices = tuple(clip.index for clip in clips)
        self.flips = tuple(clip.flip for clip in clips)
        self.seeds = tuple(clip.seed for clip in clips)
        self.views = tuple(clip.views for clip in clips)
        self.broken = tuple(video for clip in clips for video in clip.broken)
        self.size = clips[0].size

    def __len__(self) -> int:
        return len(self.formats)

    @property
    def device(self) -> torch.device:
        return self.data.device

    def crops(self) -> PackedCrops:
        """The crops, T x h x w x 3 each or YUV planes, as views of the bytes."""
        return PackedCrops([self.data], self.formats)

    def class_ids(self) -> Tensor:
        """The single label of each clip: B, int64, on the device of the pixels."""
        return to_device(torch.tensor([label for (label,) in self.labels]), self.device)

    def multi_hot(self, num_classes: int) -> Tensor:
        """1 for each label of each clip, else 0: B x num_classes, float32, on the device of the pixels."""
        hot = torch.zeros(len(self), num_classes)
        for row, labels in zip(hot, self.labels, strict=True):
            row[list(labels)] = 1
        return to_device(hot, self.device)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """The mini-batch on a device. A pinned one is copied while the device computes, and never blocks."""
        if torch.device(device).type == "cuda" and self.data.is_pinned():
            return self._with(_copied_aside(self.data, torch.device(device)))
        return self._with(self.data.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """The mini-batch in memory from which the device copies on its own; the loader calls this."""
        return self._with(self.data.pin_memory())

    def _with(self, data: Tensor) -> Self:
        batch = copy.copy(self)
        batch.data = data
        return batch


def _joined(data: tuple[Tensor, ...]) -> Tensor:
    """Flat bytes in one tensor; a worker puts it where the main process finds it without a copy."""
    flat = torch.empty(sum(map(len, data)), dtype=torch.uint8)
    if get_worker_info() is not None:
        flat.share_memory_()  # type: ignore[no-untyped-call]
    return torch.cat(data, out=flat)


_copy_stream = cache(torch.cuda.Stream)  # of a device


def _copied_aside(data: Tensor, device: torch.device) -> Tensor:
    """Copies pinned bytes on a stream of their own, for which what the device is asked to do after this call waits."""
    device = torch.device("cuda", torch.cuda.current_device()) if device.index is None else device
    stream, current = _copy_stream(device), torch.cuda.current_stream(device)
    with torch.cuda.stream(stream):
        copied = data.to(device, non_blocking=True)
    current.wait_stream(stream)
    copied.record_stream(current)  # else its memory could be given to the next copy while it is still in use
    return copied


collate_clips = ClipBatch
"""The `collate_fn` of `VideoDataset`, for clips of equal frames and size."""
