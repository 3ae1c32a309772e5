"""Adapters for the video models of `transformers`: VideoMAE, TimeSformer, ViViT and V-JEPA 2.

VideoMAE's and ViViT's tables are resized as their authors do: bicubic in space, then linear in time. TimeSformer
resizes its tables itself. V-JEPA 2's rotary attention computes integer positions from the number of a token. On a
coarser grid they are multiplied, so that token k of n has the position k N / n, as the authors do for other resolutions
(`vjepa2`, action-conditioned predictor). Centres need no alignment: that adds a constant, and rotary attention sees
differences.
"""

import copy
from collections.abc import Iterable
from math import prod
from typing import Any

from torch import Tensor

from lightning_multigrid.positions.adapters import Adapter, Grids, Table, resizes_itself


def _sides(size: Any) -> tuple[int, int]:
    return tuple(size) if isinstance(size, Iterable) else (size, size)


def _table(frames: int, size: Any, patch: tuple[int, int, int], grids: Grids, leading: int = 0) -> Table:
    """The table of tokens, frames x rows x columns, of a model that was built for so many frames and pixels."""
    full = frames, *_sides(size)
    now = grids.frames(frames), *map(grids.size, full[1:])
    tokens = [tuple(max(1, n // p) for n, p in zip(points, patch, strict=True)) for points in (full, now)]
    return Table(tokens[0], tokens[1], leading)


def _image_size(module: Any, grids: Grids) -> dict[str, Any]:
    """What clips are compared with: height and width, as a pair or as a number."""
    if not hasattr(module, "image_size"):
        return {}
    size = module.image_size
    return {"image_size": tuple(map(grids.size, size)) if isinstance(size, Iterable) else grids.size(size)}


def _videomae_table(module: Any, grids: Grids) -> dict[str, Any]:
    config = module.config
    table = _table(config.num_frames, config.image_size, (config.tubelet_size, *_sides(config.patch_size)), grids)
    # Sinusoids: a plain tensor, neither parameter nor buffer.
    return {"position_embeddings": table.resized(module.position_embeddings)}


def _vivit_table(patches: Any, grids: Grids) -> Table:
    sides, patch = _sides(patches.image_size), patches.projection.stride
    in_time = patches.num_patches // (sides[0] // patch[1]) // (sides[1] // patch[2])
    return _table(in_time * patch[0], sides, patch, grids, leading=1)


def _vivit_patches(module: Any, grids: Grids) -> dict[str, Any]:
    # By their number, `interpolate_pos_encoding` sees that the table has been resized.
    return {**_image_size(module, grids), "num_patches": prod(_vivit_table(module, grids).now)}


def _vivit_embeddings(module: Any, grids: Grids) -> dict[str, Any]:
    return {**_image_size(module, grids), "position_embeddings": _vivit_table(module.patch_embeddings, grids)}


def _timesformer_config(module: Any, grids: Grids) -> dict[str, Any]:
    """Divided attention tells frames from rows and columns by the config, which the whole model shares."""
    config = copy.copy(module.config)
    config.num_frames, config.image_size = grids.frames(config.num_frames), grids.size(config.image_size)
    return {"config": config}


def _vjepa2_ids(module: Any, grids: Grids) -> dict[str, Any]:
    config = module.config
    depth = max(1, grids.frames(config.frames_per_clip) // config.tubelet_size)
    size = grids.size(config.crop_size) // config.patch_size
    scales = module.grid_depth / depth, module.grid_size / size, module.grid_size / size
    own = type(module).get_position_ids

    def get_position_ids(x: Tensor, masks: Tensor | None = None) -> tuple[Tensor, ...]:
        ids = own(module, x, masks)
        return tuple(i if s == 1 else (i * s).to(x.dtype) for i, s in zip(ids, scales, strict=True))

    return {"grid_depth": depth, "grid_size": size, "get_position_ids": get_position_ids}


ADAPTERS: dict[str, Adapter] = {
    "transformers.VideoMAEPatchEmbeddings": _image_size,
    "transformers.VideoMAEEmbeddings": _videomae_table,
    "transformers.VideoMAEForPreTraining": _videomae_table,
    "transformers.VivitTubeletEmbeddings": _vivit_patches,
    "transformers.VivitEmbeddings": _vivit_embeddings,
    "transformers.TimesformerEmbeddings": resizes_itself,
    "transformers.TimesformerLayer": _timesformer_config,
    "transformers.VJEPA2RopeAttention": _vjepa2_ids,
}
