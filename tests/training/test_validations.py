"""What counts epochs counts the baseline's: with the callback as without it."""

import inspect
from itertools import product

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch.optim.lr_scheduler import ReduceLROnPlateau

from lightning_multigrid import MultigridCallback
from lightning_multigrid.host import MisconfigurationException
from tests.helpers.sampling import sampled
from tests.helpers.tiny import Module, fit, loader

pytestmark = pytest.mark.usefixtures("_unrehearsed")


class Scored(Module):
    """Notes validations and steps of `ReduceLROnPlateau`. Its metric never gets better."""

    def __init__(self, frequency=1):
        self.frequency, self.bad, self.validated = frequency, [], []
        super().__init__(self.plateau)

    def plateau(self, optimizer, module):
        noting, bad = ReduceLROnPlateau(optimizer, patience=1000), self.bad

        class Noting(ReduceLROnPlateau):
            def step(self, metrics, epoch=None):
                super().step(metrics)
                bad.append(self.num_bad_epochs)

        noting.__class__ = Noting
        return {"scheduler": noting, "monitor": "score", "frequency": self.frequency}

    def validation_step(self, batch, batch_idx):
        self.log("score", torch.tensor(1.0))

    def on_validation_start(self):
        if not self.trainer.sanity_checking:
            self.validated.append(self.current_epoch)


class Patient(EarlyStopping):
    """Notes how often it looked."""

    looked = 0

    def _run_early_stopping_check(self, trainer):
        self.looked += 1
        super()._run_early_stopping_check(trainer)


class Saver(ModelCheckpoint):
    """Notes the epochs at which it saved."""

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.saved = []

    def _save_checkpoint(self, trainer, filepath):
        self.saved.append(trainer.current_epoch)
        super()._save_checkpoint(trainer, filepath)


def count(folder, *multigrid, every=1, saves=1, max_epochs=4, frequency=1, **arguments):
    """How often a script with these settings does what goes by epochs."""
    module, patient = Scored(frequency), Patient("score", patience=100)
    saver = Saver(folder, every_n_epochs=saves, save_top_k=-1, filename="{epoch}")
    used = {"check_val_every_n_epoch": every, "enable_checkpointing": True, "max_epochs": max_epochs, **arguments}
    fit(module, patient, saver, *multigrid, val=loader(shuffle=False, number=8), **used)
    assert (type(patient), type(saver), saver.every_n_epochs) == (Patient, Saver, saves)
    return {
        "validations": len(module.validated),
        "looks": patient.looked,
        "saves": len(saver.saved),
        "bad epochs": len(module.bad),
    }


USED = {
    "defaults": {},
    "every second": {"every": 2, "saves": 2, "frequency": 2},
    "saved every third": {"saves": 3, "max_epochs": 6},
    "a scheduler every second": {"frequency": 2},
}


@pytest.mark.parametrize(
    ("name", "factor"),
    sampled([*product(USED, (1, 1.5, 3))], ("every second", 1.5), ("saved every third", 3)),
)
def test_validations_and_what_goes_by_them_are_as_many_as_in_the_baseline(name, factor, tmp_path):
    used = USED[name]
    baseline = count(tmp_path / "baseline", **used)
    assert min(baseline.values()) > 1
    assert count(tmp_path / "multigrid", MultigridCallback(epoch_factor=factor), **used) == baseline


def test_the_last_epoch_is_validated_for_the_checkpoint_that_counts(tmp_path):
    assert count(tmp_path / "baseline", every=3, frequency=3)["validations"] == 1
    module, callback = Scored(3), MultigridCallback()
    fit(module, callback, val=loader(shuffle=False, number=8), check_val_every_n_epoch=3)
    assert module.validated == sorted(callback.run.plan.schedule.baseline_epoch_ends(3))
    assert len(module.validated) == 2
    assert module.validated[-1] == callback.run.plan.epochs - 1


def test_with_validations_per_phase_they_are_what_is_counted(tmp_path):
    callback = MultigridCallback(epoch_factor=3, validations_per_phase=1)
    found = count(tmp_path, callback, saves=2)
    validations = len(callback.run.plan.schedule.validation_epochs(1))
    assert found["validations"] == found["looks"] == found["bad epochs"] == validations
    assert found["saves"] == validations // 2 + validations % 2


def test_a_fast_dev_run_validates(tmp_path):
    module = Scored()
    fit(module, MultigridCallback(), val=loader(shuffle=False, number=8), fast_dev_run=True)
    assert module.validated == [0]


@pytest.mark.skipif(
    "timedelta" not in str(inspect.signature(L.Trainer).parameters["val_check_interval"]),
    reason="this Lightning knows no time from one validation to the next",
)
def test_an_interval_of_time_is_refused():
    with pytest.raises(MisconfigurationException, match="of a time knows nothing of. Give it a number"):
        fit(Module(), MultigridCallback(), val=loader(shuffle=False, number=8), val_check_interval="00:00:10:00")


def test_with_validations_by_steps_what_counts_epochs_counts_the_baselines(tmp_path):
    by_steps = {"every": None, "val_check_interval": 10}
    baseline, ours = count(tmp_path / "a", **by_steps), count(tmp_path / "b", MultigridCallback(), **by_steps)
    assert ours["bad epochs"] == baseline["bad epochs"] == 4  # of `ReduceLROnPlateau`; there are 6 epochs
    assert abs(ours["validations"] - baseline["validations"]) <= 1
