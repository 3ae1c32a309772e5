"""Clips of a fixed size, from a user's own dataset, resampled to the grid of a request.

The clips of the baseline are finer than any grid of the schedule, so a grid takes some of their frames and resizes
their pixels. Both happen per sample in the worker. So a coarse mini-batch never holds more than it needs, in memory or
on the way to the device, and the user's `collate_fn` and transfer hooks see ordinary samples.

An image is a clip of one frame: its axes are C x H x W, and only its pixels are resized.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence, Sized
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils.data import Dataset

from lightning_multigrid.loading.randomness import derive_seed, own_generators, reseed_own, seeded
from lightning_multigrid.loading.requests import ClipRequest
from lightning_multigrid.schedule import frame_indices, span, stride_range

_AXES = "CTHW"
_IMAGE_AXES = "CHW"


def clip_layout(shape: tuple[int, ...]) -> str:
    """Names the axes of a clip: the first of `CTHW`, `TCHW`, `THWC` with 1 or 3 channels; of an image: `CHW`, `HWC`.

    Three axes without 1 or 3 channels are refused: they may be those of a clip without channels.

    >>> clip_layout((3, 16, 112, 112)), clip_layout((16, 3, 112, 112)), clip_layout((3, 224, 224))
    ('CTHW', 'TCHW', 'CHW')
    """
    if len(shape) == len(_IMAGE_AXES):
        if shape[0] in (1, 3):
            return _IMAGE_AXES
        if shape[2] in (1, 3):
            return "HWC"
        raise ValueError(
            f"A sample has a tensor of {' x '.join(map(str, shape))}, which may be an image or the frames of a clip. "
            "Images need 1 or 3 channels, or `layout='CHW'` in MultigridCallback; clips need four axes."
        )
    return next((layout for layout in (_AXES, "TCHW", "THWC") if shape[layout.index("C")] in (1, 3)), _AXES)


def reduce_clip(clip: Tensor, request: ClipRequest, layout: str = _AXES) -> Tensor:
    """Resamples a clip to the grid of a request (Sec. 3.1); returns a clip that is on the grid unchanged.

    Frames are taken at a random integer stride from a random start, both drawn from the request's seed. Pixels are
    resized bilinearly: the shorter of H and W becomes the request's size, and the aspect ratio stays. The grid may not
    be finer than the clip, which is uint8 or floating point.
    """
    if "T" not in layout:
        return reduce_clip(clip.unsqueeze(0), request, "T" + layout).squeeze(0)
    frames, height, width = (clip.shape[layout.index(axis)] for axis in "THW")
    if request.frames > frames:
        raise ValueError(
            f"The grid needs {request.frames} frames, but the clip has {frames}. All clips must have the same length."
        )
    if request.frames < frames:
        draw = random.Random(request.seed)
        stride = draw.randint(*stride_range(request.frames, frames, stride=1))
        start = draw.randint(0, frames - 1 - span(request.frames - 1, stride))
        indices = torch.tensor(frame_indices(frames, request.frames, stride, start), device=clip.device)
        clip = clip.index_select(layout.index("T"), indices)
    if request.size == min(height, width):
        return clip
    scale = request.size / min(height, width)
    order = [layout.index(axis) for axis in "TCHW"]
    resized = interpolate(
        clip.permute(order), size=(round(height * scale), round(width * scale)), mode="bilinear", align_corners=False
    )
    return resized.permute([order.index(axis) for axis in range(4)]).contiguous()


def _is_clip(value: Any, axes: int) -> bool:
    return isinstance(value, (Tensor, np.ndarray)) and value.ndim == axes


def _find_clips(sample: Any, axes: int) -> list[Tensor]:
    """The tensors with this number of axes in a sample: the sample itself, or inside tuples, lists and dicts."""
    if _is_clip(sample, axes):
        return [torch.as_tensor(sample)]
    parts = list(sample.values()) if isinstance(sample, dict) else sample
    return [clip for part in parts for clip in _find_clips(part, axes)] if isinstance(parts, (tuple, list)) else []


def _replace_clip(sample: Any, axes: int, replace: Callable[[Tensor], Tensor]) -> Any:
    """The sample with its clip replaced. Everything else stays, and an array is replaced by an array."""
    if _is_clip(sample, axes):
        clip = torch.as_tensor(sample)
        replaced = replace(clip)
        if replaced is clip:
            return sample
        return replaced.numpy() if isinstance(sample, np.ndarray) else replaced
    if isinstance(sample, dict):
        values = [_replace_clip(value, axes, replace) for value in sample.values()]
        return type(sample)(zip(sample, values, strict=True))
    if isinstance(sample, (tuple, list)):
        parts = [_replace_clip(part, axes, replace) for part in sample]
        is_namedtuple = isinstance(sample, tuple) and type(sample) is not tuple
        return type(sample)(*parts) if is_namedtuple else type(sample)(parts)
    return sample


class FixedClips:
    """Any map-style dataset of clips of one size, as a `ClipDataset`.

    The request seeds the dataset's random augmentation: the global random state, and generators that the dataset or its
    transforms hold. So what they draw depends on neither workers nor ranks. Samples that are None stay None.

    Args:
        dataset: A sample is a clip of four axes or an image of three axes, or a tuple, list, dict or namedtuple that
            holds one.
        layout: Names the axes of a clip, or of an image. If None, the layout is inferred from the channel axis, and
            samples without a 4D tensor are treated as images.

    Attributes:
        first: Index of the first sample that is not None, out of which the grids are tried.

    Raises:
        ValueError: If a sample doesn't hold exactly one clip, or the layout can't be inferred, or `layout` is invalid.
    """

    stride = 1

    def __init__(self, dataset: Dataset[Any], layout: str | None = None) -> None:
        if layout is not None and sorted(layout) not in (sorted(_AXES), sorted(_IMAGE_AXES)):
            raise ValueError(
                f"`layout` must name each of the axes C, T, H and W once, or C, H and W for images, got {layout!r}."
            )
        self.dataset = dataset
        with seeded(0):
            read = ((index, dataset[index]) for index in range(min(100, len(self))))
            self.first, sample = next((pair for pair in read if pair[1] is not None), (0, None))
        wanted = (len(_AXES), len(_IMAGE_AXES)) if layout is None else (len(layout),)
        found = next((clips for axes in wanted if (clips := _find_clips(sample, axes))), [])
        if not found:
            raise ValueError(
                f"A sample of {type(dataset).__name__} must hold a clip: a tensor of four axes, C x T x H x W, or of "
                f"three for images, C x H x W; got {type(sample).__name__}. Let `__getitem__` return the tensor, or a "
                "tuple, list, dict or namedtuple that holds it."
            )
        if len(found) > 1:
            raise ValueError(
                f"A sample of {type(dataset).__name__} must hold one clip, got {len(found)}, of "
                f"{' and '.join(str(tuple(clip.shape)) for clip in found)}. Return one, and make the others from it in "
                "the model (SlowFast's pathways), or give the dataset a method `read_clip` (see `ClipDataset`)."
            )
        shape = tuple(found[0].shape)
        self.layout = clip_layout(shape) if layout is None else layout
        self.frames = shape[self.layout.index("T")] if "T" in self.layout else 1
        self.size = min(shape[self.layout.index(axis)] for axis in "HW")

    def __len__(self) -> int:
        return len(cast("Sized", self.dataset))

    def read_clip(self, request: ClipRequest) -> Any:
        """Returns the sample with its clip resampled to the request's grid."""
        return self.read_clips([request])[0]

    def read_clips(self, requests: Sequence[ClipRequest]) -> list[Any]:
        """Returns for each request what `read_clip` would."""
        own = own_generators(self.dataset)
        return [self._read(request, own) for request in requests]

    def _read(self, request: ClipRequest, own: list[Any]) -> Any:
        reseed_own(own, derive_seed(request.seed, 1))  # so that they don't draw what the global ones do
        with seeded(request.seed):
            sample = self.dataset[request.index]
        return _replace_clip(sample, len(self.layout), lambda clip: reduce_clip(clip, request, self.layout))
