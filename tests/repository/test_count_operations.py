"""Counts of what a step asks of a device, by hand."""

import torch
from count_operations import StepCount, count_step
from torch import nn
from torch.nn import functional as F


def meta(*shape):
    return torch.empty(shape, device="meta")


def test_a_product_by_hand():
    x, weight = meta(5, 2), meta(3, 2)
    step = count_step(lambda: F.linear(x, weight))  # transposes the weight, a view
    assert step == StepCount(flops=2 * 5 * 2 * 3, bytes=4 * (5 * 2 + 2 * 3 + 5 * 3), launches=1)
    layer = nn.Linear(2, 3, device="meta")
    assert count_step(lambda: layer(x).sum().backward()).flops == 2 * step.flops  # the clips need no gradient


def test_views_and_allocations_move_nothing_and_writes_read_nothing():
    x = meta(4, 6)
    views = count_step(lambda: (x.view(24), x.t(), x[0], torch.empty_like(x), torch.split(x, 2)))
    assert (views.bytes, views.launches) == (0, 0)
    assert count_step(lambda: x.zero_()).bytes == x.nbytes
    assert count_step(lambda: x.add_(1)).bytes == 2 * x.nbytes
    assert count_step(lambda: x * meta(1, 6).expand(4, 6)).bytes == 2 * x.nbytes + 6 * 4
    assert count_step(lambda: torch._foreach_add([x, x[0]], 1)).bytes == 2 * (x.nbytes + x[0].nbytes)
    assert count_step(lambda: x * x).bytes == 2 * x.nbytes


def test_a_step_is_three_times_its_forward():
    """A convolution's backward has two convolutions, but the first layer needs no gradient of the clips."""
    net = nn.Sequential(nn.Conv3d(3, 4, 1), nn.Conv3d(4, 4, 1)).to("meta")
    clips = meta(2, 3, 4, 8, 8)
    points = 2 * 2 * 4 * 8 * 8
    assert count_step(lambda: net(clips).sum().backward()).flops == points * (3 * 4 * 2 + 4 * 4 * 3)
