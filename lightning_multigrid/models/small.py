"""A small factorised 3D CNN, which the quick start trains in minutes on two cores.

Legend: B clips, C channels, T frames, H W pixels.
"""

from torch import Tensor, nn


class FactorisedBlock(nn.Module):
    """A residual block: 1 x 3 x 3 in space, then 3 x 1 x 1 in time (R(2+1)D, Tran et al. 2018).

    H and W are halved. There is no stride in time, so that clips of two frames pass.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.space = nn.Conv3d(in_channels, out_channels, (1, 3, 3), stride=(1, 2, 2), padding=(0, 1, 1), bias=False)
        self.space_norm = nn.BatchNorm3d(out_channels)
        self.time = nn.Conv3d(out_channels, out_channels, (3, 1, 1), padding=(1, 0, 0), bias=False)
        self.time_norm = nn.BatchNorm3d(out_channels)
        self.shortcut = nn.Conv3d(in_channels, out_channels, 1, stride=(1, 2, 2), bias=False)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.space_norm(self.space(x)))
        out = self.time_norm(self.time(out))
        return self.relu(out + self.shortcut(x))  # type: ignore[no-any-return]


class SmallCNN(nn.Module):
    """A strided stem, three residual blocks, a global average pool and a linear classifier.

    Args:
        num_classes: Width of the output.
        width: Channels of the stem; the blocks have 1, 2 and 4 times as many.
    """

    def __init__(self, num_classes: int, width: int) -> None:
        super().__init__()
        self.stem = nn.Conv3d(3, width, (3, 5, 5), stride=(1, 2, 2), padding=(1, 2, 2), bias=False)
        self.stem_norm = nn.BatchNorm3d(width)
        self.relu = nn.ReLU()
        self.blocks = nn.Sequential(*(FactorisedBlock(a * width, b * width) for a, b in ((1, 1), (1, 2), (2, 4))))
        self.pool = nn.AdaptiveAvgPool3d(1)
        self.projection = nn.Linear(4 * width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Takes clips B x 3 x T x H x W, returns logits B x num_classes."""
        out = self.relu(self.stem_norm(self.stem(x)))
        return self.projection(self.pool(self.blocks(out)).flatten(1))  # type: ignore[no-any-return]


def small_cnn(num_classes: int, width: int = 16) -> SmallCNN:
    """A small 3D CNN for clips of at least 2 frames and 16 pixels.

    >>> sum(p.numel() for p in small_cnn(num_classes=16).parameters())
    49408
    """
    return SmallCNN(num_classes, width)
