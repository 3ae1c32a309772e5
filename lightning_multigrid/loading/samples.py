"""The parts of a sample: which of them are clips, and which ones follow a clip to other frames and sizes."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, is_dataclass
from string import ascii_lowercase
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_multigrid.loading.reduction import Change, Clip, changes, measured_along, shape_of, tensor_of
from lightning_multigrid.loading.requests import ClipRequest

Name = str | int
Path = tuple[Name, ...]  # keys, from the sample inwards

_AXES = "CTHW"
_IMAGE_AXES = "CHW"
_STAY = "ABDEFG"  # letters for axes that stay
_CLASSES = 64  # different whole numbers: more are pixels
_SMALL = 32  # pixels: frames of fewer rows or columns mostly are square, and joints of a body rarely

Follow = str | Callable[[Any, Change], Any]
"""What a part of a sample becomes on another grid: its axes and numbers by letters, or a function."""


def clip_layout(shape: Sequence[int]) -> str:
    """Names the axes of a clip: the first of `CTHW`, `TCHW`, `THWC` with 1 or 3 channels; of an image: `CHW`, `HWC`.

    Other channels need a name.

    >>> clip_layout((3, 16, 112, 112)), clip_layout((16, 3, 112, 112)), clip_layout((3, 224, 224))
    ('CTHW', 'TCHW', 'CHW')
    """
    layouts = {4: (_AXES, "TCHW", "THWC"), 3: (_IMAGE_AXES, "HWC")}.get(len(shape), ())
    layout = next((layout for layout in layouts if shape[layout.index("C")] in (1, 3)), None)
    if layout is not None:
        return layout
    if len(shape) == len(_AXES):
        raise ValueError(
            f"A sample has a clip of {_product(shape)}, and no axis of 1 or 3 channels tells its layout. Give "
            "`layout='CTHW'` or another one in MultigridCallback, or a name for each axis, as in "
            "`clips={'flow': 'CTHW'}`."
        )
    raise ValueError(
        f"A sample has a tensor of {_product(shape)}, which may be an image or the frames of a clip. Images need 1 or "
        "3 channels, or `layout='CHW'` in MultigridCallback; clips need four axes, or a name for each axis, as in "
        "`clips={'depth': 'THW', 'views': 'VCTHW'}`."
    )


@dataclass(frozen=True)
class SampleParts:
    """Which parts of a sample are clips, and how they come to a grid; see these arguments of `MultigridCallback`."""

    layout: str | None = None
    clips: Sequence[Name] | Mapping[Name, str] | None = None
    follow: Mapping[Name, Follow] = field(default_factory=dict)
    whole_span: bool = False

    def __post_init__(self) -> None:
        if self.layout is not None and sorted(self.layout) not in (sorted(_AXES), sorted(_IMAGE_AXES)):
            raise ValueError(f"`layout` must name C, T, H and W once, or C, H and W for images, got {self.layout!r}.")
        if self.clips is not None and (isinstance(self.clips, (str, int)) or not self.clips):
            raise TypeError(f"`clips` must be a list of names, or a dict of axes by name, got {self.clips!r}.")
        for name, axes in self.clips.items() if isinstance(self.clips, Mapping) else ():
            if not (re.fullmatch("[A-Z]+", axes) and len(set(axes)) == len(axes) and {*"HW"} <= {*axes}):
                raise ValueError(
                    f"`clips` must name each axis of {name!r} by a capital of its own, H and W among them, as in "
                    f"'CTHW' or 'THW', got {axes!r}."
                )
        for name, spec in self._letters.items():
            axes, numbers = _split(spec)
            if "f" in numbers and spec != "f":
                raise ValueError(
                    f"`follow` takes the letter f alone, without axes, got {spec!r} for {name!r}. Name numbers that "
                    "stay by other letters, such as 'a'."
                )
            if not re.fullmatch("[A-Z]*", axes) or len(set(axes)) < len(axes) or len({*"HW"} & {*axes}) == 1:
                raise ValueError(
                    f"`follow` must name each axis of {name!r} by a capital of its own, H and W both or neither, and "
                    f"the numbers of its last axis by small letters, as in 'THW', 'T' or 'TNxyxy', got {spec!r}."
                )

    @property
    def _letters(self) -> dict[Name, str]:
        return {name: spec for name, spec in self.follow.items() if isinstance(spec, str)}

    def find_clips(self, sample: Any) -> dict[Path, Clip]:
        """Returns the clips of a sample by their paths; none if it is one that the `collate_fn` has to leave out."""
        if sample is None:
            return {}
        if self.clips is None:
            apart = [_find(sample, name)[0] for name in self.follow]
            free = [(path, values) for path, values in _tensors(sample) if not _is_in(path, apart)]
            ndim = len(self.layout or ()) or max((v.ndim for _, v in free if v.ndim in (3, 4)), default=0)
            return {path: self._clip(values) for path, values in free if ndim and values.ndim == ndim}
        found: dict[Path, Clip] = {}
        for name in self.clips:
            path, part = _find(sample, name)
            if not (tensors := dict(_tensors(part, path))):
                raise ValueError(f"The clip {name!r} of a sample must hold tensors or arrays, got {part!r:.60}.")
            given = self.clips[name] if isinstance(self.clips, Mapping) else None
            found |= {path: self._clip(values, given) for path, values in tensors.items()}
        return found

    def _clip(self, values: Any, axes: str | None = None) -> Clip:
        if axes is None:
            axes = self.layout if self.layout and len(self.layout) == values.ndim else clip_layout(values.shape)
        if len(axes) != values.ndim:
            raise ValueError(f"A clip of {_product(values.shape)} can't have the axes {axes!r}. Name each of its axes.")
        return Clip(values, axes)

    def check(self, sample: Any) -> dict[Path, Clip]:
        """Returns the clips of the first sample; refuses other parts that may be clips or may have to follow one."""
        found = self.find_clips(sample)
        if not found:
            more = next(((shown(path), values) for path, values in _tensors(sample) if values.ndim > 4), None)
            raise ValueError(
                "A sample must hold a clip: a tensor of four axes, C x T x H x W, or of three for images, C x H x W; "
                f"got {type(sample).__name__}"
                + (
                    ". Let `__getitem__` return the tensor, or a tuple, list, dict or namedtuple that holds it."
                    if more is None
                    else f" with a tensor of {_product(more[1].shape)}. If that is a clip, name its axes, for instance "
                    f"`MultigridCallback(clips={{{more[0]}: {'NMKL'[: more[1].ndim - 4] + 'CTHW'!r}}})`."
                )
            )
        masks = {shown(path): clip for path, clip in found.items() if not has_pixels(clip.values)}
        if self.clips is None and len(found) > 1:
            flags = {shown(path): clip for path, clip in found.items() if _is_mask(clip.values)}
            masks = flags if len(flags) < len(found) else masks  # clips of zeros may be a try
            line = f"clips=[{', '.join(name for name in map(shown, found) if name not in masks)}]"
            follow = ", ".join(f"{name}: {clip.axes!r}" for name, clip in masks.items())
            line += f", follow={{{follow}}}" if masks else ""
            images = all("T" not in clip.axes for clip in found.values())
            stack = "If they are the frames of a clip, stack them: `torch.stack(frames, 1)`. " if images else ""
            raise ValueError(
                f"A sample must hold one clip, got {len(found)}, of "
                f"{' and '.join(dict.fromkeys(str(tuple(clip.values.shape)) for clip in found.values()))}. "
                f"{stack}Say which ones are clips, and which ones are masks that follow them, for instance "
                f"`MultigridCallback({line})`."
            )
        for name, clip in masks.items():
            raise ValueError(
                f"The clip {name} is of {clip.values.dtype}, but only uint8 and floating point are resized "
                f"bilinearly. Convert it, or let it follow a clip, as masks do: `follow={{{name}: {clip.axes!r}}}`."
            )
        self._refuse_joints(found)
        for path, values in self._unnamed(sample, found):
            if not (shape := shape_of(values)):
                continue  # it is a number
            for lengths in (clip.lengths for clip in found.values()):
                axes = "Nxyxy" if hasattr(values, "canvas_size") else _axes(shape, lengths)  # torchvision's boxes
                if axes is not None:
                    raise ValueError(
                        f"{shown(path)}, of {_product(shape)}, may belong to a clip of "
                        f"{_product(lengths.values())} ({' x '.join(lengths)}), and would have to follow it to other "
                        f"grids. Name its axes, for instance `MultigridCallback(follow={{{shown(path)}: {axes!r}}})`, "
                        f"or {_STAY[: len(shape)]!r} to leave it as it is. A function may also change it."
                    )
        return found

    def _refuse_joints(self, clips: Mapping[Path, Clip]) -> None:
        for clip in () if self.layout or isinstance(self.clips, Mapping) else clips.values():
            height, width = clip.lengths["H"], clip.lengths["W"]
            if height != width and min(height, width) <= _SMALL:
                raise ValueError(
                    f"A sample has a tensor of {_product(clip.values.shape)}, which may be joints or landmarks, as "
                    f"videos of {min(height, width)} rows or columns are mostly square. If it has pixels, give "
                    f"`layout={clip.axes!r}` in MultigridCallback. "
                    "Joints can't be resized: name their axes, as in `clips={'pose': "
                    "'CTHW'}` or 'THW', with H and W for the axes of the joints, and give `long_cycle=LongCycle(((0.5, "
                    "1), (1, 1)))` and `short_cycle=ShortCycle((1,))`, which change the frames alone."
                )

    def _unnamed(self, sample: Any, clips: Iterable[Path]) -> list[tuple[Path, Any]]:
        """The parts that are neither clips nor named by `follow`, and hold no such part."""
        apart = [*clips, *(_find(sample, name)[0] for name in self.follow)]
        holders = {path[:end] for path in apart for end in range(len(path))}
        return [pair for pair in all_parts(sample) if pair[0] not in holders and not _is_in(pair[0], apart)]

    def staying(self, sample: Any, clips: Iterable[Path]) -> list[str]:
        """The parts with numbers that nobody named, which stay as they are; a single number is the label."""
        unnamed = [pair for pair in self._unnamed(sample, clips) if pair[0] and not isinstance(pair[1], (list, tuple))]
        parts = [(shown(path), shape) for path, part in unnamed if (shape := shape_of(part)) is not None]
        return [name for name, _ in parts] if len(parts) > 1 or any(shape for _, shape in parts) else []

    def reduced(
        self, sample: Any, request: ClipRequest, baseline: tuple[int, int] | None = None, divisor: int = 1
    ) -> Any:
        """Returns a sample with its clips, and what follows them, on the grid of a request; see `changes`."""
        clips = self.find_clips(sample)
        if not clips:
            return sample
        real = min((float(_find(sample, name)[1]) for name, spec in self.follow.items() if spec == "f"), default=None)
        rates = self._rates(sample, clips.values())
        change_of, reduced = changes(clips, request, baseline, divisor, real, self.whole_span, rates), sample
        longest = max(change_of.values(), key=lambda change: change.frames_before)
        for path, clip in clips.items():
            reduced = _put(reduced, path, change_of[path].of_clip(clip))
        for name, spec in self.follow.items():
            path, values = _find(sample, name)
            if not isinstance(spec, str):
                reduced = _put(reduced, path, spec(values, longest)) if longest.taken else reduced
                continue
            axes, numbers = _split(spec)
            if not {*"THW"} & {*axes} and not numbers:
                continue  # it stays
            candidates = [longest] if "T" in measured_along(numbers) else change_of.values()
            change = next((change for change in candidates if change.fits(values, axes, numbers)), None)
            if change is None:
                given = tuple(values.shape) if hasattr(values, "shape") else f"{values!r:.60}"
                raise ValueError(
                    f"{shown(path)} of a sample has to follow a clip with the axes {spec!r}, but it is {given}, and "
                    f"the clip {' or '.join(f'{tuple(clip.values.shape)} ({clip.axes})' for clip in clips.values())}."
                    f" A T of it must be a whole share or a multiple of the clip's. Else give `follow={{{shown(path)}: "
                    "function}`, which gets the values and how the clip changes."
                )
            reduced = _put(reduced, path, change.of_follower(values, axes, numbers))
        return reduced

    def _rates(self, sample: Any, clips: Iterable[Clip]) -> set[int]:
        """Lengths in time of what follows the clips, if they are whole shares of the longest clip's frames."""
        longest = max(clip.lengths.get("T", 1) for clip in clips)
        parts = ((_split(spec)[0], _find(sample, name)[1]) for name, spec in self._letters.items())
        lengths = (dict(zip(axes, shape_of(values) or (), strict=False)).get("T", 0) for axes, values in parts)
        return {length for length in lengths if length and longest % length == 0}


def _product(lengths: Iterable[int]) -> str:
    return " x ".join(map(str, lengths))


def shown(path: Path) -> str:
    """A path as `clips` and `follow` name it."""
    return repr(path[0] if len(path) == 1 else ".".join(map(str, path)))


def _split(spec: str) -> tuple[str, str]:
    """Axes, and the numbers of the last one: `TNxyxy` gives `TN` and `xyxy`."""
    axes = spec.rstrip(ascii_lowercase)
    return axes.replace(" ", ""), spec[len(axes) :]


def _axes(shape: Sequence[int], lengths: Mapping[str, int]) -> str | None:
    """Letters for axes that hold those of a clip in their order, or one for each of its frames; None if they don't."""
    for clip in (lengths, {axis: length for axis, length in lengths.items() if axis == "T"}):
        letters, left, stay = "", list(clip.items()), iter(_STAY)
        for length in shape:
            letters += left.pop(0)[0] if left and left[0][1] == length else next(stay, "Z")
        if not left and max(clip.values(), default=1) > 1:
            return letters
    return None


def _parts(sample: Any) -> Mapping[Any, Any]:
    """The parts of a container by key, index or attribute; of anything else none."""
    if is_dataclass(sample) and not isinstance(sample, (Mapping, type)):
        return {each.name: getattr(sample, each.name) for each in fields(sample)}
    if isinstance(sample, (tuple, list)):
        return dict(zip(getattr(sample, "_fields", range(len(sample))), sample, strict=True))
    return sample if isinstance(sample, Mapping) else {}


def _tensors(sample: Any, path: Path = ()) -> list[tuple[Path, Any]]:
    return [pair for pair in all_parts(sample, path) if isinstance(pair[1], (Tensor, np.ndarray))]


def all_parts(sample: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """A sample, and all that is within, by their paths."""
    yield path, sample
    for key, part in _parts(sample).items():
        yield from all_parts(part, (*path, key))


def _is_mask(values: Any) -> bool:
    """Whether something as large as a clip is of a type that pixels don't have, or holds only a few whole numbers."""
    if not has_pixels(values):
        return True
    found = torch.unique(tensor_of(values))
    return len(found) <= _CLASSES and bool((found == found.round()).all())


def _find(sample: Any, name: Name) -> tuple[Path, Any]:
    """Returns the path of a part, and the part. A dot leads to a part of a part."""
    parts = _parts(sample)
    if isinstance(sample, (tuple, list)) and str(name).isdigit() and int(name) < len(sample):
        name = [*parts][int(name)]
    if name in parts:
        return (name,), parts[name]
    outer, dot, inner = str(name).partition(".")
    if not dot:
        raise ValueError(
            f"A sample has no part {name!r}, which MultigridCallback names. It is a {type(sample).__name__} of "
            f"{', '.join(map(repr, parts)) or 'no parts'}."
        )
    path, part = _find(sample, outer)
    below, part = _find(part, inner)
    return path + below, part


def _put(sample: Any, path: Path, value: Any) -> Any:
    """The sample with one part replaced. Containers keep their kinds, and the given ones their parts."""
    if not path:
        return value
    parts = dict(_parts(sample))
    changed = _put(parts[path[0]], path[1:], value)
    if changed is parts[path[0]]:
        return sample
    values = parts | {path[0]: changed}
    if isinstance(sample, tuple):
        return type(sample)(*values.values()) if hasattr(sample, "_fields") else type(sample)(values.values())
    if isinstance(sample, Mapping) and not isinstance(sample, MutableMapping):
        return type(sample)(values)  # type: ignore[call-arg]
    copied = copy(sample)
    if is_dataclass(sample):
        object.__setattr__(copied, str(path[0]), changed)  # also of a frozen one
    else:
        copied[path[0]] = changed
    return copied


def _is_in(path: Path, paths: Sequence[Path]) -> bool:
    return any(path[: len(other)] == other for other in paths)


def has_pixels(values: Any) -> bool:
    """Whether a tensor or an array is of a type that pixels have, and labels don't."""
    if isinstance(values, Tensor):
        return values.dtype == torch.uint8 or values.is_floating_point()
    return bool(values.dtype == np.uint8 or values.dtype.kind == "f")
