"""The adapter for pools of a fixed size, with which models of convolutions often end.

Its kernel is the feature map of the baseline's grid, and a coarser grid has a smaller map: there the pool takes what is
there. On a map as large as its kernel it is as it was.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from lightning_multigrid.positions.adapters import Adapter, Grids

POOLS = (nn.AvgPool2d, nn.AvgPool3d, nn.MaxPool2d, nn.MaxPool3d)


def _pool(pool: Any, grids: Grids) -> Mapping[str, Callable[[Tensor], Any]]:
    if type(pool).forward not in [own.forward for own in POOLS] or getattr(pool, "divisor_override", None):
        return {}
    axes = 3 if isinstance(pool, (nn.AvgPool3d, nn.MaxPool3d)) else 2
    kernel, padding = _for_each(pool.kernel_size, axes), _for_each(pool.padding, axes)

    def forward(x: Tensor) -> Any:
        sizes = zip(kernel, padding, x.shape[-axes:], strict=True)
        shape = [k if padded else min(k, points) for k, padded, points in sizes], pool.stride, pool.padding
        if isinstance(pool, (nn.AvgPool2d, nn.AvgPool3d)):
            average = functional.avg_pool3d if axes == 3 else functional.avg_pool2d
            return average(x, *shape, pool.ceil_mode, pool.count_include_pad)
        largest = functional.max_pool3d if axes == 3 else functional.max_pool2d
        return largest(x, *shape, pool.dilation, pool.ceil_mode, pool.return_indices)

    return {"forward": forward}


def _for_each(size: int | Sequence[int], axes: int) -> tuple[int, ...]:
    return (size,) * axes if isinstance(size, int) else tuple(size)


ADAPTERS: dict[str, Adapter] = {f"torch.{pool.__name__}": _pool for pool in POOLS}
