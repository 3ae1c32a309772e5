"""A small video transformer for `compare.py`: joint space-time attention, and learned positions that follow the grid.

Legend: B clips, C channels, T frames, H W pixels; N tokens, each of `tubelet` frames x `patch` x `patch` pixels.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, scaled_dot_product_attention
from typing_extensions import override


class Block(nn.Module):
    """Attention among all tokens of a clip, then a perceptron for each (ViT, Dosovitskiy et al. 2021)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    @override
    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.attention_norm(x)).unflatten(2, (3, self.heads, -1))  # B x N x 3 x heads x C
        attended = scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4)).transpose(1, 2).flatten(2)
        x = x + self.projection(attended)
        return x + self.mlp(self.mlp_norm(x))


class VideoTransformer(nn.Module):
    """Takes clips B x 3 x T x H x W of any multiple of tubelet and patch, returns logits B x num_classes.

    Args:
        num_classes: Width of the output.
        frames: Frames of the clips whose tokens have a position each; on other grids positions are interpolated.
        size: Their height and width.
        tubelet: Frames of a token.
        patch: Height and width of a token.
        width: Channels of a token.
        depth: Blocks.
        heads: Heads of attention.
    """

    def __init__(
        self, num_classes: int, frames: int, size: int, tubelet: int, patch: int, width: int, depth: int, heads: int
    ) -> None:
        super().__init__()
        token = (tubelet, patch, patch)
        self.embedding = nn.Conv3d(3, width, token, stride=token)
        self.positions = nn.Parameter(0.02 * torch.randn(1, width, frames // tubelet, size // patch, size // patch))
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_classes)

    @override
    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x)
        x = x + interpolate(self.positions, x.shape[2:], mode="trilinear")
        return self.head(self.norm(self.blocks(x.flatten(2).transpose(1, 2))).mean(dim=1))
