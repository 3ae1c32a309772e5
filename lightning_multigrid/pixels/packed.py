"""Crops as flat bytes, as they come from the workers, and their pixels in one block, by a fixed number of operations.

A GPU takes as long to start an operation as to compute it for one clip. So no crop is touched on its own: the host
writes down where the rows, columns and frames of each lie among the bytes, and the device fetches all pixels by that.

Legend: B clips, T frames, h and w source pixels of one crop, H and W of the block.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from lightning_multigrid.pixels.yuv import YuvClip, YuvFormat, colours, to_device, weights

_MOST_VALUES = 1 << 25  # of crops that are made at once: 128 MiB of float32, and several times that on the way


@dataclass(frozen=True)
class RgbFormat:
    """What the bytes of some frames mean: frames x height x width x 3."""

    frames: int
    height: int
    width: int

    @property
    def nbytes(self) -> int:
        return self.frames * self.height * self.width * 3

    def view(self, data: Tensor) -> Tensor:
        return data.view(self.frames, self.height, self.width, 3)


PixelFormat: TypeAlias = RgbFormat | YuvFormat
Crop: TypeAlias = Tensor | YuvClip  # T x h x w x 3 uint8, or YUV planes


class PackedCrops:
    """Crops whose bytes lie one after the other in one tensor, or in one each; each crop is a view of them.

    `pieces` are the bytes, flat uint8, of all crops or of each; `formats` say what those of each crop mean.

    >>> crops = PackedCrops([torch.zeros(12, dtype=torch.uint8)], [RgbFormat(1, 2, 1), RgbFormat(1, 1, 2)])
    >>> [crop.shape for crop in crops]
    [torch.Size([1, 2, 1, 3]), torch.Size([1, 1, 2, 3])]
    """

    def __init__(self, pieces: Sequence[Tensor], formats: Sequence[PixelFormat]) -> None:
        self.pieces, self.formats = tuple(pieces), tuple(formats)

    @classmethod
    def of(cls, crops: "Crops") -> "PackedCrops":
        if isinstance(crops, cls):
            return crops
        formats = [crop.format if isinstance(crop, YuvClip) else RgbFormat(*crop.shape[:3]) for crop in crops]
        return cls([crop.data if isinstance(crop, YuvClip) else crop.reshape(-1) for crop in crops], formats)

    def __len__(self) -> int:
        return len(self.formats)

    def __iter__(self) -> Iterator[Crop]:
        whole = len(self.pieces) == 1
        pieces = torch.split(self.pieces[0], [format.nbytes for format in self.formats]) if whole else self.pieces
        return (format.view(data) for format, data in zip(self.formats, pieces, strict=True))

    @property
    def device(self) -> torch.device:
        return self.pieces[0].device

    def blocks(self) -> "Iterator[Block]":
        """The pixels of all crops, in a block for each row of neighbours of one kind that has room."""
        data = self.pieces[0] if len(self.pieces) == 1 else torch.cat(self.pieces)
        starts = np.cumsum([0, *(format.nbytes for format in self.formats)])[:, None]
        sides = [max(side) for side in zip(*((format.height, format.width) for format in self.formats), strict=True)]
        most = max(1, _MOST_VALUES // (3 * self.formats[0].frames * sides[0] * sides[1]))
        for kind, group in groupby(range(len(self)), lambda place: type(self.formats[place])):
            places = list(group)
            for first in range(places[0], places[-1] + 1, most):
                part = slice(first, min(first + most, places[-1] + 1))
                yield Block(part, *_PIXELS[kind](data, starts[part], self.formats[part]))


Crops: TypeAlias = Sequence[Crop] | PackedCrops


class Block(NamedTuple):
    """The pixels of some crops, B x 3 x T x H x W float32 from 0 to 255; those around a crop mean nothing.

    `part` says which crops of all they are. The numbers of each crop are columns B x 1: its sides and its first pixel.
    """

    part: slice
    pixels: Tensor
    heights: Any
    widths: Any
    tops: Any
    lefts: Any


def _rgb(data: Tensor, starts: Any, formats: Sequence[RgbFormat]) -> tuple[Any, ...]:
    heights, widths = _columns([(format.height, format.width) for format in formats])
    frames = 3 * heights * widths * np.arange(formats[0].frames) + starts
    rows = 3 * widths * np.minimum(np.arange(heights.max()), heights - 1)
    columns = 3 * np.minimum(np.arange(widths.max()), widths - 1)
    # A place is that of a pixel's red byte; green and blue are next to it.
    pixels = data.unfold(0, 3, 1)[_places(frames, rows, columns, data.device)].permute(0, 4, 1, 2, 3)
    return pixels.to(torch.float32, memory_format=torch.contiguous_format), heights, widths, 0, 0


def _yuv(data: Tensor, starts: Any, formats: Sequence[YuvFormat]) -> tuple[Any, ...]:
    frames = formats[0].frames
    heights, widths, tops, lefts = _columns([(each.height, each.width, each.top, each.left) for each in formats])
    chroma_rows, chroma_columns = (tops + heights + 1) // 2, (lefts + widths + 1) // 2  # `YuvFormat.chroma`
    most_rows, most_columns = chroma_rows.max(), chroma_columns.max()
    # Luma begins at (`top`, `left`), so that the chroma of any clip is 0.5 times as large.
    rows = widths * np.minimum(np.maximum(np.arange(2 * most_rows) - tops, 0), heights - 1)
    columns = np.minimum(np.maximum(np.arange(2 * most_columns) - lefts, 0), widths - 1)
    luma = data[_places(heights * widths * np.arange(frames) + starts, rows, columns, data.device)]
    planes = chroma_rows * chroma_columns * np.arange(2 * frames) + frames * heights * widths + starts
    rows = chroma_columns * np.minimum(np.arange(most_rows), chroma_rows - 1)
    columns = np.minimum(np.arange(most_columns), chroma_columns - 1)
    chroma = data[_places(planes, rows, columns, data.device)]
    chroma = chroma.view(len(formats), frames, 2, *chroma.shape[2:])
    factors = np.array([weights(each.matrix, each.full_range) for each in formats], dtype=np.float32)
    return colours(luma, chroma, to_device(torch.from_numpy(factors), data.device)), heights, widths, tops, lefts


_PIXELS: dict[type, Any] = {RgbFormat: _rgb, YuvFormat: _yuv}


def _places(frames: Any, rows: Any, columns: Any, device: torch.device) -> Tensor:
    """Where the pixels of clips lie among the bytes: B x T x H x W, from the places of frames, rows and columns."""
    sizes = [table.shape[1] for table in (frames, rows, columns)]
    tables = to_device(torch.from_numpy(np.concatenate([frames, rows, columns], axis=1, dtype=np.int64)), device)
    in_time, down, across = torch.split(tables, sizes, dim=1)
    return (in_time[:, :, None] + down[:, None]).unsqueeze(3) + across[:, None, None]


def _columns(rows: Sequence[tuple[int, ...]]) -> Any:
    """A column B x 1 for each number of the rows."""
    return np.array(rows, dtype=np.int64).T[:, :, None]
