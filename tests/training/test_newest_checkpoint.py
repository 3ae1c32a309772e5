"""`last.ckpt` is the newest state, whatever the best one was."""

import multiprocessing
import os
import re
import signal
from itertools import product

import lightning as L
import pytest
import torch
from lightning.pytorch import callbacks
from lightning.pytorch.callbacks import ModelCheckpoint, TQDMProgressBar
from lightning.pytorch.plugins.environments import SLURMEnvironment
from lightning.pytorch.strategies import DDPStrategy
from torch.multiprocessing import start_processes

from lightning_multigrid import MultigridCallback, NewestCheckpoint
from lightning_multigrid.host import MisconfigurationException
from lightning_multigrid.training.checkpoints import newest_checkpoint
from tests.helpers.launchers import variables_of_torchrun
from tests.helpers.processes import start_method, wait_for
from tests.helpers.sampling import sampled
from tests.helpers.tiny import ByHand, Module, fit, loader, stopping

pytestmark = pytest.mark.usefixtures("_unrehearsed")

with_averages = pytest.mark.skipif(not hasattr(callbacks, "EMAWeightAveraging"), reason="new in Lightning 2.6")
KILLED = (3, 2)  # epoch and mini-batch of six epochs


class BestAtFirst(Module):
    """Its metric only falls."""

    def validation_step(self, batch, batch_idx):
        self.log("score", -float(self.current_epoch))


class StepsItself(ByHand, BestAtFirst):
    """Steps its optimizer itself."""


class Killed(L.Callback):
    def __init__(self, place, requeued=False):
        self.place, self.requeued = place, requeued

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if (trainer.current_epoch, batch_idx) == self.place:
            if not self.requeued:
                os.kill(os.getpid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGUSR1)  # as SLURM does it when time is up: first the signal

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if self.requeued and (trainer.current_epoch, batch_idx - 1) == self.place:
            os.kill(os.getpid(), signal.SIGKILL)


def train(folder, killed=(-1, 0), newest=None, kind=BestAtFirst, requeued=False, **arguments):
    module = kind()
    best = ModelCheckpoint(folder, "best", monitor="score", mode="max", enable_version_counter=False)
    saving = best, newest or NewestCheckpoint(folder, minutes=0), Killed(killed, requeued)
    arguments |= {"val": loader(shuffle=False, number=8), "enable_checkpointing": True}
    module.host = fit(module, MultigridCallback(), *saving, **arguments)
    return module


def train_until_killed(*arguments, **named):
    killed = multiprocessing.get_context(start_method()).Process(target=train, args=arguments, kwargs=named)
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL


def step(path):
    return torch.load(path, weights_only=True)["global_step"]


@pytest.mark.parametrize("kind", sampled([BestAtFirst, StepsItself], StepsItself))
def test_a_run_that_is_killed_late_does_not_go_back_to_its_best_epoch(kind, tmp_path):
    train_until_killed(str(tmp_path / "killed"), KILLED, kind=kind)
    whole = train(str(tmp_path / "whole"), kind=kind)
    resumed = train(str(tmp_path / "killed"), kind=kind, ckpt_path="last")
    # The step under way was not written yet; all the others were.
    assert resumed.seen[0][:2] == KILLED
    assert resumed.seen == whole.seen[-len(resumed.seen) :]
    best, last = (step(tmp_path / "killed" / f"{name}.ckpt") for name in ("best", "last"))
    assert best < len(whole.seen) / 3 < last == len(whole.seen)


def test_the_end_of_a_run_is_kept_however_short_it_is(tmp_path):
    module = train(str(tmp_path), newest=(keep := NewestCheckpoint(tmp_path, minutes=60)))
    assert step(tmp_path / "last.ckpt") == len(module.seen)
    assert sorted(os.listdir(tmp_path)) == ["best.ckpt", "last.ckpt"]
    assert train(str(tmp_path), newest=keep, ckpt_path="last").seen == []  # nothing is left to do


def test_the_newest_state_is_taken_whatever_wrote_it(tmp_path, monkeypatch):
    job = {"JOB_ID": "5", "JOB_NAME": "train", "NTASKS": "1", "PROCID": "0", "LOCALID": "0", "NODELIST": "here"}
    for name, value in job.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    (tmp_path / "scontrol").write_text("#!/bin/sh\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    folder = tmp_path / "checkpoints"

    def arguments(minutes):
        newest = NewestCheckpoint(folder, minutes)
        return {"newest": newest, "default_root_dir": tmp_path, "plugins": [SLURMEnvironment()], "ckpt_path": "last"}

    whole = train(str(tmp_path / "whole"))
    places = [place[:2] for place in whole.seen]
    train_until_killed(str(folder), (1, 2), **{**arguments(0), "ckpt_path": None})
    assert step(folder / "last.ckpt") == places.index((1, 2))
    train_until_killed(str(folder), KILLED, requeued=True, **arguments(60))
    assert step(folder / "last.ckpt") == places.index((1, 2))  # not one hour later
    assert step(tmp_path / "hpc_ckpt_1.ckpt") == places.index(KILLED) + 1
    resumed = train(str(folder), **arguments(60))
    assert resumed.host.ckpt_path == str(tmp_path / "hpc_ckpt_1.ckpt")
    assert resumed.seen == whole.seen[places.index(KILLED) + 1 :]
    done = train(str(folder), **arguments(60))
    assert done.host.ckpt_path == str(folder / "last.ckpt")
    assert step(done.host.ckpt_path) == len(whole.seen)
    assert done.seen == []


class Failing(BestAtFirst):
    """Fails before the step after `after`; with [], before the first one of a run."""

    after = (1, 0)

    def training_step(self, batch, batch_idx):
        if isinstance(self._trainer, L.Trainer) and (self.seen and self.seen[-1][:2]) == self.after:
            raise RuntimeError("on purpose")
        return super().training_step(batch, batch_idx)


def test_a_run_that_fails_keeps_what_was_written_and_without_any_leaves_what_was_there(tmp_path, monkeypatch):
    keep, said = NewestCheckpoint(tmp_path, minutes=60), []
    monkeypatch.setattr(newest_checkpoint, "tell", said.append)
    with pytest.raises(RuntimeError, match="on purpose"):
        train(str(tmp_path), newest=keep, kind=Failing)
    assert said == ["No checkpoint was written yet: NewestCheckpoint writes one every 60 minutes."]
    with pytest.raises(RuntimeError, match="on purpose"):
        train(str(tmp_path), newest=NewestCheckpoint(tmp_path, minutes=0), kind=Failing)
    assert said[1].startswith(f"`ckpt_path='last'` continues from {tmp_path / 'last.ckpt'}")
    kept = (tmp_path / "last.ckpt").read_bytes()
    assert step(tmp_path / "last.ckpt") == 10  # nine steps of the first epoch, and one
    monkeypatch.setattr(Failing, "after", [])
    with pytest.raises(RuntimeError, match="on purpose"):
        train(str(tmp_path), newest=keep, kind=Failing)
    assert (tmp_path / "last.ckpt").read_bytes() == kept
    assert len(said) == 2


class Signalled(L.Callback):
    """Sends signals to its own process, if that is `rank` or each is meant, before the third step."""

    def __init__(self, rank, signals):
        self.rank, self.signals = rank, signals

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if len(module.seen) == 2 and self.rank in (trainer.global_rank, "each"):
            for number in self.signals:
                os.kill(os.getpid(), number)


def train_on_rank(rank, variables, folder, signalled, **arguments):
    os.environ.update(variables, RANK=str(rank), LOCAL_RANK=str(rank), SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank))
    torch.set_num_threads(1)
    ours = MultigridCallback(), NewestCheckpoint(folder, minutes=60), signalled
    arguments |= {"strategy": DDPStrategy(process_group_backend="gloo"), "devices": 2, "max_epochs": 1}
    fit(Module(), *ours, train=loader(number=200), enable_checkpointing=True, **arguments)


def stop_on_rank(*arguments):
    with pytest.raises(SystemExit):  # what Lightning makes of Ctrl-C and SIGTERM
        train_on_rank(*arguments)


def requeue_on_rank(rank, variables, folder, signalled):
    job = {"JOB_ID": "5", "JOB_NAME": "train", "NTASKS": "2", "NODEID": "0", "NODELIST": "127.0.0.1"}
    variables |= {f"SLURM_{name}": value for name, value in job.items()}
    train_on_rank(rank, variables, folder, signalled, plugins=[SLURMEnvironment()], default_root_dir=folder)


def signal_ranks(train, rank, signals, folder):
    """Returns the steps of the checkpoints that two ranks leave."""
    arguments = variables_of_torchrun(2), str(folder), Signalled(rank, signals)
    ranks = start_processes(train, arguments, nprocs=2, join=False, start_method=start_method())
    try:
        wait_for(lambda: ranks.join(timeout=1), seconds=30)
    finally:
        for process in ranks.processes:
            process.kill()
    return {path.stem: step(path) for path in folder.glob("*.ckpt")}


@pytest.mark.parametrize(
    ("rank", "number"),
    sampled(list(product((0, 1), (signal.SIGINT, signal.SIGTERM))), (0, signal.SIGINT), (1, signal.SIGTERM)),
)
def test_a_signal_to_any_device_stops_all_after_the_same_step(rank, number, tmp_path):
    assert signal_ranks(stop_on_rank, rank, [number], tmp_path) == {"last": 3}


def test_a_second_ctrl_c_waits_for_no_step(tmp_path):
    assert signal_ranks(stop_on_rank, "each", [signal.SIGINT] * 2, tmp_path) == {}


def test_slurms_signal_to_any_device_writes_after_the_same_step_and_training_goes_on(tmp_path):
    kept = signal_ranks(requeue_on_rank, 1, [signal.SIGUSR1], tmp_path)
    assert kept["hpc_ckpt_1"] == 3 < kept["last"]


@pytest.mark.parametrize("silent", [False, True])
def test_a_training_that_begins_anew_says_where_it_has_put_what_was_there(silent, tmp_path, caplog):
    """A bar that is off prints nothing above it."""
    bar = [TQDMProgressBar(refresh_rate=0)] * silent
    for _ in range(2):
        arguments = {"enable_checkpointing": True, "enable_progress_bar": silent}
        fit(Module(), NewestCheckpoint(tmp_path), *bar, max_epochs=1, **arguments)
    said = f"{tmp_path}/last.ckpt was of an earlier training, and is {tmp_path}/earlier-1.ckpt now. To continue that"
    assert said in caplog.text


def test_a_training_that_begins_anew_keeps_what_another_one_has_left_and_touches_no_other_file(tmp_path):
    (tmp_path / "pretrained.ckpt").write_bytes(b"a person's")
    steps = len(train(str(tmp_path), max_epochs=2).seen)
    for _ in range(2):  # without `ckpt_path="last"`, by mistake
        with pytest.raises(RuntimeError, match="on purpose"):
            train(str(tmp_path), kind=Failing)
    assert [step(tmp_path / f"{name}.ckpt") for name in ("earlier-1", "earlier-2", "last")] == [steps, 10, 10]
    names = ["best", "earlier-1", "earlier-2", "last", "pretrained"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{name}.ckpt" for name in names]
    assert (tmp_path / "pretrained.ckpt").read_bytes() == b"a person's"


def test_a_last_one_that_is_not_there_is_refused_if_there_are_others(tmp_path):
    train(str(tmp_path), max_epochs=1)
    (tmp_path / "last.ckpt").rename(tmp_path / "moved.ckpt")
    message = rf"`ckpt_path='last'` finds no {tmp_path}/last.ckpt. The newest checkpoint .* is {tmp_path}/moved.ckpt: g"
    with pytest.raises(MisconfigurationException, match=message):
        train(str(tmp_path), ckpt_path="last")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.ckpt", "moved.ckpt"]


@pytest.mark.filterwarnings("ignore:.*is called with Trainer configured with multiple")
@pytest.mark.parametrize("first", [True, False])
def test_the_best_is_that_of_the_other_callback_wherever_this_one_stands(first, tmp_path):
    best = ModelCheckpoint(tmp_path, "best", monitor="score", mode="max")
    both = [NewestCheckpoint(tmp_path), best]
    module = BestAtFirst()
    host = fit(module, *(both if first else both[::-1]), val=loader(shuffle=False), enable_checkpointing=True)
    assert host.checkpoint_callback is best
    host.validate(module, loader(shuffle=False), ckpt_path="best", verbose=False)


def test_a_rehearsal_writes_nothing(tmp_path):
    train(str(tmp_path), fast_dev_run=2)
    assert not os.listdir(tmp_path)


def test_a_config_may_have_one_beside_that_of_its_script(tmp_path):
    both = [NewestCheckpoint(tmp_path / name, minutes=5) for name in ("config", "script")]
    fit(Module(), *both, enable_checkpointing=True, max_epochs=1)
    assert step(tmp_path / "config" / "last.ckpt") == step(tmp_path / "script" / "last.ckpt") == 25


@pytest.mark.parametrize("change", [os.utime, os.remove], ids=["writes", "moves"])
def test_that_another_training_writes_to_the_folder_is_said(change, tmp_path):
    class Other(L.Callback):
        def on_train_epoch_start(self, trainer, module):
            if trainer.current_epoch == 2:
                change(tmp_path / "last.ckpt")

    said = r"last\.ckpt is not what this NewestCheckpoint has written there: another training"
    with pytest.warns(UserWarning, match=said) as found:
        fit(Module(), MultigridCallback(), NewestCheckpoint(tmp_path, minutes=0), Other(), enable_checkpointing=True)
    assert sum(bool(re.search(said, str(each.message))) for each in found) == 1


def test_an_interval_must_not_be_negative():
    with pytest.raises(ValueError, match="`minutes` must be at least 0, got -1"):
        NewestCheckpoint("checkpoints", minutes=-1)


@with_averages
@pytest.mark.parametrize(
    ("step", "first"), sampled([*product((5, 16), (True, False))], (5, True), (16, False))
)  # within an epoch, and at its end
def test_a_run_of_averaged_weights_that_is_stopped_continues_from_its_own(first, step, tmp_path):
    """The average, which the module has in the end, is in the checkpoint, too."""

    def run(folder, *stop, **arguments):
        module = Module()
        both = [callbacks.EMAWeightAveraging(decay=0.9), MultigridCallback(seed=0)]
        saver = NewestCheckpoint(tmp_path / folder, minutes=60)
        arguments |= {"enable_checkpointing": True, "max_epochs": 2}
        fit(module, *(both if first else both[::-1]), saver, *stop, **arguments)
        return module

    whole, stopped = run("whole"), run("stopped", stopping(lambda host, _: host.global_step == step))
    saved = torch.load(tmp_path / "stopped" / "last.ckpt", weights_only=True)
    torch.testing.assert_close(saved["state_dict"], {**stopped.state_dict()}, rtol=0, atol=0)
    resumed = run("stopped", ckpt_path=tmp_path / "stopped" / "last.ckpt")
    assert len(stopped.seen) == step
    assert stopped.seen + resumed.seen == whole.seen
    torch.testing.assert_close(resumed.state_dict(), whole.state_dict(), rtol=0, atol=0)


@with_averages
@pytest.mark.parametrize("first", sampled([True, False], True))
def test_a_validation_of_averaged_weights_that_is_stopped_leaves_the_checkpoint_before(first, tmp_path):
    """They are swapped with the module's own in it."""

    class Stops(Module):
        stops = False

        def validation_step(self, batch, batch_idx):
            super().validation_step(batch, batch_idx)
            if self.stops and self.current_epoch == 1:
                raise RuntimeError("on purpose")

    def run(folder, stops=False, minutes=0, **arguments):
        module = Stops()
        module.stops = stops
        both = [callbacks.EMAWeightAveraging(decay=0.9), MultigridCallback(seed=0)]
        saver = NewestCheckpoint(tmp_path / folder, minutes)
        arguments |= {"val": loader(shuffle=False, number=8), "enable_checkpointing": True, "max_epochs": 3}
        fit(module, *(both if first else both[::-1]), saver, **arguments)
        return module

    whole = run("whole")
    for folder, minutes in (("stopped", 0), ("never", 60)):
        with pytest.raises(RuntimeError, match="on purpose"):
            run(folder, stops=True, minutes=minutes)
    assert not (tmp_path / "never").exists()
    resumed = run("stopped", ckpt_path=tmp_path / "stopped" / "last.ckpt")
    assert resumed.seen == whole.seen[-len(resumed.seen) :]
    torch.testing.assert_close(resumed.state_dict(), whole.state_dict(), rtol=0, atol=0)
