"""Both names of Lightning: a script with either one is the same training."""

import json
import subprocess
import sys
import warnings

import lightning as L
import pytest
import pytorch_lightning as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import nn
from torch.optim import SGD

from lightning_multigrid import MultigridCallback
from lightning_multigrid.host import is_a, is_overridden
from tests.helpers import either_package
from tests.helpers.launchers import ROOT, shell_environment
from tests.helpers.tiny import Module, fit, loader

PACKAGES = "lightning.pytorch", "pytorch_lightning"
# Its Trainer refuses callbacks of the other package: "Expected a parent".
mixed = pytest.mark.skipif(L.__version__.startswith("2.5."), reason="needs Lightning 2.6")


def in_a_process(package, folder):
    command = [sys.executable, "-m", "tests.helpers.either_package", package, str(folder)]
    # The script chooses a Lightning before it imports ours, which `tests/__init__.py` would import.
    environment = {name: value for name, value in shell_environment().items() if name != "PYTEST_VERSION"}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """What the same script does with each package: ours in this process, the other in one of its own."""
    ours, other = PACKAGES
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        here = json.loads(either_package.outcome(tmp_path_factory.mktemp("ours")))
    return {ours: here, other: in_a_process(other, tmp_path_factory.mktemp("other"))}


def test_a_script_needs_no_package_but_its_own(scripts):
    assert scripts["pytorch_lightning"]["imported"] == ["pytorch_lightning"]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_resumed_script_equals_the_whole_one(scripts, package):
    outcome = scripts[package]
    assert outcome["resumed"] == outcome["seen"][-len(outcome["resumed"]) :] != outcome["seen"]
    assert outcome["weights"][0] == outcome["weights"][1]


def test_both_packages_train_the_same(scripts):
    """Shapes, LR, losses and weights to the bit, with our data module and classifier, and by the command line, too."""
    for what in ("seen", "weights", "videos", "command line"):
        assert scripts[PACKAGES[0]][what] == scripts[PACKAGES[1]][what], what


class Plain(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.BatchNorm3d(3), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(3, 4))
        self.shapes = []

    def training_step(self, batch, batch_idx):
        if isinstance(self._trainer, pl.Trainer):
            self.shapes.append((batch[0].shape[0], *batch[0].shape[2:4]))
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return SGD(self.parameters(), lr=0.1)


def quiet(*callbacks):
    flags = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    return pl.Trainer(accelerator="cpu", max_epochs=2, callbacks=list(callbacks), **flags)


@mixed
def test_a_callback_of_one_package_in_a_trainer_of_the_other():
    """As when a script imports us first: Lightning calls its callbacks without asking for their class."""
    assert not isinstance(MultigridCallback(), pl.Callback)
    module, reference = Plain(), Module()
    L.seed_everything(0, verbose=False)
    quiet(MultigridCallback(), pl.callbacks.Timer(), L.pytorch.callbacks.EarlyStopping("loss", patience=99)).fit(
        module, loader()
    )
    fit(reference, MultigridCallback(), max_epochs=2)
    assert module.shapes == reference.shapes
    assert type(module.net[0]) is nn.BatchNorm3d


@mixed
@pytest.mark.parametrize("package", [L.pytorch, pl])
def test_refusals_know_the_classes_of_both(package):
    callback = package.callbacks.StochasticWeightAveraging(0.1)
    with pytest.raises(MisconfigurationException, match="which `StochasticWeightAveraging` also changes. Use `WeightA"):
        quiet(MultigridCallback(), callback).fit(Plain(), loader())
    assert is_a(callback, "Callback")
    assert not is_a(callback, "loggers.CSVLogger")
    assert not is_a(callback, "LightningModule")


@pytest.mark.parametrize("owner", [Plain(), Module(), pl.LightningDataModule(), L.LightningDataModule()])
def test_overridden(owner):
    assert is_overridden("training_step", owner) == isinstance(owner, nn.Module)
    assert not is_overridden("on_after_batch_transfer", owner)
