"""What an adapter of a class of a library says: what has to change in such a module on another grid.

A clip on a coarser grid spans the same time and space with fewer points (Sec. 3.1). So point k of n on it is point
k N / n of the N of the full grid, and it gets what the model knows of that position.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate


@dataclass(frozen=True)
class Grid:
    """The frames of a clip, and the shorter of its height and width in pixels."""

    frames: int
    size: int


@dataclass(frozen=True)
class Grids:
    """The baseline's grid, and that of the current mini-batch."""

    baseline: Grid
    now: Grid

    def frames(self, built: int) -> int:
        """The frames that a module sees now that was built for `built` frames."""
        return max(1, round(built * self.now.frames / self.baseline.frames))

    def size(self, built: int) -> int:
        """The height or width that a module sees now that was built for `built` pixels."""
        return max(1, round(built * self.now.size / self.baseline.size))


@dataclass(frozen=True)
class Table:
    """How a table with a row per token becomes one for another grid: in space, then linearly in time."""

    full: tuple[int, int, int]  # frames, rows and columns of tokens of the whole table; 1 along an axis that it lacks
    now: tuple[int, int, int]  # those of the current grid
    leading: int = 0  # rows before those of the tokens, which have no position: that of a class token, for instance
    mode: str = "bicubic"  # how the model's authors resize it in space, as `torch.nn.functional.interpolate`
    antialias: bool = False

    def resized(self, values: Tensor) -> Tensor:
        """Returns a table `... x rows x channels` for the current grid. Gradients flow to the whole table.

        >>> Table((1, 2, 2), (1, 1, 1), leading=1, mode="bilinear").resized(torch.tensor([[9.0], [0], [1], [2], [3]]))
        tensor([[9.0000],
                [1.5000]])
        """
        if self.full == self.now:
            return values
        leading, tokens = values[..., : self.leading, :], values[..., self.leading :, :]
        # ... x tokens x C -> N x T x C x H x W
        (t, *full), (frames, *now) = self.full, self.now
        tokens = tokens.reshape(-1, *self.full, values.shape[-1]).permute(0, 1, 4, 2, 3)
        if full != now:
            images = tokens.flatten(0, 1)
            images = interpolate(images, size=now, mode=self.mode, align_corners=False, antialias=self.antialias)
            tokens = images.view(-1, t, *images.shape[1:])
        if t != frames:
            tracks = interpolate(tokens.flatten(2).transpose(1, 2), size=frames, mode="linear")
            tokens = tracks.transpose(1, 2).reshape(-1, frames, values.shape[-1], *now)
        tokens = tokens.permute(0, 1, 3, 4, 2).reshape(*leading.shape[:-2], -1, values.shape[-1])
        return torch.cat((leading, tokens), dim=-2)


# What has to change in a module of a class on a grid that is not the baseline's, by names of attributes. A parameter or
# a buffer has a table: whoever reads it meanwhile gets it resized, and the gradient flows to the whole one. Another
# attribute has a value, which is set for the mini-batches of the grid, and given back afterwards.
Adapter = Callable[[Any, Grids], Mapping[str, Table | Any]]


def resizes_itself(module: Any, grids: Grids) -> Mapping[str, Any]:
    """The adapter of a class that brings its tables to the grid of what it gets."""
    return {}
