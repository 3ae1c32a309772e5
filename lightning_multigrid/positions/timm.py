"""Adapters for timm's transformers of images, which a video model calls for each frame: ViT and EVA.

Tables are resized as timm's `resample_abs_pos_embed` does, bicubic with antialiasing; models with `dynamic_img_size` do
it themselves. Rotary positions that count tokens are spread, so that token k of n has the position k N / n, which is
what timm's `ref_feat_shape` is for.
"""

import copy
from math import prod
from typing import Any

from lightning_multigrid.positions.adapters import Adapter, Grids, Made, Table


def _tokens(model: Any, grids: Grids) -> tuple[int, ...]:
    # After a stem of convolutions a token has more pixels than `patch_size` says.
    patches = model.patch_embed
    return tuple(grids.size(n) // (n // tokens) for n, tokens in zip(patches.img_size, patches.grid_size, strict=True))


def _vit(model: Any, grids: Grids) -> dict[str, Any]:
    if model.dynamic_img_size:
        return {}
    patches, now = model.patch_embed, _tokens(model, grids)
    sizes = {"img_size": tuple(map(grids.size, patches.img_size)), "grid_size": now, "num_patches": prod(now)}
    changes: dict[str, Any] = {f"patch_embed.{name}": value for name, value in sizes.items()}
    if model.pos_embed is not None:
        leading = 0 if model.no_embed_class else model.num_prefix_tokens
        changes["pos_embed"] = Table(patches.grid_size, now, leading, antialias=True)
    return changes


def _eva(model: Any, grids: Grids) -> dict[str, Any]:
    rope, changes = model.rope, _vit(model, grids)
    if rope is None or not hasattr(rope, "feat_shape"):
        return changes
    now, full = _tokens(model, grids), model.patch_embed.grid_size
    if _counts_tokens(rope):
        changes["rope.ref_feat_shape"] = full
    if rope.feat_shape is not None:
        changes["rope.feat_shape"] = now
        other = copy.deepcopy(rope)
        if _counts_tokens(rope):
            other.ref_feat_shape = rope.feat_shape
        other.update_feat_shape(now)
        changes |= {f"rope.{name}": Made(values.to) for name, values in other.named_buffers()}
    if hasattr(rope, "freqs"):  # learned, with positions that count tokens
        changes["rope.freqs"] = Made(lambda frequencies: frequencies * (full[0] / now[0]))
    return changes


def _counts_tokens(rope: Any) -> bool:
    if getattr(rope, "ref_feat_shape", 0) is not None:
        return False
    return getattr(rope, "grid_type", "pixel" if rope.in_pixels else "index") == "index"


ADAPTERS: dict[str, Adapter] = {"timm.VisionTransformer": _vit, "timm.Eva": _eva}
