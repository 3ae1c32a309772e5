"""Augmentation of training clips on the device, after resampling.

All random numbers come from seeds in the mini-batch, so neither the number of workers nor a restart changes them. All
frames of a clip are augmented in the same way. The host draws what is done to each clip. While the device does it,
clips that get the same are neighbours.

Legend: B clips, T frames, S size of a mini-batch, K classes. Edits are of pixels from 0 (black) to 1 (white).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lightning_multigrid.pixels.yuv import to_device

MAGNITUDES = 31  # of RandAugment, from 0 to 30
_MOVES = ("shear x", "shear y", "translate x", "translate y", "rotate")
_BLENDS = ("brightness", "colour", "contrast", "sharpness")
_OTHERS = ("posterize", "solarize", "autocontrast", "equalize")
OPERATIONS = ("identity", *_MOVES, *_BLENDS, *_OTHERS)
"""Those of RandAugment (Cubuk et al. 2020, arXiv:1909.13719), with the strengths of torchvision's."""


@dataclass(frozen=True)
class Augmentation:
    """Augmentation of training clips besides the random crop and flip. By default there is none.

    With Mixup or CutMix, labels become probabilities of classes: B x K float32. With both, each mini-batch gets one of
    them, drawn at random. A clip is mixed with another one of the mini-batch of its device.

    Args:
        mixup: Alpha of Mixup's beta distribution; 0 for no Mixup.
        cutmix: Alpha of CutMix's beta distribution; 0 for no CutMix.
        rand_augment: RandAugment's number of operations per clip; 0 for none.
        magnitude: Strength of these operations, from 0 to 30. PySlowFast's and timm's, from 0 to 10, is a third of it.
        operation_probability: Probability that each of these operations is applied: 1 in RandAugment's paper and in
            torchvision, 0.5 in PySlowFast and timm.
        erasing: Probability that a rectangle of a clip is filled with noise, the same in all frames.

    Raises:
        ValueError: If an argument is outside its range.
    """

    mixup: float = 0.0
    cutmix: float = 0.0
    rand_augment: int = 0
    magnitude: int = 9
    operation_probability: float = 1.0
    erasing: float = 0.0

    def __post_init__(self) -> None:
        for name in ("mixup", "cutmix", "rand_augment"):
            if getattr(self, name) < 0:
                raise ValueError(f"`{name}` must be at least 0, which is none, got {getattr(self, name)}.")
        if not 0 <= self.magnitude < MAGNITUDES:
            raise ValueError(f"`magnitude` must be in [0, {MAGNITUDES - 1}], got {self.magnitude}.")
        for name in ("operation_probability", "erasing"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"`{name}` must be a probability in [0, 1], got {getattr(self, name)}.")

    def apply(
        self,
        clips: Tensor,
        labels: Tensor,
        seeds: Sequence[int],
        *,
        num_classes: int,
        mean: Sequence[float],
        std: Sequence[float],
    ) -> tuple[Tensor, Tensor]:
        """Augments each clip by its own seed, then mixes clips by the sum of all seeds.

        A clip is mixed with one that is half of the mini-batch away, as neighbours may be of one video (`repeats`).

        Args:
            clips: B x 3 x T x S x S float, normalised.
            labels: B class ids, or B x K zeros and ones.
            seeds: One per clip.
            num_classes: K.
            mean: Of the clips' normalisation, per channel, in units of the range 0 to 1.
            std: Of the clips' normalisation, per channel, in units of the range 0 to 1.

        Returns:
            Clips of the same shape, and their labels.
        """
        if self.rand_augment or self.erasing:
            clips = self._edit(clips, seeds, mean, std)
        if self.mixup or self.cutmix:
            return self._mix(clips, labels, seeds, num_classes)
        return clips, labels

    def _edit(self, clips: Tensor, seeds: Sequence[int], mean: Sequence[float], std: Sequence[float]) -> Tensor:
        draws = [Random(seed) for seed in seeds]
        if self.rand_augment:
            edits = [draw_edits(each, self.rand_augment, self.operation_probability) for each in draws]
            # The operations are defined on pixels from 0 (black) to 1 (white). Those from outside a frame become the
            # mean, which is 0 after normalisation.
            numbers = torch.tensor([std, mean], dtype=clips.dtype)
            scale, shift = to_device(numbers, clips.device).view(2, 3, 1, 1, 1)
            pixels = torch.addcmul(shift, clips, scale).clamp_(0, 1)
            pixels = rand_augment(pixels, list(zip(*edits, strict=True)), self.magnitude, shift)
            clips = pixels.sub_(shift).div_(scale)
        if self.erasing:
            clips = erase(clips, [draw_rectangle(each, self.erasing, clips.shape[-1]) for each in draws], seeds)
        return clips

    def _mix(self, clips: Tensor, labels: Tensor, seeds: Sequence[int], num_classes: int) -> tuple[Tensor, Tensor]:
        from torchvision.transforms import v2  # takes long to import, and most trainings augment nothing

        mixers = [
            mixer(alpha=float(alpha), num_classes=num_classes)  # torchvision needs a float
            for mixer, alpha in ((v2.MixUp, self.mixup), (v2.CutMix, self.cutmix))
            if alpha
        ]
        # The mixers take images only. Frames passed as channels share their weight and rectangle. They mix each image
        # with the one before it: so the two halves take turns, and come back to their places.
        half = (len(clips) + 1) // 2
        order = sorted(range(len(clips)), key=lambda index: (index % half, index))
        there = to_device(torch.tensor(order), clips.device)
        images, labels = clips.flatten(1, 2)[there], labels[there]
        with torch.random.fork_rng(devices=()):  # torchvision draws from torch's random state on the CPU
            # Not `torch.manual_seed`: it would reseed the GPUs too, and with them the dropout of the model.
            torch.default_generator.manual_seed(sum(seeds) % 2**63)
            mixed, probabilities = v2.RandomChoice(mixers)(images, labels)
        back = there.argsort()
        return mixed[back].view_as(clips), probabilities[back]


def draw_edits(draws: Random, rounds: int, probability: float) -> list[tuple[str, int]]:
    """Draws the operations for a clip, and in which direction each goes."""
    edits = [(draws.choice(OPERATIONS), draws.choice((-1, 1)), draws.random() < probability) for _ in range(rounds)]
    return [(name, sign) if applied else ("identity", 1) for name, sign, applied in edits]


def rand_augment(clips: Tensor, edits: Sequence[Sequence[tuple[str, int]]], magnitude: int, fill: Tensor) -> Tensor:
    """Applies operations to clips B x 3 x T x S x S, in rounds: `edits` has for each what each clip gets.

    `magnitude` is their strength, from 0 to 30; `fill` is the colour of pixels from outside a frame, 3.
    """
    strength, size, device = magnitude / (MAGNITUDES - 1), clips.shape[-1], clips.device
    whole = at = list(range(len(clips)))  # which clip is where
    for edit in edits:
        families = [_FAMILIES[name] for name, _ in edit]
        order = sorted(whole, key=families.__getitem__)
        clips, at = clips.index_select(0, _places(at, order, device)), order
        rows = [(*_move(*edit[clip], strength, size), 1 + 0.9 * strength * edit[clip][1]) for clip in at]
        matrices, ratios = torch.split(to_device(torch.tensor(rows, dtype=torch.float32), device), [6, 1], dim=1)
        first = 0
        for family, same in groupby(at, key=families.__getitem__):
            part = slice(first, first + len(list(same)))
            first = part.stop
            if family == "move":
                clips[part] = _moved(clips[part], matrices[part].view(-1, 2, 3), fill)
            elif family in _BLENDS:
                _blend(family, clips[part], ratios[part].view(-1, 1, 1, 1, 1))
            elif family in _OTHERS:
                clips[part] = _recoloured(family, clips[part], strength)
    return clips.index_select(0, _places(at, whole, device))


_FAMILIES = {name: "move" if name in _MOVES else name for name in OPERATIONS}


def _places(at: Sequence[int], wanted: Sequence[int], device: torch.device) -> Tensor:
    """Where the wanted clips are, among clips that stand as `at` says."""
    place = {clip: number for number, clip in enumerate(at)}
    return to_device(torch.tensor([place[clip] for clip in wanted]), device)


def _move(name: str, sign: int, strength: float, size: int) -> tuple[float, ...]:
    """The matrix that says from where a pixel is taken, in units of half a frame from its middle."""
    shear, angle = sign * 0.3 * strength, sign * math.radians(30 * strength)
    shift = -2 * sign * int(150 / 331 * size * strength) / size
    turn, lean = math.cos(angle), math.sin(angle)
    return {
        "shear x": (1.0, shear, shear, 0.0, 1.0, 0.0),  # around the upper left corner
        "shear y": (1.0, 0.0, 0.0, shear, 1.0, shear),
        "translate x": (1.0, 0.0, shift, 0.0, 1.0, 0.0),
        "translate y": (1.0, 0.0, 0.0, 0.0, 1.0, shift),
        "rotate": (turn, lean, 0.0, -lean, turn, 0.0),
    }.get(name, (1.0, 0.0, 0.0, 0.0, 1.0, 0.0))


def _moved(clips: Tensor, matrices: Tensor, fill: Tensor) -> Tensor:
    size, fill = clips.shape[-1], fill.view(3, 1, 1, 1)
    grid = F.affine_grid(matrices, [len(clips), 1, size, size], align_corners=False)
    above = (clips - fill).flatten(1, 2)  # outside of a frame, sampling finds 0
    return F.grid_sample(above, grid, mode="nearest", align_corners=False).view_as(clips).add_(fill)


def _blend(name: str, clips: Tensor, ratios: Tensor) -> None:
    """Takes clips away from black, grey, the mean grey of a frame, or the blurred frame; or towards it."""
    if name == "brightness":
        clips.mul_(ratios)
    elif name == "sharpness":
        inner = clips[..., 1:-1, 1:-1]  # borders stay
        # In the blurred frame a pixel counts 5 times as much as each of its neighbours.
        mean = F.avg_pool2d(clips.flatten(0, 2), 3, stride=1).view_as(inner)
        inner.lerp_(mean.mul_(9 / 13).add_(inner, alpha=4 / 13), 1 - ratios)
    else:
        red, green, blue = torch.split(clips, 1, dim=1)
        grey = (red * 0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114)
        clips.lerp_(grey.mean(dim=(-2, -1), keepdim=True) if name == "contrast" else grey, 1 - ratios)
    clips.clamp_(0, 1)


def _recoloured(name: str, clips: Tensor, strength: float) -> Tensor:
    from torchvision.transforms.v2 import functional

    planes = clips.unsqueeze(-3)  # channels of a frame change apart from each other
    given: dict[str, dict[str, Any]] = {
        "posterize": {"bits": 8 - round(4 * strength)},
        "solarize": {"threshold": 1 - strength},
    }
    recoloured: Tensor = getattr(functional, name)(planes, **given.get(name, {}))
    return recoloured.squeeze(-3)


def draw_rectangle(draws: Random, probability: float, size: int) -> tuple[int, int, int, int]:
    """Draws the rectangle of a clip that is erased: top, bottom, left, right; an empty one with 1 - `probability`."""
    if draws.random() >= probability:
        return 0, 0, 0, 0
    for _ in range(10):  # as in torchvision
        area, ratio = draws.uniform(0.02, 0.33) * size * size, math.exp(draws.uniform(math.log(0.3), math.log(3.3)))
        height, width = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if height < size and width < size:
            top, left = draws.randint(0, size - height), draws.randint(0, size - width)
            return top, top + height, left, left + width
    return 0, 0, 0, 0


def erase(clips: Tensor, rectangles: Sequence[tuple[int, int, int, int]], seeds: Sequence[int]) -> Tensor:
    """Fills a rectangle of each clip, B x 3 x T x S x S, with normal noise, the same in all frames."""
    size, device = clips.shape[-1], clips.device
    rows = [(place, *box, seeds[place] % 2**32) for place, box in enumerate(rectangles) if box[0] < box[1]]
    if not rows:
        return clips
    numbers = to_device(torch.tensor(rows), device)
    top, bottom, left, right, key = numbers[:, 1:].reshape(-1, 5, 1, 1, 1).unbind(1)
    across = torch.arange(size, device=device)
    down = across[:, None]
    mask = (down >= top) & (down < bottom) & (across >= left) & (across < right)
    noise = _normal(_hashed(key) + torch.arange(3 * size * size, device=device).view(3, size, size)).to(clips.dtype)
    erased = torch.where(mask.unsqueeze(2), noise.unsqueeze(2), clips.index_select(0, numbers[:, 0]))
    return clips.index_copy(0, numbers[:, 0], erased)


def _normal(numbers: Tensor) -> Tensor:
    """Normal noise, a function of the numbers: the same on every device, and of each clip whatever others there are."""
    bits = _hashed(numbers)
    # Box and Muller: a radius from the higher 16 bits, an angle from the lower.
    radius = ((bits >> 16).float() + 0.5).div(65536).log().mul(-2).sqrt()
    return radius * (bits & 0xFFFF).float().mul(2 * math.pi / 65536).cos()


def _hashed(numbers: Tensor) -> Tensor:
    """32 bits that look random, of the lower 32 bits of int64 numbers (Wellons' "lowbias32")."""
    bits = numbers & 0xFFFFFFFF
    bits = ((bits ^ (bits >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    bits = ((bits ^ (bits >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    return bits ^ (bits >> 16)
