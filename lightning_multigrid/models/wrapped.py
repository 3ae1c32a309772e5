"""Models of other libraries as models of clips on any grid: B x 3 x T x H x W in, logits B x classes out."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lightning_multigrid.positions import mvit_tables, mvit_tokens

if TYPE_CHECKING:  # torchvision's models take longer to import than all that is imported here
    from torchvision.models.video import MViT


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


class ResizedPositions(nn.Module):
    """An MViT (v1 or v2) of torchvision for clips of any grid, not only the one it was built for.

    The absolute embeddings of v1 are resized bilinearly in space and linearly in time; gradients reach the tables. v2
    interpolates its tables of relative positions itself, once it knows the grid. On its own grid, MViT is unchanged.

    Args:
        model: `torchvision.models.video.mvit_v1_b` or `mvit_v2_s`, which are built for 16 x 224 x 224 and keep to it
            for any baseline, or another `MViT`. Load its weights before. During a call its `pos_encoding` holds the
            grid of that call, so a model can't run two calls at a time.

    Example:
        >>> from torchvision.models.video import mvit_v2_s
        >>> ResizedPositions(mvit_v2_s(num_classes=5)).eval()(torch.zeros(1, 3, 4, 45, 45)).shape
        torch.Size([1, 5])
    """

    def __init__(self, model: "MViT") -> None:
        super().__init__()
        self.model = model
        encoding = model.pos_encoding
        self.built_grid: tuple[int, int, int] = (encoding.temporal_size, *encoding.spatial_size)

    def forward(self, x: Tensor) -> Tensor:
        """Takes clips B x 3 x T x H x W, returns logits B x classes."""
        encoding = self.model.pos_encoding
        grid = mvit_tokens(self.model, x.shape[2:])
        now = encoding.temporal_size, encoding.spatial_size
        if grid == (now[0], *now[1]):
            return self.model(x)  # type: ignore[no-any-return]
        tables = {
            name: table.resized(self.model.get_parameter(name))
            for name, table in mvit_tables(self.model, self.built_grid, grid).items()
        }
        encoding.temporal_size, encoding.spatial_size = grid[0], grid[1:]
        try:
            return torch.func.functional_call(self.model, tables, (x,))  # type: ignore[no-any-return]
        finally:
            encoding.temporal_size, encoding.spatial_size = now
