"""Dropout, stochastic depth and erased boxes for any model, in proportion to the grid or at full strength.

Tan and Le 2021 ("EfficientNetV2", Sec. 4) found that images of growing size cost accuracy unless regularisation grows
with them. `compare.py --growing` tries the same along the cycles.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

DROPOUT = 0.2  # before the classifier
DEPTH = 0.1  # the chance that a clip skips a block
ERASED = 0.25  # the chance that a box of half the height and half the width is grey, in all frames of a clip


class Regularisation:
    """Regularises a model in training, by hooks.

    Args:
        model: Takes clips B x C x T x H x W. Its last linear layer is the classifier; what its `blocks` hold is skipped
            where the output has the shape of the input.
        points: Points of a clip of the baseline, T * H * W.
        grows: Whether the strength is the share of these points that the clips have.
    """

    def __init__(self, model: nn.Module, points: int, *, grows: bool) -> None:
        self._points, self._grows, self.strength = points, grows, 1.0
        model.register_forward_pre_hook(self._erase)
        *_, classifier = (module for module in model.modules() if isinstance(module, nn.Linear))
        classifier.register_forward_pre_hook(self._drop)
        for block in model.blocks:
            block.register_forward_hook(self._skip)

    def _erase(self, model: nn.Module, args: Sequence[Any]) -> Any:
        clips = args[0]
        if not model.training:
            return None
        height, width = clips.shape[-2:]
        self.strength = clips[0, 0].numel() / self._points if self._grows else 1.0
        rows, columns = (self._halves(clips, side) for side in (height, width))
        boxes = rows[:, :, None] & columns[:, None] & self._chosen(clips, ERASED)[:, None, None]
        return clips.masked_fill(boxes[:, None, None], 0.0), *args[1:]

    def _halves(self, clips: Tensor, side: int) -> Tensor:
        """For each clip, where on a side the box is: B x side."""
        places = torch.arange(side, device=clips.device)
        starts = torch.randint(side - side // 2 + 1, (len(clips), 1), device=clips.device)
        return (places >= starts) & (places < starts + side // 2)

    def _chosen(self, clips: Tensor, chance: float) -> Tensor:
        return torch.rand(len(clips), device=clips.device) < self.strength * chance

    def _drop(self, classifier: nn.Module, args: Sequence[Tensor]) -> Any:
        return dropout(args[0], self.strength * DROPOUT) if classifier.training else None

    def _skip(self, block: nn.Module, args: Sequence[Tensor], output: Tensor) -> Tensor | None:
        if not block.training or output.shape != args[0].shape:
            return None
        kept = ~self._chosen(output, DEPTH)
        scale = kept.to(output.dtype).reshape(-1, *[1] * (output.ndim - 1)) / (1 - self.strength * DEPTH)
        return args[0] + scale * (output - args[0])
