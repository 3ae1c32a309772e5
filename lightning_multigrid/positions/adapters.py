"""The adapters of libraries' classes: what has to change in such a module on another grid; and the patches of a model.

A clip on a coarser grid spans the same time and space with fewer points (Sec. 3.1). So point k of n on it is point
k N / n of the N of the full grid, and it gets what the model knows of that position.

- torchvision: MViT v1 has tables of positions. v2 has tables of distances, which torchvision interpolates itself once
  it knows the grid. Swin3D counts distances in tokens; see `_swin`.
- transformers: VideoMAE's and ViViT's tables are resized as their authors do, bicubic in space, then linear in time.
  TimeSformer resizes its tables itself. For V-JEPA 2 see `_vjepa2_ids`.
- timm, called for each frame: tables are resized as its `resample_abs_pos_embed` does, bicubic with antialiasing.
- pools of a fixed size, with which models of convolutions often end; see `_pool`.
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import lcm, prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
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


POOLS: dict[type[nn.Module], Callable[..., Any]] = {
    nn.AvgPool2d: functional.avg_pool2d,
    nn.AvgPool3d: functional.avg_pool3d,
    nn.MaxPool2d: functional.max_pool2d,
    nn.MaxPool3d: functional.max_pool3d,
}


def _pool(pool: Any, grids: Grids) -> Mapping[str, Callable[[Tensor], Any]]:
    """Its kernel is the baseline's feature map, and a coarser grid has a smaller one: the pool takes what is there."""
    kind = next(kind for kind in POOLS if isinstance(pool, kind))
    if type(pool).forward is not kind.forward or getattr(pool, "divisor_override", None):
        return {}
    axes, pooled = int(kind.__name__[-2]), POOLS[kind]
    settings = {name: getattr(pool, name) for name in pool.__constants__}
    kernel, padding = (_each(settings[name], axes) for name in ("kernel_size", "padding"))

    def forward(x: Tensor) -> Any:
        sizes = zip(kernel, padding, x.shape[-axes:], strict=True)
        smaller = tuple(k if padded else min(k, points) for k, padded, points in sizes)
        return pooled(x, **settings | {"kernel_size": smaller})

    return {"forward": forward}


def _each(size: Any, axes: int) -> tuple[int, ...]:
    return tuple(size) if isinstance(size, Iterable) else (size,) * axes


# --- torchvision ---


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
        "pos_encoding.spatial_pos": Table((1, *built[1:]), (1, *now[1:]), mode="bilinear"),
        "pos_encoding.temporal_pos": Table((built[0], 1, 1), (now[0], 1, 1)),
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
    """Where a map is smaller than the window in space, torchvision reads the biases of other distances."""
    # It numbers the pairs of tokens as if their rows were as wide as the window. On the baseline's grid that stays. On
    # others, each pair reads what the same distance reads there.
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


# --- transformers ---


def _tokens(points: Iterable[int], patch: Iterable[int]) -> tuple[int, int, int]:
    t, h, w = (max(1, n // p) for n, p in zip(points, patch, strict=True))
    return t, h, w


def _image_size(module: Any, grids: Grids) -> dict[str, Any]:
    """What clips are compared with: height and width, as a pair or as a number."""
    if not hasattr(module, "image_size"):
        return {}
    size = module.image_size
    return {"image_size": tuple(map(grids.size, size)) if isinstance(size, Iterable) else grids.size(size)}


def _table(built: tuple[int, ...], patch: tuple[int, ...], grids: Grids, leading: int = 0) -> Table:
    """The table of a model that was built for this many frames, rows and columns of pixels."""
    now = grids.frames(built[0]), *map(grids.size, built[1:])
    return Table(_tokens(built, patch), _tokens(now, patch), leading)


def _videomae(module: Any, grids: Grids) -> dict[str, Any]:
    config = module.config
    built = config.num_frames, *_each(config.image_size, 2)
    table = _table(built, (config.tubelet_size, *_each(config.patch_size, 2)), grids)
    # Sinusoids: a plain tensor, neither parameter nor buffer.
    return {"position_embeddings": table.resized(module.position_embeddings)}


def _vivit_table(patches: Any, grids: Grids) -> Table:
    sides, patch = _each(patches.image_size, 2), patches.projection.stride
    frames = patches.num_patches // (sides[0] // patch[1]) // (sides[1] // patch[2]) * patch[0]
    return _table((frames, *sides), patch, grids, leading=1)


def _vivit_patches(module: Any, grids: Grids) -> dict[str, Any]:
    # By their number, `interpolate_pos_encoding` sees that the table has been resized.
    return {**_image_size(module, grids), "num_patches": prod(_vivit_table(module, grids).now)}


def _vivit(module: Any, grids: Grids) -> dict[str, Any]:
    return {**_image_size(module, grids), "position_embeddings": _vivit_table(module.patch_embeddings, grids)}


def _timesformer(module: Any, grids: Grids) -> dict[str, Any]:
    """Divided attention tells frames from rows and columns by the config, which the whole model shares."""
    config = copy.copy(module.config)
    config.num_frames, config.image_size = grids.frames(config.num_frames), grids.size(config.image_size)
    return {"config": config}


def _vjepa2_ids(module: Any, grids: Grids) -> dict[str, Any]:
    """Rotary attention computes integer positions from the number of a token: they are multiplied."""
    # So the authors do for other resolutions (`vjepa2`, action-conditioned predictor). Centres need no alignment: that
    # adds a constant, and rotary attention sees differences.
    config = module.config
    depth = max(1, grids.frames(config.frames_per_clip) // config.tubelet_size)
    size = grids.size(config.crop_size) // config.patch_size
    scales = module.grid_depth / depth, module.grid_size / size, module.grid_size / size
    own = type(module).get_position_ids

    def get_position_ids(x: Tensor, masks: Tensor | None = None) -> tuple[Tensor, ...]:
        ids = own(module, x, masks)
        return tuple(i if s == 1 else (i * s).to(x.dtype) for i, s in zip(ids, scales, strict=True))

    return {"grid_depth": depth, "grid_size": size, "get_position_ids": get_position_ids}


# --- timm ---


def _vit(model: Any, grids: Grids) -> dict[str, Any]:
    if model.dynamic_img_size:
        return {}
    patches = model.patch_embed
    # After a stem of convolutions a token has more pixels than `patch_size` says.
    full, sides = patches.grid_size, tuple(map(grids.size, patches.img_size))
    now = tuple(n // (whole // tokens) for n, tokens, whole in zip(sides, full, patches.img_size, strict=True))
    sizes = {"img_size": sides, "grid_size": now, "num_patches": prod(now)}
    changes: dict[str, Any] = {f"patch_embed.{name}": value for name, value in sizes.items()}
    if model.pos_embed is not None:
        leading = 0 if model.no_embed_class else model.num_prefix_tokens
        changes["pos_embed"] = Table((1, *full), (1, *now), leading, antialias=True)
    return changes


# By the library and the name of the class.
ADAPTERS: dict[str, Adapter] = {
    **{f"torch.{pool.__name__}": _pool for pool in POOLS},
    "torchvision.MViT": _mvit,
    "torchvision.SwinTransformer3d": _swin,
    "transformers.VideoMAEPatchEmbeddings": _image_size,
    "transformers.VideoMAEEmbeddings": _videomae,
    "transformers.VideoMAEForPreTraining": _videomae,
    "transformers.VivitTubeletEmbeddings": _vivit_patches,
    "transformers.VivitEmbeddings": _vivit,
    "transformers.TimesformerEmbeddings": resizes_itself,
    "transformers.TimesformerLayer": _timesformer,
    "transformers.VJEPA2RopeAttention": _vjepa2_ids,
    "timm.VisionTransformer": _vit,
}


def adapter_of(module: nn.Module) -> Adapter | None:
    """The adapter of a module by its library and class, or one it inherits from: the paths between are not stable."""
    names = (f"{cls.__module__.partition('.')[0]}.{cls.__name__}" for cls in type(module).__mro__)
    return next((ADAPTERS[name] for name in names if name in ADAPTERS), None)


def patch_divisors(module: nn.Module) -> tuple[int, int]:
    """Returns the frames and the pixels of a patch, which each grid should have multiples of; 1 without patches.

    The first convolution makes patches if its stride is its kernel.

    >>> patch_divisors(nn.Sequential(nn.Conv3d(3, 8, (2, 16, 16), stride=(2, 16, 16)), nn.Conv3d(8, 8, 3)))
    (2, 16)
    """
    first = next((part for part in module.modules() if isinstance(part, (nn.Conv2d, nn.Conv3d))), None)
    if first is None or first.kernel_size != first.stride:
        return 1, 1
    *frames, height, width = first.stride
    return frames[0] if frames else 1, lcm(height, width)
