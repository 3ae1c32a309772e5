"""Adapters for torchvision's video transformers, MViT and Swin3D.

MViT v1 has tables of positions. v2 has tables of distances, which torchvision interpolates itself once it knows the
grid.

Swin3D counts distances in tokens, and needs no adapter for time. But where a map is smaller than the window in space,
torchvision numbers the pairs of tokens as if their rows were as wide as the window, and reads the biases of other
distances. On the baseline's grid that stays. On others, each pair reads what the same distance reads there.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from torch import Tensor

from lightning_multigrid.positions.adapters import Adapter, Grids, Table


def mvit_tokens(model: Any, clip: Sequence[int]) -> tuple[int, int, int]:
    """Returns the frames, rows and columns of tokens that an MViT makes of a clip of T x H x W."""
    patches = model.conv_proj
    numbers = zip(clip, patches.padding, patches.kernel_size, patches.stride, strict=True)
    t, h, w = ((points + 2 * padding - kernel) // stride + 1 for points, padding, kernel, stride in numbers)
    return t, h, w


def mvit_tables(model: Any, built: tuple[int, int, int], now: tuple[int, int, int]) -> dict[str, Table]:
    """Returns how the tables of an MViT are resized, by the names of its parameters; empty for relative positions."""
    if model.pos_encoding.spatial_pos is None:
        return {}
    return {
        "pos_encoding.spatial_pos": Table(built[1:], now[1:], mode="bilinear"),
        "pos_encoding.temporal_pos": Table(built[:1], now[:1]),
    }


def _mvit(model: Any, grids: Grids) -> Mapping[str, Any]:
    encoding = model.pos_encoding
    built = encoding.temporal_size, *encoding.spatial_size
    rows, columns = (tokens * stride for tokens, stride in zip(built[1:], model.conv_proj.stride[1:], strict=True))
    if built[0] != mvit_tokens(model, (grids.baseline.frames, rows, columns))[0]:
        return {}  # it was not built for the baseline's grid: something around it, `ResizedPositions`, knows the way
    now = mvit_tokens(model, (grids.now.frames, grids.size(rows), grids.size(columns)))
    sizes = {"pos_encoding.temporal_size": now[0], "pos_encoding.spatial_size": now[1:]}
    return {**sizes, **mvit_tables(model, built, now)}


def _swin(model: Any, grids: Grids) -> Mapping[str, Callable[[Sequence[int]], Tensor]]:
    clip = grids.baseline.frames, grids.baseline.size, grids.baseline.size
    points = [-(-n // patch) for n, patch in zip(clip, model.patch_embed.tuple_patch_size, strict=True)]
    attributes = {}
    for name, part in model.named_modules():
        if type(part).__name__.startswith("PatchMerging"):
            points[1:] = [-(-n // 2) for n in points[1:]]
        elif hasattr(part, "get_relative_position_bias"):
            window = [min(pair) for pair in zip(part.window_size, points, strict=True)]
            attributes[f"{name}.get_relative_position_bias"] = _bias_of_distances(part, window)
    return attributes


def _bias_of_distances(attention: Any, baseline: list[int]) -> Callable[[Sequence[int]], Tensor]:
    """Returns what replaces `get_relative_position_bias` of a layer that has this window on the baseline's grid."""

    def get_relative_position_bias(window: Sequence[int]) -> Tensor:
        if any(now > full for now, full in zip(window, baseline, strict=True)):  # the longer side of a frame
            return type(attention).get_relative_position_bias(attention, window)  # type: ignore[no-any-return]
        tokens = prod(baseline)
        pairs = attention.relative_position_index[:tokens, :tokens].view(*baseline, *baseline)
        t, h, w = window
        number = t * h * w
        rows = pairs[:t, :h, :w, :t, :h, :w].reshape(number * number)
        bias: Tensor = attention.relative_position_bias_table[rows].view(number, number, -1)
        return bias.permute(2, 0, 1).contiguous().unsqueeze(0)

    return get_relative_position_bias


ADAPTERS: dict[str, Adapter] = {"torchvision.MViT": _mvit, "torchvision.SwinTransformer3d": _swin}
