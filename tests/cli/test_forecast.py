"""What a plan will cost, by hand and by measurement."""

import time

import lightning as L
import pytest
import torch
from torch import nn

from lightning_multigrid.cli.forecast import Forecast, measure_steps, rank_group
from lightning_multigrid.models import small_cnn
from lightning_multigrid.schedule.cycles import Baseline, LongCycle, ShortCycle
from lightning_multigrid.schedule.grid import BatchShape
from lightning_multigrid.schedule.schedule import MultigridSchedule


class Net(L.LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, clips):
        return self.net(clips)


def test_ranks_that_share_statistics():
    assert [rank_group(clips, 8, world=4) for clips in (1, 2, 3, 4, 7, 8, 64)] == [4, 4, 3, 2, 2, 1, 1]


# Two shapes in two phases of equal steps: 16 clips of 1/8 of the points, then 2 of the baseline's.
SCHEDULE = MultigridSchedule(
    Baseline(BatchShape(2, 8, 32), epochs=9, milestones=(9 - 1e-9,)),
    LongCycle(((0.5, 0.5), (1, 1))),
    ShortCycle((1,)),
    epoch_factor=1,
)
COARSE, FINE = BatchShape(16, 4, 16), BatchShape(2, 8, 32)


def forecast(seconds=None, world=1):
    return Forecast(SCHEDULE, seconds or {}, world)


def test_seconds_of_other_shapes_follow_from_points():
    assert forecast({FINE: 0.2}).seconds(COARSE) == pytest.approx(0.2)  # Eq. 1
    assert forecast({FINE: 0.2, COARSE: 0.3}).seconds(COARSE) == 0.3


def test_clips_per_second_are_those_of_all_devices():
    assert forecast({FINE: 0.5, COARSE: 0.25}, world=4).clips_per_second(SCHEDULE.phases[0]) == 4 * 16 / 0.25
    assert forecast().clips_per_second(SCHEDULE.phases[0]) is None


def test_training_seconds():
    assert forecast({FINE: 1, COARSE: 2}).training_seconds([10, 10, 1]) == 31
    assert forecast().training_seconds([10, 10, 1]) is None


# --- Measured step times ---


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
