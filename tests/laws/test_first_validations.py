"""The first validations of a short training: 130 clips in mini-batches of 2, which is 6 or 7 steps an epoch.

With seed 0 the losses of the first validations were, on a CPU:

    baseline                   9.29   0.828   0.87   0.596
    momentum of the script     83.2   88.2    9.06   0.579
    momentum by base shapes    27     0.299   0.535  0.648
    momentum by mini-batches   26.3   0.334   0.447  0.271

So to follow the short cycle as well would gain nothing here. It would also change the last phase, which the statistics
of a long training come from.
"""

import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader

from lightning_multigrid import MultigridCallback
from lightning_multigrid.models import small_cnn
from lightning_multigrid.schedule import Plan
from lightning_multigrid.schedule.cycles import Baseline
from lightning_multigrid.schedule.grid import BatchShape
from lightning_multigrid.schedule.schedule import MultigridSchedule
from lightning_multigrid.training.parts import on_grid
from tests.helpers.tiny import CLASSES, Module, clips, fit


class Short(Module):
    """Keeps the loss of each validation."""

    def __init__(self):
        super().__init__(
            lambda optimizer, module: {
                "scheduler": CosineAnnealingLR(optimizer, module.trainer.estimated_stepping_batches),
                "interval": "step",
            },
            lambda parameters: SGD(parameters, lr=0.05, momentum=0.9),
        )
        self.validated = []

    def make_net(self):
        return small_cnn(CLASSES, width=8)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return torch.nn.functional.cross_entropy(self.net(x), y)

    def on_validation_epoch_end(self):
        if not self.trainer.sanity_checking:
            self.validated.append(float(self.trainer.callback_metrics["val"]))


def validated(callback):
    module = Short()
    fit(
        module,
        callback,
        train=DataLoader(clips(130), 2, shuffle=True),
        val=DataLoader(clips(64, seed=1), 2),
        max_epochs=6,
    )
    return module.validated


@pytest.mark.slow  # half a minute of computing
def test_first_validations_see_the_weights(monkeypatch):
    now = validated(MultigridCallback())
    precise = validated(MultigridCallback(precise_bn_batches=10))
    own = on_grid.set_sub_batch
    monkeypatch.setattr(on_grid, "set_sub_batch", lambda module, clips, of, baseline_batches: own(module, clips, of=of))
    before = validated(MultigridCallback())
    print(f"\nbefore {before}\nnow {now}\nprecise {precise}")
    assert now[0] < before[0] / 2
    assert max(now[1:]) < 2 < max(before[1:])
    assert max(precise) < 2


def test_the_last_phase_of_a_long_training_has_the_momentum_of_the_script():
    """It is most of the steps that the statistics at the end look back over, so these are as they were."""
    schedule = MultigridSchedule(Baseline(BatchShape(8, 32, 224), epochs=239, milestones=(94, 154, 196)))
    last = [step for step in Plan(schedule, 20_000).epoch(schedule.epochs - 1) if step.phase == 12]
    assert len(last) > 1000
    assert {step.baseline_batches for step in last} == {1}
    # 1,000 steps before the end, before this phase or not, weigh nothing.
    assert 0.9**1000 < 1e-45
