"""Clips of a fixed size, as a user's own dataset gives them, brought to the grid of a request.

The clips of the baseline are finer than any grid of the schedule, so each grid is a subset of their frames and a resize
of their pixels. Both happen per sample in the worker: a coarse mini-batch never holds, or moves to the device, more
than it needs, and the user's `collate_fn` and transfer hooks see ordinary samples.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils.data import Dataset

from lightning_multigrid.grid import frame_indices, span, stride_range
from lightning_multigrid.sampler import ClipRequest

__all__ = ["FixedClips", "clip_layout", "reduce_clip", "seeded"]

_AXES = "CTHW"


def clip_layout(shape: tuple[int, ...]) -> str:
    """Names the axes of a clip: `CTHW`, or `TCHW` where only that leaves 1 or 3 channels.

    >>> clip_layout((3, 16, 112, 112)), clip_layout((16, 3, 112, 112))
    ('CTHW', 'TCHW')
    """
    return "TCHW" if shape[0] not in (1, 3) and shape[1] in (1, 3) else _AXES


def reduce_clip(clip: Tensor, request: ClipRequest, layout: str = _AXES) -> Tensor:
    """Resamples a clip to the grid of a request (Sec. 3.1); a clip that is on it already is returned as it is.

    Frames are taken at a random integer stride from a random start, both drawn from the request's seed; pixels are
    resized bilinearly. The shorter of H and W becomes the request's size, and the aspect ratio stays.

    Args:
        clip: Four axes, in any order; uint8 or floating point.
        request: The grid, not finer than the clip.
        layout: Names the axes of the clip.

    Raises:
        ValueError: If the request asks for more frames than the clip has.
    """
    frames, height, width = (clip.shape[layout.index(axis)] for axis in "THW")
    if request.frames > frames:
        raise ValueError(
            f"The grid needs {request.frames} frames, but the clip has {frames}. Clips must have one length."
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


def _is_clip(value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray)) and value.ndim == 4


def _find_clip(sample: Any) -> Tensor | None:
    """The first tensor of four axes in a sample: a tensor, or nested in tuples, lists and dicts."""
    if _is_clip(sample):
        return torch.as_tensor(sample)
    if isinstance(sample, dict):
        sample = list(sample.values())
    if isinstance(sample, (tuple, list)):
        return next((clip for clip in map(_find_clip, sample) if clip is not None), None)
    return None


def _replace_clip(sample: Any, replace: Callable[[Tensor], Tensor]) -> tuple[Any, bool]:
    """The sample with its first clip replaced, and whether it had one."""
    if _is_clip(sample):
        return replace(torch.as_tensor(sample)), True
    if isinstance(sample, dict):
        values, found = _replace_clip(list(sample.values()), replace)
        return (type(sample)(zip(sample, values, strict=True)), True) if found else (sample, False)
    if isinstance(sample, (tuple, list)):
        for place, part in enumerate(sample):
            new, found = _replace_clip(part, replace)
            if found:
                parts = [*sample[:place], new, *sample[place + 1 :]]
                is_namedtuple = isinstance(sample, tuple) and type(sample) is not tuple
                return (type(sample)(*parts) if is_namedtuple else type(sample)(parts)), True
    return sample, False


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random state of torch (on the CPU), NumPy and Python set by a seed, and given back afterwards."""
    # Not `torch.manual_seed`: it would reseed the GPUs too, and with them the dropout of the model.
    states = torch.default_generator.get_state(), np.random.get_state(), random.getstate()
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


class FixedClips:
    """Any map-style dataset of clips of one size, as a `ClipDataset`.

    The dataset's own random augmentation is seeded by the request, so it depends on neither workers nor ranks.

    Args:
        dataset: Samples are a clip of four axes, or tuples, lists, dicts or namedtuples that hold one.
        layout: Names the axes of a clip, for instance `THWC`; None tells `CTHW` and `TCHW` apart by their channels.

    Raises:
        ValueError: If a sample holds no clip, or `layout` does not name its axes.
    """

    stride = 1

    def __init__(self, dataset: Dataset[Any], layout: str | None = None) -> None:
        if layout is not None and sorted(layout) != sorted(_AXES):
            raise ValueError(f"`layout` must name each of the axes C, T, H and W once, got {layout!r}.")
        self.dataset = dataset
        with seeded(0):
            clip = _find_clip(dataset[0])
        if clip is None:
            raise ValueError(
                f"A sample of {type(dataset).__name__} must hold a clip: a tensor of four axes, C x T x H x W. It is "
                "found in tensors, tuples, lists, dicts and namedtuples; let `__getitem__` return one of them."
            )
        self.layout = clip_layout(tuple(clip.shape)) if layout is None else layout
        self.frames = clip.shape[self.layout.index("T")]
        self.size = min(clip.shape[self.layout.index(axis)] for axis in "HW")

    def __len__(self) -> int:
        return len(cast("Sized", self.dataset))

    def read_clip(self, request: ClipRequest) -> Any:
        """The sample with its clip on the request's grid."""
        with seeded(request.seed):
            sample = self.dataset[request.index]
        return _replace_clip(sample, lambda clip: reduce_clip(clip, request, self.layout))[0]
