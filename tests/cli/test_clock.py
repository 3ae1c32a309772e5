"""The time that `plan --measure` foretells: arithmetic on given times, and a real config whose videos are here."""

import re

import pytest

from lightning_multigrid.cli import commands
from lightning_multigrid.cli.clock import _account
from lightning_multigrid.cli.forecast import Forecast
from lightning_multigrid.cli.main import main
from lightning_multigrid.schedule import Baseline, BatchShape, MultigridSchedule
from lightning_multigrid.video import LoadingTimes, MovingShapesDataModule

BASELINE = BatchShape(4, 8, 32)
COARSE = BatchShape(16, 4, 23)
FINE, SMALL = ((shape.frames, shape.size) for shape in (BASELINE, COARSE))
FORECAST = Forecast(MultigridSchedule(Baseline(BASELINE, epochs=10)), {}, {BASELINE: 0.1, COARSE: 0.12})


def loading(processes):
    clips = {FINE: 0.05, SMALL: 0.03}
    return LoadingTimes(clips, dict.fromkeys(clips, 0.005), video=0.02, videos=10, processes=processes)


@pytest.mark.parametrize(
    ("processes", "waiting"),
    [
        (0, 4 * 0.05),  # the process that trains loads
        (1, 4 * 0.05 - 0.12),  # while it trains, one other does
        (4, 0),
    ],
)
def test_a_step_waits_for_what_is_not_loaded_meanwhile(processes, waiting):
    account = _account(FORECAST, loading(processes), [([BASELINE], 100)], validations=0)
    stepping = 0.1 + 4 * 0.005
    assert account == pytest.approx({"steps": 100 * stepping, "waiting for data": 100 * waiting, "validation": 0})


def test_the_mini_batches_of_a_cycle_are_loaded_ahead():
    """16 coarse clips take longer to load than to train, and those of the baseline less: together they keep up."""
    step = (0.1 + 4 * 0.005 + 0.12 + 16 * 0.005) / 2
    account = _account(FORECAST, loading(2), [([BASELINE, COARSE], 50)], validations=0)
    assert account["waiting for data"] == pytest.approx(50 * max(0, (4 * 0.05 + 16 * 0.03) / 2 / 2 - step))


def test_a_validation_takes_a_third_of_a_step_for_each_clip_or_the_time_of_loading():
    for processes, seconds in ((0, 0.02 + 0.1 / 4 / 3), (1, 0.02), (4, 0.1 / 4 / 3)):
        account = _account(FORECAST, loading(processes), [], validations=3)
        assert account["validation"] == pytest.approx(3 * 10 * seconds)


def test_plan_measures_what_the_clock_will_say(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(commands, "_MEASURED", 0)
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
            r"about \d+ s: .*\. The baseline takes \d+ s, so this is [\d.]+x (faster|SLOWER) than the baseline\b",
        ),
        ([], r"By the clock of this machine about \d+ s: steps \d+ s"),
    ):
        main(["plan", "--measure", *words, *added])
        assert re.search(wanted, " ".join(capsys.readouterr().out.split()))
