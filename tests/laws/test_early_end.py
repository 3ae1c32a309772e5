"""Trainings that end before their plan: what holds them, and what they say."""

import os
import re
import signal

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, LambdaCallback, ModelCheckpoint
from lightning.pytorch.utilities.exceptions import SIGTERMException

from lightning_multigrid import MultigridCallback, NewestCheckpoint
from tests.helpers.interrupts import ctrl_c, stopped
from tests.helpers.sampling import sampled
from tests.helpers.tiny import Constant, fit, loader

pytestmark = pytest.mark.usefixtures("_unrehearsed")


def trained(*callbacks, multigrid=None, **arguments):
    multigrid = multigrid or MultigridCallback()
    val = loader(shuffle=False, number=4)
    host = fit(Constant(), multigrid, *callbacks, val=val, num_sanity_val_steps=0, **{"max_epochs": 9} | arguments)
    return host, getattr(multigrid, "run", None) and multigrid.run.plan.schedule


@pytest.mark.parametrize("patience", sampled([0, 1, 2], 1))
def test_early_stopping_waits_for_the_fine_tuning_phase(patience, caplog):
    stopping = EarlyStopping("val", patience=patience)
    host, schedule = trained(stopping)
    last = schedule.phases[-1]
    assert host.current_epoch > last.start_epoch
    # The first validation within the last phase is the first that counts.
    assert host.current_epoch <= last.start_epoch + 1 + max(1, patience)
    assert stopping.stopped_epoch == host.current_epoch - 1
    messages = [record.getMessage() for record in caplog.records]
    ended = [m for m in messages if m.startswith("Stopped in phase")]
    assert len(ended) == (host.current_epoch < schedule.epochs)


def test_thresholds_of_early_stopping_hold_throughout(caplog):
    host, schedule = trained(EarlyStopping("val", patience=2, stopping_threshold=2.0))
    assert host.current_epoch == 1
    phases = len(schedule.phases)
    said = rf"Stopped in phase 1 of {phases}, at epoch 1.00 of {schedule.epochs}: fine-tuning not reached."
    assert any(re.fullmatch(said, message) for message in caplog.messages)


def at_end_of(epoch):
    """Stops the training."""
    return LambdaCallback(on_train_epoch_end=lambda host, _: setattr(host, "should_stop", host.current_epoch == epoch))


def test_a_whole_training_does_not_say_that_it_stopped(caplog):
    trained()
    trained(max_epochs=-1, max_steps=60)
    assert not [record for record in caplog.records if "Stopped in phase" in record.getMessage()]


def test_a_run_that_anything_else_stops_says_where(caplog):
    trained(at_end_of(7), multigrid=MultigridCallback(fine_tuning=False))
    assert [r for r in caplog.records if re.search("Stopped in phase 4 of 4, at epoch 8.00 of 9", r.getMessage())]


@pytest.mark.parametrize(
    ("hook", "said"), [("on_train_epoch_end", ["Stopped in phase 2 of 5, at epoch 2.00"]), ("on_train_start", [])]
)
def test_ctrl_c_says_where_it_stopped_if_a_step_was_done(hook, said, caplog):
    def interrupt(trainer, pl_module):
        if not pl_module.seen or trainer.current_epoch == 1:
            raise KeyboardInterrupt

    with stopped():
        trained(LambdaCallback(**{hook: interrupt}))
    assert [text[:38] for text in caplog.messages if "Stopped in phase" in text] == said


def test_sigterm_says_where_it_stopped(caplog):
    with pytest.raises(SIGTERMException):
        trained(LambdaCallback(on_train_epoch_end=lambda *_: os.kill(os.getpid(), signal.SIGTERM)))
    assert [record for record in caplog.records if "Stopped in phase 1 of" in record.getMessage()]


def test_a_checkpoint_of_a_held_early_stopping_is_an_ordinary_one(tmp_path):
    """Its `wait_count` means at most two validations more in a training without the callback."""
    stopping = EarlyStopping("val", patience=3)
    host, _ = trained(stopping, at_end_of(1))
    host.save_checkpoint(tmp_path / "a.ckpt")
    state = torch.load(tmp_path / "a.ckpt", weights_only=True)["callbacks"]
    saved = next(value for key, value in state.items() if key.startswith("EarlyStopping"))
    assert saved["patience"] == 3
    assert -2 <= saved["wait_count"] <= 0


class StoppedInValidation(Constant):
    """Ctrl-C comes in the validation after an epoch."""

    def __init__(self, epoch=None):
        super().__init__()
        self.epoch = epoch

    def on_validation_start(self):
        if self.current_epoch == self.epoch and not self.trainer.sanity_checking:
            ctrl_c()


@pytest.mark.parametrize("patience", sampled([0, 1], 1))
@pytest.mark.parametrize("epoch", sampled([1, 3], 3))  # the last phase begins at epoch 4
def test_patience_does_not_count_a_validation_that_begins_anew_before_the_last_phase(epoch, patience, tmp_path):
    def run(folder, module, **arguments):
        callback, last = MultigridCallback(), NewestCheckpoint(tmp_path / folder)
        stopping = EarlyStopping("val", patience=patience)
        val = loader(shuffle=False, number=4)
        arguments |= {"max_epochs": 8, "enable_checkpointing": True}
        host = fit(module, callback, stopping, last, val=val, **arguments)
        assert callback.run.plan.schedule.phases[-1].start_epoch == 4
        return host.current_epoch, stopping.wait_count

    whole = run("whole", Constant())
    with stopped():
        run("stopped", StoppedInValidation(epoch))
    assert run("stopped", Constant(), ckpt_path="last") == whole
    assert whole[0] > 4


def test_a_run_goes_on_after_the_last_step_of_an_epoch(tmp_path):
    """That epoch's validation is left out, as without the callback, so there is no metric to judge by."""
    saver = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    val = loader(shuffle=False, number=4)
    whole, resumed = Constant(), Constant()
    fit(whole, MultigridCallback(), EarlyStopping("val"), saver, val=val, max_epochs=2, enable_checkpointing=True)
    steps = [epoch for epoch, *_ in whole.seen].count(0)
    path = tmp_path / f"step={steps}.ckpt"
    fit(resumed, MultigridCallback(), EarlyStopping("val"), val=val, max_epochs=2, ckpt_path=path)
    assert resumed.seen == whole.seen[steps:]
