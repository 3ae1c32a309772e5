"""What changes meaning is said once, only in runs that use it."""

import re

import pytest
import torch
from lightning.pytorch import callbacks
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset

from lightning_multigrid import MultigridCallback
from tests.helpers.tiny import Module, clips, fit, loader

pytestmark = pytest.mark.usefixtures("_unrehearsed")


class ModelEmaV3:
    """As timm's is called."""

    decay = 0.99


class Averaged(Module):
    def __init__(self, schedulers=None):
        super().__init__(schedulers)
        self.average = ModelEmaV3()


def plateau(optimizer, module):
    return {"scheduler": ReduceLROnPlateau(optimizer, patience=3), "monitor": "val"}


def run(tmp_path, *own, module=None, multigrid=None, **used):
    arguments = {"train": loader(), "val": loader(shuffle=False, number=8), "default_root_dir": tmp_path, **used}
    fit(module or Module(), multigrid or MultigridCallback(), *own, **arguments)


def test_what_a_script_uses_is_named_once(tmp_path, caplog):
    run(tmp_path, callbacks.EarlyStopping("val", patience=5), module=Averaged(plateau))
    [said] = [message for message in caplog.messages if "means something else" in message]
    assert said.startswith("`ModelEmaV3`, `ReduceLROnPlateau`: what counts steps, or compares")
    assert "Its epochs are the script's, with 2.7 times fewer steps" in said
    assert (
        "The patience of `EarlyStopping` counts in the last phase, from epoch 2 on. Before, metrics may" in caplog.text
    )
    given = float(re.search(r"write a decay d as d\*\*2\.7, for instance 0\.999 as (0\.\d+)\.", said)[1])
    assert given ** (1 / 2.7) == pytest.approx(0.999, abs=1e-4)


@pytest.mark.skipif(not hasattr(callbacks, "EMAWeightAveraging"), reason="new in Lightning 2.6")
def test_an_average_of_lightning_is_named(tmp_path, caplog):
    run(tmp_path, callbacks.EMAWeightAveraging(decay=0.99))
    assert "`EMAWeightAveraging`: what counts steps" in caplog.text


class OfThree(Module):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch[:2], batch_idx)


def test_the_parts_of_a_sample_that_stay_on_every_grid_are_named(tmp_path, caplog):
    noise, labels = clips().tensors
    three = DataLoader(TensorDataset(noise, labels, torch.rand(len(labels), 3)), 4)
    run(tmp_path, module=OfThree(), train=three, max_epochs=1)
    assert "parts of a sample stay as they are on every grid: 1, 2. `follow` names what has to follow" in caplog.text


def test_mini_batches_of_an_optimizer_step_are_not_called_steps(tmp_path, caplog):
    run(tmp_path, accumulate_grad_batches=2)
    assert "The first epoch has 10 mini-batches, and begins at 8 times the baseline's LR" in caplog.text


def test_a_plain_script_and_a_baseline_hear_nothing(tmp_path, caplog):
    run(tmp_path, enable_checkpointing=True)
    run(tmp_path, callbacks.EarlyStopping("val", patience=5), multigrid=MultigridCallback.baseline())
    assert "means something else" not in caplog.text


@pytest.mark.parametrize(
    ("used", "said"),
    [
        ({}, True),
        ({"multigrid": MultigridCallback(precise_bn_batches=2)}, False),
        ({"multigrid": MultigridCallback.baseline()}, False),
        ({"fast_dev_run": True}, False),
        pytest.param({"val": None}, False, marks=pytest.mark.slow),
        pytest.param({"train": loader(number=500), "max_epochs": 1}, False, marks=pytest.mark.slow),
    ],
    ids=["few", "precise", "baseline", "a try", "no validation", "many"],
)
def test_what_first_validations_mean_is_said_where_epochs_have_few_steps(used, said, tmp_path, caplog):
    run(tmp_path, **used)
    assert ("The first epoch has 9 steps, and begins at 8 times the baseline's LR" in caplog.text) == said
