"""Models of transformers, and image models, as models of clips: B x 3 x T x H x W in, logits B x classes out."""

from typing import Any

from torch import Tensor, nn


class FramesFirst(nn.Module):
    """A `...ForVideoClassification` of transformers, which takes frames first and returns its logits in an object."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x.transpose(1, 2)).logits  # type: ignore[no-any-return]


def hugging_face(kind: str, num_classes: int, settings: dict[str, Any] | None = None) -> FramesFirst:
    """A video classifier of transformers with random weights; `PretrainedWeights(submodule="model.model")` loads some.

    `kind` is its `model_type`, such as `videomae` or `vjepa2`; `settings` are those of its configuration.
    """
    from transformers import AutoConfig, AutoModelForVideoClassification  # no dependency of this package

    config = AutoConfig.for_model(kind, num_labels=num_classes, **settings or {})
    classifiers: Any = AutoModelForVideoClassification  # its methods have no types
    return FramesFirst(classifiers.from_config(config))


class PerFrame(nn.Module):
    """An image model on each frame of a clip; the logits are averaged over the frames.

    `model` takes images of any size, as timm's vision transformers do with `dynamic_img_size=True`.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        frames: Tensor = self.model(x.transpose(1, 2).flatten(0, 1))
        return frames.view(len(x), -1, *frames.shape[1:]).mean(dim=1)
