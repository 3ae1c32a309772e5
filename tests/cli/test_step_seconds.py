"""What a plan will cost, by hand and by measurement."""

import time

import lightning as L
import pytest
import torch
from torch import nn

from lightning_multigrid.cli.step_seconds import measure_steps, seconds_by_points
from lightning_multigrid.models import small_cnn
from lightning_multigrid.schedule.grid import BatchShape


class Net(L.LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, clips):
        return self.net(clips)


def test_seconds_of_other_shapes_follow_from_points():
    baseline, coarse, odd = BatchShape(2, 8, 32), BatchShape(16, 4, 16), BatchShape(3, 8, 32)
    shapes = [(baseline, 8), (coarse, 8), (odd, 8)]
    assert seconds_by_points(shapes, baseline, 0.2) == {baseline: 0.2, coarse: 0.2, odd: pytest.approx(0.3)}  # Eq. 1


def test_each_shape_is_timed():
    module = Net(small_cnn(4))
    # Ten milliseconds a clip: what else the machine does can only add to them.
    module.net.projection.register_forward_hook(lambda layer, inputs, output: time.sleep(0.01 * len(output)))
    shapes = [(BatchShape(2, 2, 16), 8), (BatchShape(16, 8, 32), 8)]
    costs = measure_steps(module, shapes, torch.device("cpu"), rounds=2)
    assert [shape for shape, _ in shapes] == list(costs)
    assert all(cost >= 0.01 * shape.clips for shape, cost in costs.items())


def test_measuring_in_mixed_precision():
    dtypes = set()
    module = Net(small_cnn(4))
    module.net.projection.register_forward_hook(lambda layer, inputs, output: dtypes.add(output.dtype))
    measure_steps(module, [(BatchShape(2, 2, 16), 8)], torch.device("cpu"), precision="bf16-mixed", rounds=1)
    assert dtypes == {torch.bfloat16}


class Hungry(nn.Module):
    def forward(self, x):
        raise torch.OutOfMemoryError("no more")


def test_a_shape_that_does_not_fit():
    module = Net(nn.Sequential(nn.Conv3d(3, 4, 1), Hungry()))
    with pytest.raises(ValueError, match="A step on 2 x 2 x 16 .* does not fit into the memory of cpu. Use a smaller"):
        measure_steps(module, [(BatchShape(2, 2, 16), 8)], torch.device("cpu"))
