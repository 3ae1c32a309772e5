"""The time that `plan --measure` foretells: arithmetic on given times, and short trainings of a real config."""

import logging
import re
import warnings
from collections import Counter
from fractions import Fraction

import pytest
from lightning.pytorch import LightningModule

from lightning_multigrid.cli import clock, commands
from lightning_multigrid.cli.clock import _Epoch, _Short, _Times
from lightning_multigrid.cli.forecast import Forecast
from lightning_multigrid.cli.main import main
from lightning_multigrid.models import small_cnn
from lightning_multigrid.reports import StepTime
from lightning_multigrid.schedule import Baseline, BatchShape, LongCycle, MultigridSchedule, Step
from lightning_multigrid.training import MultigridCallback
from lightning_multigrid.video import MovingShapesDataModule, VideoClassifier

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
    epoch = _Epoch(times((COARSE, 0.5, 9.0), *coarse, (BASELINE, 0.01, 9.0), *fine), 2.0, 0.7, 3.0)
    account = epoch.account({COARSE: 100, BASELINE: 10}, epochs=5, validations=4)
    waiting = 100 * 4 * 0.02 / 5 + 10 * 0.01 + 5 * 0.5
    assert account == pytest.approx(
        {"start": 3, "steps": 31, "waiting for data": waiting, "validation": 8, "BatchNorm statistics": 2.8}
    )


def test_a_smaller_mini_batch_takes_its_share():
    epoch = _Epoch(times((COARSE, 0.0, 9.0), (COARSE, 0.0, 0.4)), 0.0, 0.0, 0.0)
    assert epoch.account({BatchShape(4, 4, 23): 8}, 1, 0)["steps"] == pytest.approx(8 * 0.1)


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


@pytest.mark.parametrize("epochs", [1, 2, Fraction(5, 2)])
def test_a_short_training_goes_twice_through_the_base_shapes_in_equal_steps(data, epochs, monkeypatch):
    monkeypatch.setattr(clock, "_SECONDS", 0)
    model = Seen(small_cnn(num_classes=16, width=2), 16, warmup_epochs=0.5)
    model.seen = Counter()
    schedule = MultigridSchedule(Baseline(BatchShape(2, 8, 32), epochs), long_cycle=LongCycle(((0.5, 1),)))
    short = _Short(Forecast(schedule, {}, {}), MultigridCallback(), model, data, SETTING, 1)
    monkeypatch.setattr(Forecast, "seconds", lambda self, shape: 0.1)
    measured = short(schedule)
    of_cycles = [Counter(schedule.cycle(base)) for base in (BatchShape(4, 4, 32), BatchShape(2, 8, 32))]
    times = clock._LEAST // 3
    a_whole = {(epoch, shape): times * n for cycle in of_cycles for shape, n in cycle.items() for epoch in (0, 1)}
    assert model.seen == a_whole
    assert set(measured.times._grids) == {shape.clip for _, shape in model.seen}
    assert measured.times.all.steps == 2 * clock._LEAST  # of the second epoch alone
    assert 0 < measured.validation < 60
    assert measured.statistics < 0.1


def test_a_short_training_leaves_data_and_messages_as_they_were(data, monkeypatch, capsys):
    monkeypatch.setattr(clock, "_SECONDS", 0)
    data.num_workers = 4
    schedule = MultigridSchedule(Baseline(BatchShape(2, 8, 32), 2))
    short = _Short(Forecast(schedule, {}, {}), MultigridCallback(), LightningModule(), data, SETTING, 1)
    monkeypatch.setattr(Forecast, "seconds", lambda self, shape: 0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = list(warnings.filters)
        with pytest.raises(Exception, match="training_step"):
            short(schedule)
        assert warnings.filters == before
    assert logging.root.manager.disable == logging.NOTSET
    assert data.num_workers == 4
    assert "train_dataloader" not in vars(data)
    assert capsys.readouterr().out == ""


def test_a_short_training_has_a_few_videos_and_no_more_workers_than_cores(data, monkeypatch):
    monkeypatch.setattr(clock, "_VIDEOS", 5)
    monkeypatch.setattr(clock.os, "cpu_count", lambda: 8)
    monkeypatch.setattr(Forecast, "seconds", lambda self, shape: 0.1)
    data.num_workers, data.repeats = 6, 2
    schedule = MultigridSchedule(Baseline(BatchShape(2, 8, 32), 2))
    setting = SETTING | {"accumulate_grad_batches": 3}
    few = _Short(Forecast(schedule, {}, {}), MultigridCallback(), None, data, setting, 4)._data(schedule)
    loader = few.train_dataloader()
    assert (few.num_workers, loader.num_workers) == (2, 2)
    visits = list(loader.sampler)
    assert len(set(visits)) == 5
    assert visits[::2] == visits[1::2]  # both clips of a visit
    steps = 30 * 3  # 3 s of 0.1 s each, of three mini-batches
    cycles = [schedule.cycle(shape) for shape in dict.fromkeys(phase.shape for phase in schedule.phases)]
    assert len(visits) == sum(steps * sum(shape.clips for shape in cycle) / len(cycle) for cycle in cycles)


def test_plan_measures_what_the_clock_will_say(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(commands, "_MEASURED", 0)
    monkeypatch.setattr(clock, "_SECONDS", 0)
    shapes = "--data=lightning_multigrid.MovingShapesDataModule"
    data = [shapes, f"--data.root={tmp_path}", "--data.train_per_class=2", "--data.val_per_class=1"]
    data += ["--data.batch_size=1", "--data.frames=8", "--data.size=32", "--data.num_workers=0"]
    model = ["--model=VideoClassifier", "--model.num_classes=16", "--model.model=lightning_multigrid.models.small_cnn"]
    words = [*data, *model, "--model.model.num_classes=16", "--model.model.width=2", "--trainer.max_epochs=4"]
    MovingShapesDataModule(tmp_path, train_per_class=2, val_per_class=1).prepare_data()
    callback = "--trainer.callbacks=lightning_multigrid.MultigridCallback"
    for added, wanted in (
        (
            [callback],
            r"about [^:]+: .*\. [\d.]+x (faster|SLOWER) than the baseline: .+ instead of .+ by the wall clock",
        ),
        # The start is counted from that of the process, which has run other tests.
        ([], r"By the clock of this machine about [^:]+: start [^,]+, steps \d+ s"),
    ):
        main(["plan", "--measure", *words, *added])
        assert re.search(wanted, " ".join(capsys.readouterr().out.split()))
