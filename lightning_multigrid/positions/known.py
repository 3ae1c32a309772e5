"""The adapters of all libraries, and the patches of a model."""

from math import lcm

from torch import nn

from lightning_multigrid.positions import pools, timm, torchvision, transformers
from lightning_multigrid.positions.adapters import Adapter

# By the library and the name of the class.
ADAPTERS: dict[str, Adapter] = pools.ADAPTERS | timm.ADAPTERS | torchvision.ADAPTERS | transformers.ADAPTERS


def adapter_of(module: nn.Module) -> Adapter | None:
    """The adapter of a module by its library and class, or one it inherits from: the paths between are not stable."""
    names = (f"{cls.__module__.partition('.')[0]}.{cls.__name__}" for cls in type(module).__mro__)
    return next((ADAPTERS[name] for name in names if name in ADAPTERS), None)


def patch_divisors(module: nn.Module) -> tuple[int, int]:
    """Returns the frames and the pixels of a patch, which each grid should have multiples of; 1 without patches.

    The first convolution makes patches if its stride is its kernel.

    >>> patch_divisors(nn.Sequential(nn.Conv3d(3, 8, (2, 16, 16), stride=(2, 16, 16)), nn.Conv3d(8, 8, 3)))
    (2, 16)
    """
    first = next((part for part in module.modules() if isinstance(part, (nn.Conv2d, nn.Conv3d))), None)
    if first is None or first.kernel_size != first.stride:
        return 1, 1
    *frames, height, width = first.stride
    return frames[0] if frames else 1, lcm(height, width)
