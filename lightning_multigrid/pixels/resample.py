"""Resamples source crops to the clips of a mini-batch, on the device where the crops are (Sec. 3.1).

A crop holds the source pixels under the sampling grid of one clip. The grid's stride and so the crop's size differ from
clip to clip; after resampling all clips have one size::

    T x 231 x 231 x 3 uint8
    T x 187 x 187 x 3 uint8    ->    B x 3 x T x S x S float32
    ...

Legend: B clips, T frames, h and w source pixels of one crop, S size of the mini-batch; the 3 channels are RGB.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import grid_sample, interpolate

from lightning_multigrid.pixels.packed import Block, Crops, PackedCrops
from lightning_multigrid.pixels.yuv import YuvClip, to_device

# Mean and deviation of the channels, in units of the whole range: those of the paper's code base.
MEAN = (0.45, 0.45, 0.45)
STD = (0.225, 0.225, 0.225)
_ONE_BY_ONE = {"cpu"}  # whose cache holds one crop; on GPUs each operation has to be launched


def resample_clips(
    crops: Crops,
    size: int,
    *,
    flips: Sequence[bool] | None = None,
    mean: tuple[float, float, float] = MEAN,
    std: tuple[float, float, float] = STD,
    antialias: bool = False,
) -> Tensor:
    """Resamples crops bilinearly to one size and normalises them: (x / 255 - mean) / std.

    Pixels are areas, so the corners of crop and clip coincide (`align_corners=False`).

    Args:
        crops: For each clip a T x h x w x 3 uint8 tensor, or a `YuvClip`. h and w may differ from clip to clip.
        size: Height and width of the clips, in pixels (S).
        flips: Which clips to mirror left to right; none if not given.
        mean: Per channel, in units of the range 0 to 1.
        std: Per channel, in units of the range 0 to 1.
        antialias: Whether to average over all source pixels between two points of a coarser grid; the paper does not.

    Returns:
        B x 3 x T x S x S float32, on the crops' device.

    Raises:
        ValueError: If the crops' shapes, `flips`, `mean` or `std` don't fit.
        TypeError: If a crop is not uint8.

    >>> resample_clips([torch.zeros(8, 40, 30, 3, dtype=torch.uint8)] * 2, size=16).shape
    torch.Size([2, 3, 8, 16, 16])
    """
    check_normalisation(mean, std)
    packed = _checked(crops, flips)
    device, frames = packed.device, packed.formats[0].frames
    # One multiplication and one addition: x / (255 std) - mean / std, C x 1 x 1 x 1.
    factors = [1 / (255 * s) for s in std] + [-m / s for m, s in zip(mean, std, strict=True)]
    flips = flips or [False] * len(packed)
    clips = torch.empty(len(packed), 3, frames, size, size, dtype=torch.float32, device=device)
    if not antialias and device.type not in _ONE_BY_ONE:
        for block in packed.blocks():
            _resample_block(block, size, flips[block.part], factors, out=clips[block.part])
        return clips
    scale, shift = to_device(torch.tensor(factors, dtype=torch.float32), device).view(2, 3, 1, 1, 1)
    for clip, crop, flip in zip(clips, packed, flips, strict=True):
        pixels = _rgb(crop, flip)
        resized = interpolate(pixels, size=(size, size), mode="bilinear", align_corners=False, antialias=antialias)
        torch.addcmul(shift, resized, scale, out=clip)
    return clips


def _rgb(crop: Tensor | YuvClip, flip: bool) -> Tensor:
    """The pixels of a crop, 3 x T x h x w float32, from 0 to 255."""
    if isinstance(crop, YuvClip):
        pixels = crop.rgb()
        return pixels.flip(3) if flip else pixels
    # Mirrored while a pixel is a byte. The copy of the conversion also brings it to 3 x T x h x w.
    pixels = (crop.flip(2) if flip else crop).permute(3, 0, 1, 2)
    return pixels.to(torch.float32, memory_format=torch.contiguous_format)


def _resample_block(block: Block, size: int, flips: Sequence[bool], factors: Sequence[float], out: Tensor) -> None:
    """Resamples the crops of a block to clips B x 3 x T x S x S, and normalises them by three scales and shifts."""
    frames, device = block.pixels.shape[2], block.pixels.device
    rows, columns = _points(size, block.heights), _points(size, block.widths)
    columns = np.where(np.array(flips)[:, None], block.widths - 1 - columns, columns)
    # Where each crop lies in the block: `grid_sample` counts from -1 to 1, from edge to edge of the block.
    y = (2 * (rows + block.tops) + 1) / block.pixels.shape[3] - 1
    x = (2 * (columns + block.lefts) + 1) / block.pixels.shape[4] - 1
    numbers = np.concatenate([x.ravel(), y.ravel(), factors], dtype=np.float32)  # one copy to the device
    points, scale, shift = torch.split(to_device(torch.from_numpy(numbers), device), [2 * x.size, 3, 3])
    across, down = points.view(2, -1, size)
    grid = torch.stack([across[:, None, :].expand(-1, size, -1), down[:, :, None].expand(-1, -1, size)], dim=3)
    sampled = grid_sample(block.pixels.flatten(1, 2), grid, align_corners=False).view(-1, 3, frames, size, size)
    torch.addcmul(shift.view(3, 1, 1, 1), sampled, scale.view(3, 1, 1, 1), out=out)


def _points(size: int, sides: Any) -> Any:
    """Where the points of a grid lie on sides B x 1: B x S, in pixels from the middle of the first pixel."""
    return np.minimum(np.maximum((np.arange(size) + 0.5) / size * sides - 0.5, 0), sides - 1)


def check_normalisation(mean: Sequence[float], std: Sequence[float]) -> None:
    """Checks the mean and the deviation of three channels."""
    if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
        raise ValueError(f"`mean` and `std` must have 3 entries, `std` above 0; got {mean=} and {std=}.")


def _checked(crops: Crops, flips: Sequence[bool] | None) -> PackedCrops:
    if flips is not None and len(flips) != len(crops):
        raise ValueError(f"`flips` must have one entry per crop: got {len(flips)} for {len(crops)} crops.")
    # Of packed crops no views are made, which would cost the host more than all the rest.
    for index, crop in enumerate([] if isinstance(crops, PackedCrops) else crops):
        if isinstance(crop, Tensor) and crop.dtype != torch.uint8:
            raise TypeError(f"Crops must be uint8, got {crop.dtype} for crop {index}. Normalisation is done here.")
        if isinstance(crop, Tensor) and (crop.ndim != 4 or crop.shape[3] != 3 or 0 in crop.shape):
            raise ValueError(f"Crops must be frames x height x width x 3, got {tuple(crop.shape)} for crop {index}.")
    packed = PackedCrops.of(crops)
    if len(lengths := {format.frames for format in packed.formats}) > 1:
        raise ValueError(f"Crops must have one length, got crops of {' and '.join(map(str, sorted(lengths)))} frames.")
    return packed
