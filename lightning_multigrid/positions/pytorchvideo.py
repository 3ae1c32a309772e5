"""The adapter for pytorchvideo's MViT; its X3D, Slow and SlowFast end with pools (`pools.py`).

Its tables are those of MViT v1: resized bilinearly in space and linearly in time.
"""

from collections.abc import Mapping
from math import prod
from typing import Any

from lightning_multigrid.positions.adapters import Adapter, Grids, Table


def _tokens(model: Any, grids: Grids) -> tuple[int, ...]:
    patches = getattr(model.patch_embed, "patch_model", None)  # None: something else makes the tokens
    full = model.cls_positional_encoding.patch_embed_shape
    now = [grids.frames, grids.size, grids.size]
    if patches is None:
        return tuple(follow(n) for follow, n in zip(now, full, strict=True))
    shape = [patches.kernel_size, patches.stride, patches.padding]
    if len(patches.stride) == 2:  # of single frames
        shape = [(1, *shape[0]), (1, *shape[1]), (0, *shape[2])]
    return tuple(
        (follow(n * stride) + 2 * padding - kernel) // stride + 1
        for follow, n, kernel, stride, padding in zip(now, full, *shape, strict=True)
    )


def _attributes(model: Any, grids: Grids) -> Mapping[str, Any]:
    now = _tokens(model, grids)
    values = {"_patch_embed_shape": now, "num_spatial_patch": prod(now[1:]), "num_temporal_patch": now[0]}
    return {f"cls_positional_encoding.{name}": value for name, value in values.items()}


def _tables(model: Any, grids: Grids) -> Mapping[str, Table]:
    encoding, now = model.cls_positional_encoding, _tokens(model, grids)
    full = tuple(encoding.patch_embed_shape)
    if encoding.sep_pos_embed:
        tables = {"pos_embed_spatial": Table(full[1:], now[1:], mode="bilinear")}
        tables["pos_embed_temporal"] = Table(full[:1], now[:1])
    else:
        tables = {"pos_embed": Table(full, now, leading=int(encoding.cls_embed_on), mode="bilinear")}
    return {f"cls_positional_encoding.{name}": table for name, table in tables.items()}


ADAPTERS = {"pytorchvideo.MultiscaleVisionTransformers": Adapter(_attributes, _tables)}
