"""The time that `plan --measure` foretells: arithmetic on given times, and short trainings of a real config."""

import json
import logging
import re
import warnings
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from unittest import mock

import pytest
from lightning.pytorch import LightningModule

from lightning_multigrid.cli import clock, commands
from lightning_multigrid.cli.clock import Paces, _Epoch, _Short, _Times, count_validations, foretold
from lightning_multigrid.cli.forecast import Forecast
from lightning_multigrid.cli.main import main
from lightning_multigrid.models import small_cnn
from lightning_multigrid.reports import StepTime
from lightning_multigrid.schedule import Baseline, BatchShape, LongCycle, MultigridSchedule, Plan, ShortCycle, Step
from lightning_multigrid.training import MultigridCallback
from lightning_multigrid.video import MovingShapesDataModule, VideoClassifier
from tests.helpers.tiny import Module, fit, loader, trainer

BASELINE = BatchShape(4, 8, 32)
COARSE = BatchShape(16, 4, 23)
SETTING = {"accelerator": "cpu", "accumulate_grad_batches": 1}


def times(*steps):
    """Of (shape, waiting, stepping), the first of which begins the epoch."""
    made = _Times({})
    for batch, (shape, waiting, stepping) in enumerate(steps):
        made.add(StepTime(Step(shape, 0, 0, 1.0, 8, 1.0), batch, waiting, stepping))
    return made


def test_an_account_is_steps_and_epochs_and_validations():
    """The first step on a grid takes longer, and the first wait of an epoch comes once in each epoch."""
    coarse, fine = [(COARSE, 0.02, 0.3)] * 4, [(BASELINE, 0.01, 0.1)] * 4
    epoch = _Epoch(times((COARSE, 0.5, 9.0), *coarse, (BASELINE, 0.01, 9.0), *fine), 3.0, 2.0, 0.7)
    account = epoch.account({COARSE: 100, BASELINE: 10}, epochs=5, validations=4)
    waiting = 100 * 4 * 0.02 / 5 + 10 * 0.01 + 5 * 0.5
    assert account == pytest.approx(
        {"start": 3, "steps": 31, "waiting for data": waiting, "validation": 8, "BatchNorm statistics": 2.8}
    )


def test_a_smaller_mini_batch_takes_its_share():
    epoch = _Epoch(times((COARSE, 0.0, 9.0), (COARSE, 0.0, 0.4)), 0.0, 0.0, 0.0)
    assert epoch.account({BatchShape(4, 4, 23): 8}, 1, 0)["steps"] == pytest.approx(8 * 0.1)


def pace(seconds, validation, *shapes):
    """Each step on each of the shapes takes so long, and nothing waits."""
    return _Epoch(times(*[(shape, 0.0, seconds) for shape in shapes for _ in range(2)]), 1.0, validation, 0.5)


def test_a_training_is_compared_with_its_baseline():
    """Both start and validate alike, whatever the short training of the baseline took for it."""
    plan = Plan(MultigridSchedule(Baseline(BASELINE, 4), long_cycle=LongCycle(((1, 1),)), short_cycle=ShortCycle()), 80)
    shapes = plan.schedule.grids
    paces = Paces(pace(0.01, 2.0, BASELINE, *shapes), pace(0.5, 77.0, BASELINE))
    own, baseline = paces.accounts(plan, (3, 4), started=6.0)
    steps = sum(plan.batches_of(epoch) for epoch in range(plan.epochs))
    assert own["steps"] == pytest.approx(0.01 * steps, rel=0.2)  # tails are smaller
    assert [own[kind] for kind in ("start", "validation", "BatchNorm statistics")] == [7, 6, 1.5]
    assert baseline == {"start": 7, "steps": 40, "waiting for data": 0, "validation": 8, "BatchNorm statistics": 0}
    told = foretold([own, baseline], "fewer videos")
    assert told.startswith("By the clock of this machine about 15 s: start 7 s, steps 1 s, validation 6 s, BatchNorm")
    assert re.search(r"\. 3\.\d\dx faster than the baseline: 15 s instead of 55 s by the wall clock\.$", told)
    slower = foretold([baseline, own], "fewer videos")
    assert "SLOWER than the baseline: 55 s instead of 15 s by the wall clock, mostly because of steps" in slower


def test_a_baseline_is_compared_with_nothing():
    plan = Plan(replace_cycles(MultigridSchedule(Baseline(BASELINE, 4))), 80)
    epoch = pace(0.5, 2.0, BASELINE)
    [own] = Paces(epoch, epoch).accounts(plan, (4, 4), 0.0)
    assert own["steps"] == 40
    assert foretold([own], "") == (
        "By the clock of this machine about 51 s: start 1 s, steps 40 s, validation 8 s, BatchNorm statistics 2 s."
    )


def replace_cycles(schedule):
    return replace(schedule, long_cycle=LongCycle(((1, 1),)), short_cycle=ShortCycle((1,)), epoch_factor=1)


class Validated(Module):
    """Counts its validations."""

    validations = 0

    def on_validation_epoch_start(self):
        self.validations += not self.trainer.sanity_checking


@pytest.mark.usefixtures("_unrehearsed")
@pytest.mark.parametrize("callback", [{}, {"validations_per_phase": 1}], ids=str)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"check_val_every_n_epoch": 3},
        {"val_check_interval": 0.25},
        {"val_check_interval": 5},
        {"val_check_interval": 10, "check_val_every_n_epoch": None},
    ],
    ids=str,
)
def test_validations_are_those_of_fit(settings, callback):
    multigrid, (own, baseline) = MultigridCallback(**callback), (Validated(), Validated())
    for module, callbacks in ((own, [multigrid]), (baseline, [])):
        fit(module, *callbacks, val=loader(shuffle=False, number=8), num_sanity_val_steps=0, **settings)
    found = count_validations(multigrid.fit.plan, trainer(**settings), multigrid)
    assert found == (pytest.approx(own.validations, abs="val_check_interval" in settings), baseline.validations)
    assert count_validations(multigrid.fit.plan, trainer(**settings), None) == (baseline.validations,) * 2


@pytest.mark.parametrize(
    ("batches", "world", "limit", "times"),
    [(20, 1, 1.0, 1), (128, 1, 1.0, 4), (8, 8, 1.0, 1 / 8), (100, 4, 1.0, 25 / 32), (100, 1, 16, 0.5), (8, 1, 0, 0)],
)
def test_a_validation_is_that_of_a_device(batches, world, limit, times):
    data = mock.Mock(sources={"val": "there"}, val_dataloader=lambda: range(batches))
    assert clock._validated(data, world, limit) == times
    assert clock._validated(mock.Mock(sources={"val": None}), world, limit) == 0


class Seen(VideoClassifier):
    """Notes the shapes that it trains on, and in which epoch."""

    def training_step(self, batch, batch_idx):
        clips, _ = batch
        shape = BatchShape(len(clips), clips.shape[2], clips.shape[3])
        self.seen[self.trainer.current_epoch, shape] += 1
        return super().training_step(batch, batch_idx)


@pytest.fixture
def data(tmp_path):
    made = MovingShapesDataModule(tmp_path, train_per_class=4, val_per_class=1, batch_size=2, frames=8, size=32)
    made.prepare_data()
    made.setup("fit")
    return made


def short(schedule, data, module=None, clips=10**6, callback=None, devices=1, **setting):
    plan = Plan(schedule, clips, accumulate=setting.get("accumulate_grad_batches", 1))
    own = MultigridCallback() if callback is None else callback
    return _Short(plan, Forecast(schedule, {}, {}), own, module, data, SETTING | setting, devices)


@pytest.mark.parametrize("epochs", [1, 2, Fraction(5, 2)])
def test_a_short_training_goes_twice_through_the_base_shapes_in_equal_steps(data, epochs, monkeypatch):
    monkeypatch.setattr(clock, "_SECONDS", 0)
    model = Seen(small_cnn(num_classes=16, width=2), 16, warmup_epochs=0.5)
    model.seen = Counter()
    baseline = Baseline(BatchShape(2, 8, 32), epochs, () if epochs == 1 else (1,))
    schedule = MultigridSchedule(baseline, long_cycle=LongCycle(((0.5, 1),)))
    monkeypatch.setattr(Forecast, "seconds", lambda self, shape: 0.1)
    measured = short(schedule, data, model, callback=MultigridCallback(precise_bn_batches=2))(schedule, 10**6)
    bases = [BatchShape(4, 4, 32), BatchShape(2, 8, 32)][epochs == 1 :]
    of_cycles = [Counter(schedule.cycle(base)) for base in bases]
    times = clock._LEAST // 3
    a_whole = {(epoch, shape): times * n for cycle in of_cycles for shape, n in cycle.items() for epoch in (0, 1)}
    assert model.seen == a_whole
    assert set(measured.times._grids) == {shape.clip for _, shape in model.seen}
    assert measured.times.all.steps == len(bases) * clock._LEAST  # of the second epoch alone
    assert measured.validation > 0
    assert measured.statistics > 0


def test_statistics_are_estimated_from_as_many_mini_batches_as_planned(data, monkeypatch):
    """Of 4 clips in an epoch, precise BatchNorm takes two mini-batches of the 8 that it is to take."""
    monkeypatch.setattr(clock.Trainer, "fit", lambda *_: None)
    monkeypatch.setattr(clock._Short, "_clips", lambda *_: 4)
    monkeypatch.setattr(clock._SecondEpoch, "epoch", None, raising=False)
    schedule = MultigridSchedule(Baseline(BatchShape(2, 8, 32), 2))
    for batches, factor in ((8, 4), (2, 1), (None, 1)):
        clock._SecondEpoch.epoch = _Epoch(times(), 0.0, 0.0, 1.0)
        callback = MultigridCallback(precise_bn_batches=batches)
        assert short(schedule, data, callback=callback)(schedule, 100).statistics == factor


def test_a_short_training_leaves_data_and_messages_as_they_were(data, monkeypatch, capsys):
    monkeypatch.setattr(clock, "_SECONDS", 0)
    data.num_workers = 4
    schedule = MultigridSchedule(Baseline(BatchShape(2, 8, 32), 2))
    monkeypatch.setattr(Forecast, "seconds", lambda self, shape: 0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = list(warnings.filters)
        with pytest.raises(Exception, match="training_step"):
            short(schedule, data, LightningModule())(schedule, 10**6)
        assert warnings.filters == before
    assert logging.root.manager.disable == logging.NOTSET
    assert data.num_workers == 4
    assert "train_dataloader" not in vars(data)
    assert capsys.readouterr().out == ""


def test_a_short_training_has_some_seconds_of_steps_on_each_base_shape(data, monkeypatch):
    monkeypatch.setattr(Forecast, "seconds", lambda self, shape: 0.1)
    schedule = MultigridSchedule(Baseline(BatchShape(2, 8, 32), 2, (1,)))
    cycles = [schedule.cycle(shape) for shape in dict.fromkeys(phase.shape for phase in schedule.phases)]
    assert len(cycles) == 4
    # 12 s of 0.1 s each on four base shapes, of three mini-batches.
    clips = sum(10 * 3 * shape.clips for cycle in cycles for shape in cycle)
    assert short(schedule, data, accumulate_grad_batches=3)._clips(schedule, 10**6) == clips


@pytest.mark.parametrize(("mini_batches", "rounds"), [(10**6, 10), (1600, 7), (10, 2)])
def test_a_short_training_has_a_tenth_of_the_mini_batches_of_the_training_at_most(
    data, mini_batches, rounds, monkeypatch
):
    monkeypatch.setattr(Forecast, "seconds", lambda self, shape: 0.1)
    schedule = MultigridSchedule(Baseline(BatchShape(2, 8, 32), 2, (1,)))
    cycles = [schedule.cycle(shape) for shape in dict.fromkeys(phase.shape for phase in schedule.phases)]
    # Two epochs of so many short cycles on each of four base shapes; six steps in any case.
    clips = rounds * sum(shape.clips for cycle in cycles for shape in cycle)
    assert short(schedule, data)._clips(schedule, mini_batches) == clips


COMMAND = ["--model=VideoClassifier", "--model.num_classes=16", "--model.model=lightning_multigrid.models.small_cnn"]
COMMAND += ["--model.model.num_classes=16", "--model.model.width=2", "--trainer.max_epochs=4"]
COMMAND += ["--data=lightning_multigrid.MovingShapesDataModule", "--data.train_per_class=2", "--data.val_per_class=1"]
COMMAND += ["--data.batch_size=1", "--data.frames=8", "--data.size=32", "--data.num_workers=0"]
CALLBACK = "--trainer.callbacks=lightning_multigrid.MultigridCallback"


@pytest.fixture
def plan(tmp_path, monkeypatch, capsys):
    """Runs `plan --measure`; returns what it prints, in one line, and what it warns of."""
    monkeypatch.setattr(commands, "_MEASURED", 0)
    monkeypatch.setattr(clock, "_SECONDS", 0)
    MovingShapesDataModule(tmp_path, train_per_class=2, val_per_class=1).prepare_data()

    def run(*words):
        main(["plan", "--measure", *COMMAND, f"--data.root={tmp_path}", *words])
        said = capsys.readouterr()
        return " ".join(said.out.split()), " ".join(said.err.split())

    return run


def test_plan_measures_what_the_clock_will_say(plan):
    told, _ = plan(CALLBACK)
    compared = r"about [^:]+: .*\. [\d.]+x (faster|SLOWER) than the baseline: .+ instead of .+ by the wall clock"
    assert re.search(compared, told)
    told, _ = plan()
    # The start is counted from that of the process, which has run other tests.
    assert re.search(r"By the clock of this machine about [^:]+: start [^,]+, steps \d+ s", told)
    told, _ = plan(CALLBACK, "--json=true")
    clocks = json.loads(told)["wall_clock_seconds"]
    assert list(clocks) == ["training", "baseline"]
    assert clocks["training"]["steps"] > 0


def test_a_short_training_that_fails_leaves_the_plan(plan, monkeypatch):
    def fail(*_):
        raise ValueError("too short")

    monkeypatch.setattr(clock.Trainer, "fit", fail)
    told, warned = plan(CALLBACK)
    assert "the short trainings failed, so steps are timed on clips of noise. ValueError: too short" in warned
    assert "Time of a step: measured here." in told
    assert "By the clock" not in told
