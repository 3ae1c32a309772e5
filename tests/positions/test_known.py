"""The multiples of frames and pixels that a model says, and the plans that keep them."""

import pytest
from torch import nn

from lightning_multigrid import MultigridCallback
from lightning_multigrid.positions import patch_divisors
from tests.helpers.tiny import CLASSES, FRAMES, SIZE, Module, fit, loader


@pytest.mark.parametrize(
    ("layers", "divisors"),
    [
        ([nn.Conv3d(3, 4, (2, 4, 6), stride=(2, 4, 6))], (2, 12)),
        ([nn.Conv2d(3, 4, 14, stride=14)], (1, 14)),
        ([nn.Conv3d(3, 4, 3, stride=2, padding=1), nn.Conv3d(4, 4, 2, stride=2)], (1, 1)),
        ([nn.Conv3d(3, 4, 1)], (1, 1)),
        ([nn.Linear(3, 4)], (1, 1)),
    ],
)
def test_the_first_convolution_says_them(layers, divisors):
    assert patch_divisors(nn.Sequential(nn.Identity(), nn.Sequential(*layers))) == divisors


class Patches(Module):
    def make_net(self):
        # Without the divisors a coarse grid's last frame and pixels would be lost in silence.
        return nn.Sequential(
            nn.Conv3d(3, 6, (4, 8, 8), stride=(4, 8, 8)), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(6, CLASSES)
        )


@pytest.mark.parametrize(
    ("arguments", "frames", "sizes"),
    [
        ({}, {4, 8}, {16, 24, 32}),  # 8 / 4 frames become one patch; 32 / sqrt 2 = 22.6 pixels
        ({"frames_divisor": 1}, {2, 4, 8}, {16, 24, 32}),
        ({"size_divisor": 2}, {4, 8}, {16, 22, 32}),
    ],
)
def test_a_plan_keeps_the_multiples_of_the_models_patches(arguments, frames, sizes):
    module, callback = Patches(), MultigridCallback(milestones=[1], **arguments)
    if "frames_divisor" in arguments:
        with pytest.raises(ValueError, match="cannot take clips of 2 x"):
            fit(module, callback, max_epochs=2, train=loader(number=192))
        return
    fit(module, callback, max_epochs=2, train=loader(number=192))
    assert {shape[1] for shape in module.shapes} == frames
    assert {shape[2] for shape in module.shapes} == sizes
    assert callback.run.plan.schedule.baseline.shape.size == SIZE
    assert callback.run.plan.schedule.baseline.shape.frames == FRAMES
