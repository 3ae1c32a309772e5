"""Each second of `fit` has its place in the account."""

import lightning as L
import pytest
from lightning.pytorch.callbacks import LambdaCallback, ModelCheckpoint
from torch.utils.data import DataLoader

from lightning_multigrid import LongCycle, MultigridCallback, ShortCycle
from lightning_multigrid.reports.account import (
    CHECKPOINTS,
    KINDS,
    REHEARSAL,
    REST,
    START,
    STATISTICS,
    STEPS,
    VALIDATION,
    WAITING,
    Account,
    faster_or_slower,
)
from lightning_multigrid.schedule import Place, duration
from lightning_multigrid.training.parts.evaluation_statistics import PopulationEstimate
from tests.helpers.fake_clock import Reading
from tests.helpers.tiny import Module, fit, loader


def test_all_kinds_sum_to_the_wall_clock(clock):
    account = Account()
    clock.passes(3)
    assert account.turn(STEPS) == START
    clock.passes(5)
    with account.during(STATISTICS):
        clock.passes(7)
    clock.passes(1)
    account.turn(REST)
    clock.passes(2)
    account.belonged(VALIDATION)
    account.turn(REST)
    assert account.seconds == dict.fromkeys(KINDS, 0) | {START: 3, STEPS: 6, STATISTICS: 7, VALIDATION: 2}
    assert account.wall == clock.time
    assert str(account) == (
        "Wall clock of `fit`: 18.0 s: start 3.0, rehearsal 0.0, steps 6.0, waiting for data 0.0, validation 2.0, "
        "BatchNorm statistics 7.0, checkpoints 0.0, the rest 0.0."
    )


def test_a_device_says_what_of_the_loop_was_waiting(clock):
    account = Account()
    account.turn(STEPS)
    clock.passes(2)  # Python has only queued them
    account.turn(WAITING)
    clock.passes(18)  # and waits for the device somewhere
    account.turn(REST)
    account.split(stepping=15, waiting=5)
    assert (account.seconds[STEPS], account.seconds[WAITING]) == (15, 5)
    account.split(stepping=0, waiting=0)
    assert account.wall == 20


BASELINE = dict.fromkeys(KINDS, 1.0) | {STEPS: 40.0, REHEARSAL: 0.0}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({STEPS: 17.0}, "About 2.0x faster than the baseline: 23 s instead of 46 s by the wall clock."),
        ({STEPS: 42.0}, "About as fast as the baseline: 48 s instead of 46 s by the wall clock."),
        (
            {WAITING: 47.0},
            "About 2.0x SLOWER than the baseline: 1 min 32 s instead of 46 s by the wall clock, mostly because of "
            "waiting for data (47 s, in the baseline 1 s).",
        ),
    ],
)
def test_it_says_faster_or_slower_and_why(changed, said):
    assert faster_or_slower(BASELINE | changed, BASELINE) == said


class Validating(Module):
    """Steps of 3 s, validations of 50 s; its checkpoints take 20 s."""

    def __init__(self, clock):
        super().__init__()
        self.clock = clock

    def training_step(self, batch, batch_idx):
        if isinstance(self._trainer, L.Trainer):
            self.clock.passes(3)
        return super().training_step(batch, batch_idx)

    def on_validation_epoch_end(self):
        self.clock.passes(50)

    def on_save_checkpoint(self, checkpoint):
        self.clock.passes(20)


def test_a_training_is_accounted_for_to_the_second(clock, tmp_path):
    """Hooks take 7 s before the training, and 2 s after each step; from its beginning, a clip takes a second."""

    def starts(*_):
        clock.passes(7)
        reading.seconds = 1

    callback, reading = MultigridCallback(epoch_factor=3), Reading(clock.passes)
    slow = LambdaCallback(on_train_start=starts, on_train_batch_end=lambda *_: clock.passes(2))
    saver = ModelCheckpoint(tmp_path, save_top_k=-1, filename="{epoch}-{step}")
    data = {"train": DataLoader(reading, 4), "val": loader(shuffle=False, number=8)}
    fit(Validating(clock), slow, callback, saver, **data, enable_checkpointing=True, num_sanity_val_steps=0)
    plan = callback.run.plan
    steps = [step for epoch in range(4) for step in plan.epoch(epoch)]
    seconds = callback.report.account.seconds
    assert callback.report.account.wall == pytest.approx(clock.time)
    expected = {START: 7, STEPS: 5 * len(steps), WAITING: plan.step(Place(4, 0)).offset}
    expected |= {VALIDATION: 4 * 50, CHECKPOINTS: 4 * 20}
    assert seconds == pytest.approx(dict.fromkeys(KINDS, 0) | expected)


def test_the_sanity_check_is_a_validation_and_what_is_before_it_the_start(clock):
    waiting = {"on_sanity_check_start": lambda *_: clock.passes(11), "on_train_start": lambda *_: clock.passes(7)}
    callback, val = MultigridCallback(), loader(shuffle=False, number=8)
    fit(Validating(clock), callback, LambdaCallback(**waiting), val=val, num_sanity_val_steps=1)
    seconds = callback.report.account.seconds
    assert (seconds[START], seconds[VALIDATION]) == (18, 5 * 50)


def test_a_rehearsal_is_no_part_of_the_baseline(clock):
    class Rehearsed(Module):
        def training_step(self, batch, batch_idx):
            clock.passes(0 if isinstance(self._trainer, L.Trainer) else 0.1)
            return super().training_step(batch, batch_idx)

    callback = MultigridCallback()
    fit(Rehearsed(), callback)
    account = callback.report.account
    assert account.wall == account.seconds[REHEARSAL] > 0


def test_the_baseline_validates_as_often(clock, caplog):
    """Of 100 steps of 3 s and 4 validations of 50 s."""
    callback = MultigridCallback()
    with caplog.at_level("INFO", logger="lightning.pytorch.utilities.rank_zero"):
        fit(Validating(clock), callback, val=loader(shuffle=False, number=8), num_sanity_val_steps=0)
    steps = sum(callback.run.plan.phase_steps)
    assert callback.report.account.seconds[VALIDATION] == 4 * 50
    assert f"{duration(3 * steps + 200)} instead of {duration(300 + 200)} by the wall clock" in caplog.text


def test_statistics_that_are_estimated_are_no_validation(monkeypatch, clock):
    monkeypatch.setattr(PopulationEstimate, "write", lambda *_: clock.passes(5))
    callback = MultigridCallback(precise_bn_batches=1)
    fit(Validating(clock), callback, val=loader(shuffle=False, number=8), num_sanity_val_steps=0)
    seconds = callback.report.account.seconds
    assert (seconds[VALIDATION], seconds[STATISTICS]) == (4 * 50, 4 * 5)


@pytest.mark.parametrize("reading", [0.25, 0])
def test_a_slow_loader_is_named_and_a_fast_one_is_not(reading, clock, caplog):
    """A step of 4 clips takes 3 s; without workers it waits for the reading."""
    slow = Reading(clock.passes, reading)
    flat = MultigridCallback(long_cycle=LongCycle(((1, 1),)), short_cycle=ShortCycle((1,)))
    with caplog.at_level("INFO", logger="lightning.pytorch.utilities.rank_zero"):
        fit(Validating(clock), flat, train=DataLoader(slow, 4))
    limits = [said for said in caplog.messages if "The loader is the limit." in said]
    assert len(limits) == bool(reading)
    # 4 epochs of 25 steps of 3 s, each with 4 clips; with the callback of 38.
    own, script = (duration(steps * (3 + 4 * reading)) for steps in (4 * 38, 4 * 25))
    for said in limits:
        assert f"about {own} with MultigridCallback, and about {script} without it. With 0 workers, a sample " in said
        assert "takes 250 ms, so 4 are read in a second, and the steps could take up to 1.33. What helps" in said
        assert "VideoClips` instead of Reading, or a `read_clip`" in said
        assert said.endswith("; `epoch_factor=1`, by which 33% fewer samples are read.")
