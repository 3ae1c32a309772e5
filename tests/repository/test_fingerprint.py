"""What the pages show was trained by code that trains what today's trains.

Two tiny trainings, with the callback and its baseline, note for each step which clips the model sees on which grid,
what BatchNorm hands to torch (the shape says of how many clips its statistics are), and with which LR, momentum and
weight decay the optimizer moves the weights: schedule, sampler, LR, statistics. What rounds differently on another
machine is not in it, nor how running statistics move, for which `tests/norm` has laws.
"""

import hashlib
import inspect
from pathlib import Path

import lightning as L
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import MultiStepLR
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader, TensorDataset

from lightning_multigrid import LongCycle, MultigridCallback, ShortCycle
from tests.helpers.sampling import sampled
from tests.helpers.tiny import trainer

FINGERPRINT = Path(__file__).parents[2] / "benchmarks" / "results" / "fingerprint.txt"
pytestmark = pytest.mark.filterwarnings("ignore")
CLIPS = 101  # so that mini-batches span two passes


class Statistics(TorchFunctionMode):
    """Notes what torch's BatchNorm gets."""

    def __init__(self, seen):
        super().__init__()
        self._seen = seen

    def __torch_function__(self, func, types, args=(), kwargs=None):
        named = kwargs or {}
        if func is torch.batch_norm:  # of `sub_batches`
            self._seen.append(f"{tuple(args[0].shape)} {args[5]}")
        elif func is nn.functional.batch_norm:
            given = inspect.signature(func).bind(*args, **named).arguments
            self._seen.append(f"{tuple(given['input'].shape)} {given['training']}")
        return func(*args, **named)


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv3d(1, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten()
        )
        self.seen = []

    def training_step(self, batch, number):
        clips, labels = batch
        if not isinstance(self._trainer, L.Trainer):  # a rehearsal
            return nn.functional.cross_entropy(self.net(clips), labels % 4)
        self.seen.append(f"{tuple(clips.shape)} {labels.tolist()}")
        with Statistics(self.seen):
            return nn.functional.cross_entropy(self.net(clips), labels % 4)

    def configure_optimizers(self):
        module = self

        class Noting(torch.optim.SGD):
            def step(self, closure=None):
                loss = closure()
                (group,) = self.param_groups
                values = (f"{group[name]:.6g}" for name in ("lr", "momentum", "weight_decay"))
                module.seen.append(" ".join(values))
                super().step()
                return loss

        optimizer = Noting(self.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
        return [optimizer], [MultiStepLR(optimizer, [2, 3])]


def training(callback):
    L.seed_everything(0, verbose=False)
    clips = torch.randn(CLIPS, 1, 8, 16, 16, generator=torch.Generator().manual_seed(0))
    module = Module()
    host = trainer(callback, max_epochs=4)
    host.fit(module, DataLoader(TensorDataset(clips, torch.arange(CLIPS)), 2, shuffle=True))
    return str(module.seen)


@pytest.fixture(scope="module")
def plain():
    return training(MultigridCallback(milestones="script"))


def test_shown_results_are_of_code_that_trains_the_same(plain):
    """If this fails, what the pages show is of older code: train the tasks again, or date the numbers.

    Then write today's fingerprint to the file.
    """
    today = hashlib.sha256((plain + training(MultigridCallback.baseline())).encode()).hexdigest()[:16]
    assert FINGERPRINT.read_text().strip() == today


CHANGED = [
    {"lr_scaling": "sqrt"},
    {"seed": 1},
    {"sub_batch": 4},
    {"epoch_factor": 1.25},
    {"long_cycle": LongCycle(((0.5, 1), (1, 1)))},
    {"short_cycle": ShortCycle((1,))},
]


@pytest.mark.parametrize("changed", sampled(CHANGED, {"sub_batch": 4}, {"short_cycle": ShortCycle((1,))}), ids=str)
def test_it_changes_with_what_decides_a_training(changed, plain):
    assert training(MultigridCallback(**changed)) != plain
