"""What a run says of itself: what is left, what a step of each shape took, and where it all goes."""

import csv
import re

import pytest
from lightning.pytorch.callbacks import ProgressBar, RichProgressBar, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger
from torch.optim.lr_scheduler import LinearLR, MultiStepLR, SequentialLR

from lightning_multigrid import Baseline, BatchShape, LongCycle, MultigridCallback, MultigridSchedule, ShortCycle
from lightning_multigrid.reports import Account, Loading, RunReport, run_report
from lightning_multigrid.reports.step_times import ShapeTimes, StepTime, StepTotals
from lightning_multigrid.schedule import Place, Plan, Step
from tests.helpers.tiny import Module, fit

pytestmark = pytest.mark.usefixtures("_unrehearsed")

COARSE, FINE = BatchShape(16, 4, 16), BatchShape(2, 8, 32)


def timed(shape, stepping, waiting=0.0):
    return StepTime(Step(Place(0, 0), shape, phase=0, offset=0, sub_batch=8), waiting, stepping, reading=0.0)


def times_of(*steps):
    times = ShapeTimes()
    for step in steps:
        times.add(timed(*step))
    return times


# --- Times of shapes ---


def test_the_first_step_on_a_grid_sets_no_pace():
    times = times_of((COARSE, 9.0), (COARSE, 1.0, 3.0), (COARSE, 1.2, 1.0))
    assert times.pace(COARSE) == StepTotals(1, 16, waiting=2.0, stepping=pytest.approx(1.1))
    assert times.pace(BatchShape(8, 4, 16)).waiting == 1.0
    assert times.all.seconds == pytest.approx(15.2)
    assert times_of((COARSE, 9.0)).pace(COARSE) is times.pace(FINE) is None


def test_the_table_holds_all_steps():
    times = times_of((COARSE, 9.0), (COARSE, 1.0, 0.5), (FINE, 2.0), (BatchShape(1, 8, 32), 1.0))
    header, coarse, fine, total = [line.split() for line in times.table().splitlines()]
    assert max(map(len, times.table().splitlines())) <= 80
    assert coarse[:5] == ["16", "x", "4", "x", "16"]
    assert coarse[5:10] == ["2", "32", "10.5", "5000.0", "250.0"]
    assert fine[5:10] == ["2", "3", "3.0", "1500.0", "0.0"]
    assert total[1:4] == ["4", "35", "13.5"]
    assert header[-1] == "clips/s"


# --- What is left ---

CYCLES = LongCycle(((0.5, 0.5), (1, 1))), ShortCycle((1,))
PLAN = Plan(MultigridSchedule(Baseline(FINE, epochs=6, milestones=(3,)), *CYCLES, epoch_factor=1), 70)


def report_of(clock, plan=PLAN):
    return RunReport(Loading(plan, 1, ["x"]), clock, Account(), lambda: 0.0)


def driven(clock, until, seconds=2.0, validation=0.0):
    """A report after steps of so many seconds each, and validations, up to an epoch."""
    report = report_of(clock)
    for epoch in range(until):
        report.begin(PLAN.epoch(epoch)[0])
        for step in report.timed(iter(PLAN.epoch(epoch))):
            clock.time += seconds
            report.ended(step, PLAN.after(step))
        clock.time += validation
    return report


def test_what_is_left_is_in_proportion_to_the_steps_with_all_that_is_between_them(clock):
    steps = [len(PLAN.epoch(epoch)) for epoch in range(6)]
    assert driven(clock, 4).seconds_left == pytest.approx(2 * sum(steps[4:]))
    mean = 2 + 4 * 5 / sum(steps[:4])
    assert driven(clock, 4, validation=5).seconds_left == pytest.approx(mean * sum(steps[4:]))


def test_nothing_is_left_in_the_end_and_nothing_known_at_the_start(clock):
    report = report_of(clock)
    assert report.seconds_left is None
    assert report.bar == {"grid": "2x8x32 ", "left": "-:--:--"}  # as wide as with 16x4x16
    assert driven(clock, 6).seconds_left == 0


def test_a_resumed_run_has_only_its_rest_left(clock):
    report, steps = report_of(clock), PLAN.epoch(4)
    report.begin(steps[2])
    for step in report.timed(iter(steps[2:3])):
        clock.time += 2.0
        report.ended(step, steps[3])
    assert report.seconds_left == pytest.approx(2.0 * (len(steps) - 3 + len(PLAN.epoch(5))))


# --- In a real training ---


def schedulers(optimizer, module):
    warmup = LinearLR(optimizer, 0.1, total_iters=20)
    return {"scheduler": SequentialLR(optimizer, [warmup, MultiStepLR(optimizer, [30, 55])], [20]), "interval": "step"}


def test_scalars_reach_the_logger(tmp_path, monkeypatch):
    monkeypatch.setattr(run_report, "LEAST_SECONDS", 0.0)
    logger = CSVLogger(tmp_path)
    host = fit(Module(schedulers), MultigridCallback(), logger=logger, log_every_n_steps=1)
    with open(f"{logger.log_dir}/metrics.csv") as file:
        rows = list(csv.DictReader(file))
    last = {name: float(value) for name, value in rows[-1].items() if value and name != "step"}
    assert last["multigrid/speedup"] > 0
    seconds = host.callbacks[0].report.account.seconds
    assert last["multigrid/seconds/validation"] == pytest.approx(seconds["validation"])
    left = [float(row["multigrid/hours_left"]) for row in rows if row["multigrid/hours_left"]]
    assert left[0] > left[-1] == 0
    assert all(0 <= float(row["multigrid/waiting"]) <= 1 for row in rows if row["multigrid/waiting"])


def test_the_speedup_is_said_where_the_baselines_grid_was_measured_and_the_run_is_not_short(caplog, monkeypatch):
    with caplog.at_level("INFO", logger="lightning.pytorch.utilities.rank_zero"):
        fit(Module(schedulers), MultigridCallback())
        monkeypatch.setattr(run_report, "LEAST_SECONDS", 0.0)
        fit(Module(schedulers), MultigridCallback())
        fit(Module(schedulers), MultigridCallback(), max_epochs=1, limit_train_batches=16)
    said = re.findall(r"The baseline's wall clock is (\d+) steps of", caplog.text)
    assert said == ["100"]  # 4 epochs of 25; the second run has a single step on the baseline's grid, or none


class Bar(ProgressBar):
    def __init__(self):
        super().__init__()
        self.items = []

    def enable(self):
        """As bars are."""

    def disable(self):
        """As bars are."""

    def on_train_batch_end(self, trainer, pl_module, *_):
        self.items.append(self.get_metrics(trainer, pl_module))


def test_the_bar_shows_grid_and_time_left_and_is_put_back():
    bar, module = Bar(), Module(schedulers)
    fit(module, MultigridCallback(), bar, enable_progress_bar=True, max_epochs=2)
    assert [items["grid"].strip() for items in bar.items] == ["x".join(map(str, shape)) for shape in module.shapes]
    assert all(re.fullmatch(r"\d:\d\d:\d\d", items["left"]) for items in bar.items[1:])
    assert "get_metrics" not in vars(bar)


@pytest.mark.parametrize("kind", [RichProgressBar, TQDMProgressBar])
def test_phases_are_told_above_the_bar_and_the_report_comes_when_it_is_gone(kind, capsys, caplog):
    bar, printed = kind(), []
    own = bar.print
    bar.print = lambda text: (printed.append(text), own(text))
    with caplog.at_level("INFO", logger="lightning.pytorch.utilities.rank_zero"):
        host = fit(Module(schedulers), MultigridCallback(), bar, enable_progress_bar=True)
    plan = host.callbacks[0].run.plan
    phases = dict.fromkeys(step.phase for epoch in range(plan.epochs) for step in plan.epoch(epoch))
    named = [f"Phase {index + 1} of {len(plan.schedule.phases)}" for index in phases]
    assert [text.split(":")[0] for text in printed] == named
    said = "".join(capsys.readouterr().out.split())
    assert all("".join(text.split()) in said for text in printed)  # Rich breaks lines between words
    assert "Time per shape of mini-batch" in caplog.text
    assert "Phase 1 " not in caplog.text


@pytest.mark.cuda
def test_on_cuda_times_are_the_devices():
    host = fit(Module(schedulers), MultigridCallback(), accelerator="gpu", devices=1)
    times = host.callbacks[0].report.times
    assert sum(row.total.steps for row in times.rows) == host.global_step
    assert all(row.total.stepping > 0 for row in times.rows)
