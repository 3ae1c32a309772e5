"""Augmentation of training clips on the device, after resampling.

All random numbers come from seeds in the mini-batch, so neither the number of workers nor a restart changes them. All
frames of a clip are augmented in the same way.

Legend: B clips, T frames, S size of a mini-batch, K classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from lightning_multigrid.pixels.edits import MAGNITUDES, draw_edits, draw_rectangle, erase, rand_augment
from lightning_multigrid.pixels.yuv import to_device


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
