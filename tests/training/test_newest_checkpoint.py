"""`last.ckpt` is the newest state, whatever the best one was."""

import multiprocessing
import os
import signal

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_multigrid import MultigridCallback, NewestCheckpoint
from tests.helpers.processes import start_method
from tests.helpers.tiny import Module, fit, loader

pytestmark = pytest.mark.usefixtures("_unrehearsed")

KILLED = (3, 2)  # epoch and mini-batch of six epochs


class BestAtFirst(Module):
    """Its metric only falls."""

    def validation_step(self, batch, batch_idx):
        self.log("score", -float(self.current_epoch))


class Killed(L.Callback):
    def __init__(self, place):
        self.place = place

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if (trainer.current_epoch, batch_idx) == self.place:
            os.kill(os.getpid(), signal.SIGKILL)


def train(folder, killed=(-1, 0), newest=None, **arguments):
    module = BestAtFirst()
    best = ModelCheckpoint(folder, "best", monitor="score", mode="max", enable_version_counter=False)
    callbacks = MultigridCallback(), best, newest or NewestCheckpoint(folder, minutes=0), Killed(killed)
    fit(module, *callbacks, val=loader(shuffle=False, number=8), enable_checkpointing=True, **arguments)
    return module


def step(path):
    return torch.load(path, weights_only=True)["global_step"]


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_a_run_that_is_killed_late_does_not_go_back_to_its_best_epoch(tmp_path):
    killed = multiprocessing.get_context(start_method()).Process(target=train, args=(str(tmp_path / "killed"), KILLED))
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    whole = train(str(tmp_path / "whole"))
    resumed = train(str(tmp_path / "killed"), ckpt_path="last")
    # The step under way was not written yet; all the others were.
    assert resumed.seen[0][:2] == KILLED
    assert resumed.seen == whole.seen[-len(resumed.seen) :]
    best, last = (step(tmp_path / "killed" / f"{name}.ckpt") for name in ("best", "last"))
    assert best < len(whole.seen) / 3 < last == len(whole.seen)


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_the_end_of_a_run_is_kept_however_short_it_is(tmp_path):
    module = train(str(tmp_path), newest=(keep := NewestCheckpoint(tmp_path, minutes=60)))
    assert step(tmp_path / "last.ckpt") == len(module.seen)
    assert sorted(os.listdir(tmp_path)) == ["best.ckpt", "last.ckpt"]
    assert train(str(tmp_path), newest=keep, ckpt_path="last").seen == []  # nothing is left to do


def test_a_rehearsal_writes_nothing(tmp_path):
    train(str(tmp_path), fast_dev_run=2)
    assert not os.listdir(tmp_path)


def test_an_interval_must_not_be_negative():
    with pytest.raises(ValueError, match="`minutes` must be at least 0, got -1"):
        NewestCheckpoint("checkpoints", minutes=-1)
