"""Models of transformers, and image models, as models of clips.

Legend: B clips, T frames, H W pixels.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class FramesFirst(nn.Module):
    """A video classifier of transformers, which takes clips B x T x 3 x H x W and returns its logits in an object.

    Args:
        model: Any `...ForVideoClassification`. `PretrainedWeights(submodule="model.model")` loads its weights.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Takes clips B x 3 x T x H x W, returns logits B x classes."""
        return self.model(x.transpose(1, 2)).logits  # type: ignore[no-any-return]


def hugging_face(kind: str, num_classes: int, settings: dict[str, Any] | None = None) -> FramesFirst:
    """A video classifier of transformers by the name of its kind, with random weights.

    Args:
        kind: `videomae`, `timesformer`, `vivit`, `vjepa2` or another `model_type` of transformers.
        num_classes: Width of the output.
        settings: Of its configuration, where they are not the default ones.
    """
    # Imported here, because transformers is no dependency of this package.
    from transformers import AutoConfig, AutoModelForVideoClassification

    config = AutoConfig.for_model(kind, num_labels=num_classes, **settings or {})
    return FramesFirst(AutoModelForVideoClassification.from_config(config))


class PerFrame(nn.Module):
    """An image model on each frame of a clip; the logits are averaged over the frames.

    Args:
        model: Takes images of any size, as timm's vision transformers do with `dynamic_img_size=True`.

    Example:
        >>> import torch
        >>> PerFrame(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()))(torch.zeros(2, 3, 8, 32, 32)).shape
        torch.Size([2, 3])
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Takes clips B x 3 x T x H x W, returns logits B x classes."""
        frames: Tensor = self.model(x.transpose(1, 2).flatten(0, 1))
        return frames.view(len(x), -1, *frames.shape[1:]).mean(dim=1)
