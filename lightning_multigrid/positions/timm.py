"""Adapters for timm's transformers of images, which a video model calls for each frame: ViT and EVA.

Tables are resized as timm's `resample_abs_pos_embed` does, bicubic with antialiasing; models with `dynamic_img_size` do
it themselves. Rotary positions that count tokens are spread, so that token k of n has the position k N / n, which is
what timm's `ref_feat_shape` is for.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import Tensor

from lightning_multigrid.positions.adapters import Adapter, Grids, Table


@dataclass(frozen=True)
class _Made:
    """A table that a function makes for the current grid, instead of being resized."""

    resized: Callable[[Tensor], Tensor]


def _tokens(model: Any, grids: Grids) -> tuple[int, ...]:
    # After a stem of convolutions a token has more pixels than `patch_size` says.
    patches = model.patch_embed
    return tuple(grids.size(n) // (n // tokens) for n, tokens in zip(patches.img_size, patches.grid_size, strict=True))


def _vit_attributes(model: Any, grids: Grids) -> Mapping[str, Any]:
    if model.dynamic_img_size:
        return {}
    now = _tokens(model, grids)
    return {
        "patch_embed.img_size": tuple(map(grids.size, model.patch_embed.img_size)),
        "patch_embed.grid_size": now,
        "patch_embed.num_patches": prod(now),
    }


def _vit_tables(model: Any, grids: Grids) -> Mapping[str, Any]:
    if model.dynamic_img_size or model.pos_embed is None:
        return {}
    leading = 0 if model.no_embed_class else model.num_prefix_tokens
    return {"pos_embed": Table(model.patch_embed.grid_size, _tokens(model, grids), leading, antialias=True)}


def _eva_attributes(model: Any, grids: Grids) -> Mapping[str, Any]:
    rope, attributes = model.rope, dict(_vit_attributes(model, grids))
    if rope is not None and hasattr(rope, "feat_shape"):
        if rope.feat_shape is not None:
            attributes["rope.feat_shape"] = _tokens(model, grids)
        if _counts_tokens(rope):
            attributes["rope.ref_feat_shape"] = model.patch_embed.grid_size
    return attributes


def _eva_tables(model: Any, grids: Grids) -> Mapping[str, Any]:
    rope, tables = model.rope, dict(_vit_tables(model, grids))
    if rope is None or not hasattr(rope, "feat_shape"):
        return tables
    if rope.feat_shape is not None:
        other = copy.deepcopy(rope)
        if _counts_tokens(rope):
            other.ref_feat_shape = rope.feat_shape
        other.update_feat_shape(_tokens(model, grids))
        tables |= {f"rope.{name}": _Made(values.to) for name, values in other.named_buffers()}
    if hasattr(rope, "freqs"):  # learned, with places that count tokens
        further = model.patch_embed.grid_size[0] / _tokens(model, grids)[0]
        tables["rope.freqs"] = _Made(lambda frequencies: frequencies * further)
    return tables


def _counts_tokens(rope: Any) -> bool:
    if getattr(rope, "ref_feat_shape", 0) is not None:
        return False
    return getattr(rope, "grid_type", "pixel" if rope.in_pixels else "index") == "index"


ADAPTERS = {
    "timm.VisionTransformer": Adapter(_vit_attributes, _vit_tables),
    "timm.Eva": Adapter(_eva_attributes, _eva_tables),
}
