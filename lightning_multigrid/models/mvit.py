"""Position embeddings of torchvision's MViT, resized to the grid of each mini-batch.

Convolutions and attention take any number of points; tables with a row per point do not. A coarser grid covers the same
span with fewer points, so each point reads the table at its place in the span, as the clip samples the source (Sec.
3.1).

Legend: B clips, T frames, H W pixels; t h w tokens along them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

if TYPE_CHECKING:  # torchvision's models take longer to import than all that is imported here
    from torchvision.models.video import MViT


class ResizedPositions(nn.Module):
    """An MViT (v1 or v2) of torchvision for clips of any grid, not only the one it was built for.

    The absolute embeddings of v1 are resized bilinearly in space and linearly in time; gradients reach the tables. v2
    interpolates its tables of relative positions itself, once it knows the grid. On the grid it was built for, MViT is
    called unchanged.

    Args:
        model: `torchvision.models.video.mvit_v1_b` or `mvit_v2_s`, which are built for 16 x 224 x 224 and keep to it
            for any baseline, or another `MViT`. Load its weights before. During a call its `pos_encoding` holds the
            grid of that call, so a model can't run two calls at a time.

    Example:
        >>> from torchvision.models.video import mvit_v2_s
        >>> ResizedPositions(mvit_v2_s(num_classes=5)).eval()(torch.zeros(1, 3, 4, 45, 45)).shape
        torch.Size([1, 5])
    """

    def __init__(self, model: MViT) -> None:
        super().__init__()
        self.model = model
        encoding = model.pos_encoding
        self.built_grid: tuple[int, int, int] = (encoding.temporal_size, *encoding.spatial_size)

    def forward(self, x: Tensor) -> Tensor:
        """Takes clips B x 3 x T x H x W, returns logits B x classes."""
        grid = self._token_grid(x)
        if grid == self.built_grid:
            return self.model(x)  # type: ignore[no-any-return]
        encoding = self.model.pos_encoding
        encoding.temporal_size, encoding.spatial_size = grid[0], grid[1:]
        try:
            return torch.func.functional_call(self.model, self._tables(grid), (x,))  # type: ignore[no-any-return]
        finally:
            encoding.temporal_size, encoding.spatial_size = self.built_grid[0], self.built_grid[1:]

    def _token_grid(self, x: Tensor) -> tuple[int, int, int]:
        patches = self.model.conv_proj
        t, h, w = (
            (points + 2 * padding - kernel) // stride + 1
            for points, padding, kernel, stride in zip(
                x.shape[2:], patches.padding, patches.kernel_size, patches.stride, strict=True
            )
        )
        return t, h, w

    def _tables(self, grid: tuple[int, int, int]) -> dict[str, Tensor]:
        """The absolute embeddings on a grid of tokens, by the names of MViT's parameters; empty for relative ones."""
        encoding = self.model.pos_encoding
        if encoding.spatial_pos is None:
            return {}
        _, height, width = self.built_grid
        # rows x channels -> 1 x channels x (t, or h x w)
        space = encoding.spatial_pos.T.unflatten(1, (height, width)).unsqueeze(0)
        time = encoding.temporal_pos.T.unsqueeze(0)
        return {
            "pos_encoding.spatial_pos": interpolate(space, size=grid[1:], mode="bilinear").squeeze(0).flatten(1).T,
            "pos_encoding.temporal_pos": interpolate(time, size=grid[0], mode="linear").squeeze(0).T,
        }
