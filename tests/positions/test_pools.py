"""Pools whose kernel is larger than the map that reaches them."""

import pytest
import torch
from torch import nn

from lightning_multigrid.positions import Following

POOLS = [
    (nn.AvgPool3d((4, 6, 6)), (4, 6, 6), (2, 3, 3)),
    (nn.AvgPool3d((4, 6, 6), stride=1), (4, 6, 6), (1, 6, 6)),
    (nn.AvgPool3d((2, 6, 6), stride=1), (4, 6, 6), (2, 3, 3)),
    (nn.MaxPool3d(6), (6, 6, 6), (3, 2, 6)),
    (nn.AvgPool2d(6), (6, 6), (3, 3)),
    (nn.MaxPool2d((6, 2)), (6, 6), (3, 4)),
]


@pytest.mark.parametrize(("pool", "full", "coarse"), POOLS)
def test_a_pool_takes_what_is_there(pool, full, coarse):
    x, y = torch.randn(2, 3, *full), torch.randn(2, 3, *coarse)
    before = pool(x)
    with pytest.raises(RuntimeError, match="[kK]ernel|too small"):
        pool(y)
    following = Following(pool, 8, 32)
    following.set_grid(2, 16)
    kernel = pool.kernel_size if isinstance(pool.kernel_size, tuple) else (pool.kernel_size,) * len(full)
    reduce = torch.mean if isinstance(pool, (nn.AvgPool2d, nn.AvgPool3d)) else torch.amax
    axes = tuple(range(2, y.ndim))
    first = tuple(slice(k) for k in kernel)  # what the first place of the pool covers
    torch.testing.assert_close(pool(y)[(..., *(0,) * len(full))], reduce(y[(..., *first)], axes))
    assert torch.equal(pool(x), before)
    following.restore()
    assert "forward" not in vars(pool)


def test_padded_pools_and_those_of_ones_own_are_left_alone():
    class Own(nn.AvgPool2d):
        def forward(self, x):
            return x + 1

    net = nn.Sequential(Own(4), nn.MaxPool2d(3, 2, padding=1), nn.AvgPool2d(4, divisor_override=1))
    x = torch.randn(1, 1, 8, 8)
    before = [part(x) for part in net]
    Following(net, 8, 32).set_grid(2, 16)
    assert all(torch.equal(part(x), expected) for part, expected in zip(net, before, strict=True))


def test_pools_are_not_named_as_places():
    assert Following(nn.Sequential(nn.MaxPool2d(2)), 8, 32).names == []
