"""The multiples of frames and pixels that a model takes, read from its patch embedding."""

from __future__ import annotations

from torch import nn


def patch_divisors(module: nn.Module) -> tuple[int, int]:
    """Returns the frames and the pixels of a patch, which every grid should have multiples of; 1 without patches.

    Patches are made by a first convolution whose stride is its kernel. An adapter may know better.

    >>> patch_divisors(nn.Sequential(nn.Conv3d(3, 8, (2, 16, 16), stride=(2, 16, 16)), nn.Conv3d(8, 8, 3)))
    (2, 16)
    """
    raise NotImplementedError
