"""Clips as video files store them, YUV 4:2:0: half the bytes of RGB, and their colours are computed on the device.

A frame has one plane of brightness (Y, luma) and two planes of colour (Cb and Cr, chroma). Those have half the height
and half the width, so that a chroma sample covers 2 x 2 pixels::

    luma     0 1 | 2 3 | 4 5        a crop of the pixels 1 to 4 starts at the second pixel
    chroma    0  |  1  |  2         of chroma sample 0, and needs the samples 0 to 2

Legend: B clips, T frames, h and w luma pixels of one crop.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor

# Weights of red and blue in the luma: ITU-R BT.601 (2.5.1) and BT.709 (3.2).
_WEIGHTS = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722)}


@dataclass(frozen=True)
class YuvFormat:
    """What the bytes of a clip mean: T x h x w of luma, then T x 2 x rows x columns of chroma."""

    frames: int  # T
    height: int  # h, in pixels
    width: int  # w, in pixels
    top: int = 0  # the first row of the clip is row 0 or 1 of the two under its chroma sample
    left: int = 0  # the first column of the clip is column 0 or 1 of the two under its chroma sample
    matrix: Literal["bt601", "bt709"] = "bt601"  # weights with which red, green and blue were mixed
    full_range: bool = False  # whether luma and chroma go from 0 to 255, not luma from 16 to 235 and chroma to 240

    @property
    def chroma(self) -> tuple[int, int]:
        """Rows and columns of the chroma samples that cover the pixels.

        >>> YuvFormat(frames=1, height=4, width=4, top=1, left=0).chroma
        (3, 2)
        """
        return (self.top + self.height + 1) // 2, (self.left + self.width + 1) // 2

    @property
    def nbytes(self) -> int:
        rows, columns = self.chroma
        return self.frames * (self.height * self.width + 2 * rows * columns)

    def planes(self, data: Any) -> tuple[Any, Any]:
        """Luma, T x h x w, and chroma, T x 2 x rows x columns (Cb, Cr): views of flat bytes, a tensor or an array."""
        luma = self.frames * self.height * self.width
        shape = self.frames, self.height, self.width
        return data[:luma].reshape(shape), data[luma:].reshape(self.frames, 2, *self.chroma)

    def view(self, data: Tensor) -> "YuvClip":
        """A clip of this format with these bytes."""
        return YuvClip(data, self)


class YuvClip:
    """A clip of YUV 4:2:0 planes.

    Args:
        data: Its bytes, flat uint8.
        format: What the bytes mean.

    >>> YuvClip(torch.full((6,), 128, dtype=torch.uint8), YuvFormat(1, 2, 2, full_range=True)).rgb().unique()
    tensor([128.])
    """

    def __init__(self, data: Tensor, format: YuvFormat) -> None:
        self.data, self.format = data, format

    @property
    def luma(self) -> Tensor:
        """T x h x w, a view of the bytes."""
        luma: Tensor = self.format.planes(self.data)[0]
        return luma

    @property
    def chroma(self) -> Tensor:
        """T x 2 x rows x columns (Cb, Cr), a view of the bytes."""
        chroma: Tensor = self.format.planes(self.data)[1]
        return chroma

    def __len__(self) -> int:
        return self.format.frames

    @property
    def device(self) -> torch.device:
        return self.data.device

    def cut(self, frames: Sequence[int], top: int, left: int, height: int, width: int) -> "YuvClip":
        """Copies some of the frames (repeats and any order allowed) and a box of their pixels to a new clip."""
        whole = self.format
        y, x = whole.top + top, whole.left + left  # from the corner of the first chroma sample
        format = replace(whole, frames=len(frames), height=height, width=width, top=y % 2, left=x % 2)
        at = torch.tensor(frames, device=self.device)
        luma = self.luma[:, top : top + height, left : left + width][at]
        chroma = self.chroma[:, :, y // 2 : (y + height + 1) // 2, x // 2 : (x + width + 1) // 2][at]
        return format.view(torch.cat([luma.flatten(), chroma.flatten()]))

    def rgb(self) -> Tensor:
        """The colours, 3 x T x h x w float32, from 0 to 255 like those of an RGB clip, but not rounded.

        A pixel has the chroma of the sample that covers it, without interpolation, as in FFmpeg's converter.
        """
        (rows, columns), top, left = self.format.chroma, self.format.top, self.format.left
        luma = self.luma.new_zeros(1, len(self), 2 * rows, 2 * columns)
        down, across = slice(top, top + self.format.height), slice(left, left + self.format.width)
        luma[0, :, down, across] = self.luma
        factors = torch.tensor([weights(self.format.matrix, self.format.full_range)], dtype=torch.float32)
        return colours(luma, self.chroma.unsqueeze(0), to_device(factors, self.device))[0, :, :, down, across]


def colours(luma: Tensor, chroma: Tensor, factors: Tensor) -> Tensor:
    """The colours of clips, B x 3 x T x H x W float32 from 0 to 255, H and W even. See `YuvClip.rgb`.

    `luma` is B x T x H x W, `chroma` B x T x 2 x H/2 x W/2; `factors` are the `weights` of each clip, B x 6.
    """
    luma_scale, black, cr_red, cr_green, cb_green, cb_blue = factors.view(-1, 6, 1, 1, 1).unbind(1)
    y = torch.addcmul(black, luma.float(), luma_scale)
    samples = (chroma.float() - 128).unsqueeze(5).unsqueeze(4)
    cb, cr = samples.expand(-1, -1, -1, -1, 2, -1, 2).reshape(*luma.shape[:2], 2, *luma.shape[2:]).unbind(2)
    rgb = torch.empty(len(luma), 3, *y.shape[1:], dtype=torch.float32, device=luma.device)
    red, green, blue = rgb.unbind(1)
    torch.addcmul(y, cr, cr_red, out=red)
    torch.addcmul(y, cr, cr_green, out=green).addcmul_(cb, cb_green)
    torch.addcmul(y, cb, cb_blue, out=blue)
    return rgb.clamp_(0, 255)


@cache
def weights(matrix: str, full_range: bool) -> tuple[float, ...]:
    """The factor of luma and what is added to it; then the factors of Cr in red and green, of Cb in green and blue."""
    red, blue = _WEIGHTS[matrix]
    green = 1 - red - blue
    # One unit of luma and of chroma in units of RGB (ITU-R BT.601, 2.5.3; the same in BT.709), and black's luma.
    luma, chroma, black = (1, 1, 0) if full_range else (255 / 219, 255 / 224, 16)
    cb_blue, cr_red = 2 * (1 - blue) * chroma, 2 * (1 - red) * chroma
    return luma, -black * luma, cr_red, -cr_red * red / green, -cb_blue * blue / green, cb_blue


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Copies a tensor from the CPU to a device, without waiting for the device to finish its work.

    `torch.tensor(values, device="cuda")` and `.to("cuda")` would wait, at every step. Pixels: `ClipBatch.to`.

    >>> to_device(torch.zeros(2), torch.device("meta")).device
    device(type='meta')
    """
    if device.type != "cuda":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)
