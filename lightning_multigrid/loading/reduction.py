"""Brings the clips of one sample, and what follows them, to a grid: one draw of frames, one resize.

The clips of a sample (SlowFast's pathways, two views, frames and flow) show the same time. So all of them keep the same
moments, and the ratios of their frames and sizes.

Legend: C channels, T frames, H W pixels.
"""

import random
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from lightning_multigrid.loading.requests import ClipRequest
from lightning_multigrid.schedule import frame_indices, span

K = TypeVar("K")
# The axes along which a number is measured.
_MEASURED = {"x": "W", "w": "W", "y": "H", "h": "H", "t": "T", "f": "T"}


def measured_along(numbers: str) -> set[str]:
    """The axes of a clip along which numbers are measured that have these letters: the small ones of `follow`."""
    return {*"".join(_MEASURED.get(number, "") for number in numbers)}


def draw_frames(
    lengths: Collection[int], frames: int, seed: int, real: float | None = None, whole_span: bool = False
) -> dict[int, Sequence[int]]:
    """Draws, for each length of clips that show the same time, which frames stay: `frames` of the longest (Sec. 3.1).

    All clips get the largest stride that leaves them within the sample, and one random start, at which each of them has
    a frame. So frame i of a clip of T frames shows the same share i / T of the time before and afterwards. If only the
    first `real` frames of the longest clip are not padding, the others are taken only where these don't suffice. With
    `whole_span` nothing is drawn: see `span_whole`.

    >>> draw_frames([16, 4], frames=4, seed=1)
    {16: [0, 4, 8, 12], 4: [0]}
    """
    longest = max(lengths)
    if frames > longest:
        raise ValueError(f"The grid needs {frames} frames, but the clip has {longest}. Clips must have one length.")
    unit = longest // gcd(*lengths)
    if frames % unit:
        raise ValueError(
            f"The clips of a sample, of {' and '.join(map(str, lengths))} frames, can't keep this ratio on a "
            f"grid of {frames} frames. Give `long_cycle` factors that make the frames a multiple of {unit}, or clips "
            "of other lengths."
        )
    last = longest if real is None else min(longest, max(1, int(real)))
    if whole_span:
        return {
            length: span_whole(length, frames * length // longest, real=-(-last * length // longest))
            for length in lengths
        }
    # The paper draws the stride, from a video. Here a clip is all that there is of it: of words, whose clips are whole,
    # a drawn stride leaves parts, and they were recognised less often.
    stride = max(1, last // frames)
    start = random.Random(seed).choice(range(0, max(0, last - 1 - span(frames - 1, stride)) + 1, unit))
    return {
        length: frame_indices(length, frames * length // longest, stride, start * length // longest)
        for length in lengths
    }


def span_whole(length: int, frames: int, real: int) -> list[int]:
    """Returns the last frame of each of `frames` equal parts of a clip, which need not be whole frames long.

    If only the first `real` frames are not padding, all are moved earlier, so that the last real one stays.

    >>> span_whole(length=8, frames=4, real=8), span_whole(length=8, frames=4, real=5), span_whole(7, 3, real=7)
    ([1, 3, 5, 7], [0, 2, 4, 6], [2, 4, 6])
    """
    ends = [-(-part * length // frames) - 1 for part in range(1, frames + 1)]
    late = next(end for end in ends if end >= real - 1) - (real - 1)
    return [end - late for end in ends]


@dataclass(frozen=True)
class Clip:
    """A tensor or an array, and a letter for each of its axes."""

    values: Any
    axes: str

    @property
    def lengths(self) -> dict[str, int]:
        return {axis: length for axis, length in zip(self.axes, self.values.shape, strict=True) if axis in "THW"}


def baseline_grid(clips: Mapping[Any, Clip]) -> tuple[int, int]:
    """Frames and size (the shorter of H and W) of the longest clip of a sample, the first one if several are."""
    longest = max((clip.lengths for clip in clips.values()), key=lambda lengths: lengths.get("T", 1))
    return longest.get("T", 1), min(longest["H"], longest["W"])


def changes(
    clips: Mapping[K, Clip],
    request: ClipRequest,
    baseline: tuple[int, int] | None = None,
    divisor: int = 1,
    real: float | None = None,
    whole_span: bool = False,
    rates: Iterable[int] = (),
) -> dict[K, "Change"]:
    """Returns how each clip of a sample comes to the grid of a request, which is that of the longest clip (Sec. 3.1).

    `baseline` has the frames and the size of the dataset's clips, by default of this sample's. A sample with others
    gets other frames and another size than the request's, in the same ratio; on the baseline's grid it stays as it is.
    H and W keep their ratio as nearly as multiples of `divisor` allow, which are those of the longest clip: a clip of
    half its size has multiples of half as many pixels. `real` and `whole_span` are those of `draw_frames`. `rates` are
    lengths in time of what follows, each a whole share of the longest clip's: they keep this ratio, as clips do.
    """
    lengths = {key: clip.lengths for key, clip in clips.items()}
    in_time = list(dict.fromkeys([*(before["T"] for before in lengths.values() if "T" in before), *rates]))
    own = baseline_grid(clips)
    usual, size = baseline or own
    frames = request.frames
    if own[0] != usual and in_time:
        unit = own[0] // gcd(*in_time)
        frames = unit * max(1, round(own[0] * request.frames / usual / unit))
    taken = draw_frames(in_time, frames, request.seed, real, whole_span) if in_time else {}

    def change(before: Mapping[str, int]) -> Change:
        height, width = before["H"], before["W"]
        if request.size != size:
            whole, rest = divmod(divisor * min(height, width), own[1])
            unit = 1 if rest else whole
            height, width = (unit * max(1, round(side * request.size / size / unit)) for side in (height, width))
        of_time = taken.get(before.get("T", 0), ()), before.get("T", 1)
        return Change(of_time[0], height, width, of_time[1], before["H"], before["W"], taken)

    return {key: change(before) for key, before in lengths.items()}


@dataclass(frozen=True)
class Change:
    """How a clip comes to a grid: what a function of `follow` gets, with the values that follow the clip."""

    frames: Sequence[int]  # indices of those that stay; none of an image
    height: int
    width: int
    frames_before: int  # 1 of an image
    height_before: int
    width_before: int
    drawn: Mapping[int, Sequence[int]]  # indices that stay, for each length in time that something of the sample has

    def frames_of(self, length: int) -> Sequence[int] | None:
        """Indices that stay of an axis in time of this length; None if it has no whole ratio to the clip's frames."""
        each, rest = divmod(length, self.frames_before)
        if rest or not self.frames:
            return self.drawn.get(length) if self.frames else None
        return [frame * each + part for frame in self.frames for part in range(each)]

    @property
    def _sides(self) -> dict[str, tuple[int, int]]:
        """H and W, each after and before."""
        return {"H": (self.height, self.height_before), "W": (self.width, self.width_before)}

    @property
    def taken(self) -> dict[str, Sequence[int]]:
        """Indices that stay along each axis that changes: frames, and nearest pixels."""
        # The pixel under the centre of each new pixel, which is where bilinear resizing looks.
        taken: dict[str, Sequence[int]] = {
            axis: [(2 * point + 1) * before // (2 * points) for point in range(points)]
            for axis, (points, before) in self._sides.items()
            if points != before
        }
        return taken if len(self.frames) in (0, self.frames_before) else {"T": self.frames, **taken}

    def of_clip(self, clip: Clip) -> Any:
        """Returns a clip with the frames that stay, resized bilinearly; the same object if nothing changes."""
        taken = self.taken
        if not taken:
            return clip.values
        values = tensor_of(clip.values)
        if "T" in taken:
            values = _select(values, clip.axes.index("T"), taken["T"])
        if "H" in taken or "W" in taken:
            order = sorted(range(values.ndim), key=lambda axis: "CHW".find(clip.axes[axis]))
            planes = values.permute(order)
            *outer, height, width = planes.shape
            images = planes.reshape(-1, outer[-1] if "C" in clip.axes else 1, height, width)
            resized = interpolate(images, (self.height, self.width), mode="bilinear")
            planes = resized.view(*outer, self.height, self.width)
            values = planes.permute([order.index(axis) for axis in range(values.ndim)]).contiguous()
        return self._like(clip.values, values)

    def fits(self, values: Any, axes: str, numbers: str) -> bool:
        """Whether something with these axes has the frames and pixels of the clip; see `of_follower`."""
        if "T" in measured_along(numbers) and not self.frames:
            return False
        if isinstance(values, (list, tuple)) and axes:
            parts = values if axes[1:] or numbers else ()
            of_frames = axes[0] == "T" and self.frames_of(len(values))
            return bool(of_frames) and all(self.fits(part, axes[1:], numbers) for part in parts)
        shape = shape_of(values)
        if shape is None:
            return False
        # A single number needs no axis of its own.
        own: list[tuple[int, ...]] = [(), (1,)] if len(numbers) == 1 else [(len(numbers),) if numbers else ()]
        return (
            len(shape) >= len(axes)
            and tuple(shape[len(axes) :]) in own
            and all(
                self.frames_of(found) if axis == "T" else axis not in "HW" or self._sides[axis][1] == found
                for axis, found in zip(axes, shape, strict=False)
            )
        )

    def of_follower(self, values: Any, axes: str, numbers: str) -> Any:
        """Returns what follows the clip: a tensor, an array, a number, or a list of what belongs to each frame.

        `axes` has a letter for each axis, of which T, H and W are the clip's. `numbers` has one for each number of a
        further, last axis, or for a single one: x and w are scaled as W, y and h as H; t and f become how many of the
        frames that stay are before.
        """
        taken = self.taken
        if isinstance(values, (list, tuple)) and axes:
            parts = [values[frame] for frame in self.frames_of(len(values)) or ()]
            further = axes[1:] or numbers
            return type(values)(self.of_follower(part, axes[1:], numbers) if further else part for part in parts)
        if not set(taken) & {*axes, *measured_along(numbers)}:
            return values
        changed = tensor_of(values)
        for axis in set(taken) & set(axes):
            place = axes.index(axis)
            indices = self.frames_of(changed.shape[place]) or () if axis == "T" else taken[axis]
            changed = _select(changed, place, indices)
        if numbers:
            columns = changed.unbind(-1) if changed.ndim > len(axes) else [changed]
            moved = [self._moved(column, number) for column, number in zip(columns, numbers, strict=True)]
            changed = torch.stack(moved, dim=-1).view(changed.shape)
        return self._like(values, changed)

    def _moved(self, values: Tensor, number: str) -> Tensor:
        """Numbers that are measured in pixels or frames of the clip."""
        axis, moved = _MEASURED.get(number), values.double()
        if axis is None:
            return values
        if axis == "T":
            after = 2 * self.frames[-1] - self.frames[-2] if len(self.frames) > 1 else self.frames[0] + 1
            places = np.interp(moved.cpu(), [*self.frames, after], range(len(self.frames) + 1))
            moved = torch.as_tensor(places, device=values.device)
        else:
            after, before = self._sides[axis]
            moved = moved * after / before
        whole = torch.ceil if axis == "T" else torch.round
        return (moved if values.is_floating_point() else whole(moved)).to(values.dtype)

    def _like(self, given: Any, changed: Tensor) -> Any:
        """Numbers, a list, an array or one of torchvision's kinds of tensors for what is one itself; else a tensor."""
        if isinstance(given, (int, float, list, tuple, np.generic)):
            kind: Any = type(given)
            return kind(changed.tolist())
        if isinstance(given, np.ndarray):
            return changed.numpy().astype(given.dtype, copy=False)  # also of the given byte order
        kinds = sys.modules.get("torchvision.tv_tensors")  # who holds such a tensor has imported them
        if kinds is None or not isinstance(given, kinds.TVTensor):
            return changed
        canvas = {"canvas_size": (self.height, self.width)} if hasattr(given, "canvas_size") else {}
        return kinds.wrap(changed, like=given, **canvas)


def shape_of(values: Any) -> tuple[int, ...] | None:
    """The shape of a tensor, an array or a number, and the length of a list; None for anything else."""
    if isinstance(values, (list, tuple)):
        return (len(values),)
    return () if isinstance(values, (int, float)) else getattr(values, "shape", None)


def tensor_of(values: Any) -> Tensor:
    """A tensor of values, also of an array in a form that torch does not take: with bytes or axes in reverse.

    >>> tensor_of(np.arange(3, dtype=">i2")[::-1])
    tensor([2, 1, 0], dtype=torch.int16)
    """
    if isinstance(values, np.ndarray):
        values = values.astype(values.dtype.newbyteorder("="), copy=False)
        whole = all(stride >= 0 and stride % values.itemsize == 0 for stride in values.strides)
        values = values if whole else values.copy()
    return torch.as_tensor(values)


def _select(values: Tensor, axis: int, indices: Sequence[int]) -> Tensor:
    return values.index_select(axis, torch.tensor(indices, device=values.device))
