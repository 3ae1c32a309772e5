"""Whether the callback pays: what runs are recorded, and what is said of them."""

import json
import math
import re
from itertools import chain

import numpy as np
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_multigrid import MultigridCallback
from lightning_multigrid.reports.account import REST, START
from lightning_multigrid.reports.comparison import (
    BASELINE,
    MULTIGRID,
    SHORTENED,
    VARIANTS,
    Comparison,
    Recorder,
    RunRecord,
    shorter,
)
from tests.helpers.tiny import Module, fit, loader


def record(variant, seed, seconds, end, metric="val/top1"):
    account = {START: 1.0, REST: seconds - 1}
    validations = [(seconds / 2, 0.5, {metric: end / 2}), (seconds, 1.0, {metric: end})]
    cpu = 1.8 * seconds if variant == MULTIGRID else 2 * seconds
    return RunRecord(variant, seed, account, validations, 2, 10, cpu=cpu)


def comparison(folder, metric="val/top1", **runs):
    """Runs by variant, as (seconds, end) of each seed."""
    names = dict(zip(("multigrid", "baseline", "shortened"), VARIANTS, strict=True))
    for name, variant in names.items():
        for seed, (seconds, end) in enumerate(runs.get(name, [])):
            record(variant, seed, seconds, end, metric).write(folder / f"{name}-{seed}.json")
    return Comparison(folder)


GOOD = [(50, 0.9), (50, 0.91), (50, 0.92)]
SAME = [(100, 0.91), (100, 0.92), (100, 0.9)]
BETTER = [(100, 0.97), (100, 0.98), (100, 0.97)]
WORSE = [(50, 0.6), (50, 0.7), (50, 0.65)]

LENGTHS = {0.5: WORSE, 0.67: [(30, 0.9), (30, 0.91)], 0.75: [(40, 0.9), (40, 0.92)]}


@pytest.mark.parametrize(
    ("lengths", "baseline", "said"),
    [
        ([0.75, 0.67, 0.5], SAME, "shortest that is as good as the baseline has 2 epochs, takes 30% of its"),
        ([0.75, 0.5], SAME, "has 2 epochs, takes 40% of its time, and ends at 0.91"),
        ([0.5], SAME, "takes 50% of its time"),  # the whole training
        ([0.75], BETTER, "No training with the callback is as good as the baseline."),
        ([], SAME, None),
    ],
)
def test_the_time_of_the_baselines_end_is_that_of_the_shortest_training_as_good(tmp_path, lengths, baseline, said):
    for share in lengths:
        for seed, (seconds, end) in enumerate(LENGTHS[share]):
            record(shorter(share), seed, seconds, end).write(tmp_path / f"{shorter(share)}-{seed}.json")
    found = comparison(tmp_path, multigrid=GOOD, baseline=baseline)
    assert [len(found.runs[shorter(share)]) for share in lengths] == [len(LENGTHS[share]) for share in lengths]
    assert len(found.runs[MULTIGRID]) == 3
    assert said in found.verdict() if said else "as good as the baseline" not in found.verdict()


AS_LONG, UNKNOWN = "a baseline of as much time reaches", "is a difference of unknown error"


@pytest.mark.parametrize(
    ("multigrid", "baseline", "shortened", "said"),
    [
        (GOOD, [], [], "There is nothing to compare yet"),
        (
            *(GOOD, SAME, []),
            r"^Yes: 2\.00x faster by the wall clock; val/top1 \(higher is better\) 0\.91 \+- 0\.0058 against 0\.91 \+- "
            r"0\.0058 is no difference beyond chance \(two standard errors are 0\.016\)\.$",
        ),
        (GOOD, SAME, WORSE, rf"^Yes: .*; {AS_LONG} 0\.65 .*, against which it is better\."),
        (GOOD, BETTER, WORSE, r"^It depends: 2\.00x .* is worse; .* reaches 0\.65 "),
        (GOOD, BETTER, GOOD, rf"^Can't tell: .* {AS_LONG} 0\.91 .*, against which it is no difference beyond"),
        (WORSE, BETTER, GOOD, rf"^Don't: .* {AS_LONG} 0\.91 .*, against which it is worse\."),
        (SAME, GOOD, [], r"^Don't: .* it takes 200% of the baseline's time\."),
        (GOOD[:1], SAME[:1], [], rf"^Can't tell: .* 0\.9 against 0\.91 {UNKNOWN}\. One seed says"),
    ],
)
def test_the_verdict_says_what_the_numbers_say(multigrid, baseline, shortened, said, tmp_path):
    found = comparison(tmp_path, multigrid=multigrid, baseline=baseline, shortened=shortened)
    assert re.search(said, found.verdict())


LOW = [(50, 0.2), (50, 0.21), (50, 0.22)]  # 12 clips show a difference as large


@pytest.mark.parametrize(
    ("clips", "multigrid", "shortened", "said"),
    [
        (12, GOOD, [], r"^Can't tell: .* is no difference beyond .* 12 validation clips can't tell an accuracy:"),
        (99, GOOD, [], r"^Can't tell: .* 99 validation clips can't tell an accuracy: give at least 100\."),
        (100, GOOD, [], r"^Yes: 2\.00x faster(?!.*validation clips)"),
        (12, LOW, GOOD, r"^Don't: "),
    ],
)
def test_few_validation_clips_tell_no_small_difference(clips, multigrid, shortened, said, tmp_path):
    comparison(tmp_path, baseline=SAME, multigrid=multigrid, shortened=shortened)
    for file in tmp_path.glob("*.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"clips": clips}))
    assert re.search(said, Comparison(tmp_path).verdict())


def test_a_command_that_mostly_starts_decides_nothing(tmp_path):
    found = comparison(tmp_path, multigrid=[(3, 0.9)], baseline=[(5, 0.9)])
    for run in chain(*found.runs.values()):
        run.command = 10 if run.variant == MULTIGRID else 9
    said = r"^Can't tell: with the callback it takes 111% of .* 80% of that passes before .* takes 50% of .* Train"
    assert re.search(said, found.verdict())


def test_trainings_of_seconds_decide_nothing(tmp_path):
    found = comparison(tmp_path, multigrid=[(60, 0.9)], baseline=[(30, 0.9)])
    said = r"^Can't tell: with the callback it takes 200% of .* but the baseline's steps take 29\.0 s, .* Train longer"
    assert re.search(said, found.verdict())
    found.runs[BASELINE][0].command, found.runs[BASELINE][0].account = 32, {START: 1.0, REST: 31.0}
    assert found.verdict().startswith("Don't: with the callback it takes 188% of the baseline's time. One seed")


def with_clips(found, clips):
    for run in chain(*found.runs.values()):
        run.clips = clips
    return found


@pytest.mark.parametrize(
    ("metric", "share"),
    [("val/top1", True), ("val_acc", True), ("accuracy", True), ("val/loss", False), ("stop", False)],
)
def test_a_share_of_few_clips_has_an_error_of_its_own(metric, share, tmp_path):
    """What a binomial draw of as many clips has: 0.91 of 100 are 9.1 wrong ones, give or take 2.86."""
    runs = {"multigrid": [(50, 0.91)], "baseline": [(100, 0.95)]}
    found = with_clips(comparison(tmp_path, metric, **runs), 100)
    draws = np.random.default_rng(0).binomial(100, 0.91, 100_000) / 100
    if not share:
        assert math.isnan(found.error(MULTIGRID))
        return
    assert found.error(MULTIGRID) == pytest.approx(draws.std(), rel=0.01)
    assert found.verdict().startswith("Yes: ")
    assert "0.91 +- 0.029 against 0.95 +- 0.022 is no difference beyond chance" in found.verdict()
    assert "0.91 +- 0.0029 against 0.95 +- 0.0022 is worse" in with_clips(found, 10_000).verdict()


def test_the_errors_of_seeds_and_of_clips_add_up_as_variances(tmp_path):
    found = with_clips(comparison(tmp_path, multigrid=[(50, 0.4), (50, 0.6)]), 100)
    assert found.error(MULTIGRID) == pytest.approx(math.sqrt(0.1**2 + 0.05**2))  # of the seeds: 0.1414 / sqrt(2)


def test_a_curve_is_the_mean_of_the_validations_that_all_runs_have(tmp_path):
    found = comparison(tmp_path, multigrid=[(50, 0.4), (70, 0.6)])
    assert [(seconds, value) for seconds, value, _ in found.curve(MULTIGRID)] == [(30, 0.25), (60, 0.5)]
    found.runs[MULTIGRID][0].validations.pop()
    assert len(found.curve(MULTIGRID)) == 1


def test_of_a_loss_less_is_better(tmp_path):
    found = comparison(tmp_path, "val/loss", multigrid=[(50, 2.0), (50, 2.1)], baseline=[(100, 1.0), (100, 1.1)])
    assert (found.metric, found.mode) == ("val/loss", "min")
    assert found.verdict().startswith("It depends")
    assert Comparison(tmp_path, mode="max").verdict().startswith("Yes")


LESS = ["val_wer", "val/perplexity", "val_MeanSquaredError", "val_RMSE", "valerr", "val_lossavg", "cross_entropy"]
MORE = ["val/inferred_acc", "val_mIoU", "val/answer", "VideoMAE_acc", "val/mae_top1", "val_mAP", "lossless"]


@pytest.mark.parametrize("metric", LESS + MORE)
def test_what_is_better_is_read_off_the_words_of_a_metric_and_said(metric, tmp_path):
    found = comparison(tmp_path, metric, multigrid=[(50, 0.1), (50, 0.11)], baseline=[(100, 0.3), (100, 0.31)])
    better, judged = ("lower", "better") if metric in LESS else ("higher", "worse")
    said = f"{metric} ({better} is better) 0.105 +- 0.005 against 0.305 +- 0.005 is {judged}"
    assert said in found.verdict()


def test_the_table_has_means_and_standard_errors_and_fits_a_terminal(tmp_path):
    table = comparison(tmp_path, multigrid=GOOD, baseline=SAME, shortened=WORSE).table()
    lines = table.splitlines()
    assert max(map(len, lines)) <= 80
    assert " ".join(lines[1].split()) == "multigrid 2 10 0.91 +- 0.0058 50 +- 0 90 +- 0 2.00x"
    assert lines[2].endswith("1.00x")
    assert lines[-1] == "+- is the standard error of the mean."


def test_by_cpu_time_the_wall_clock_of_a_shared_machine_decides_nothing(tmp_path):
    """Multigrid waited for others: it took as long as its baseline, and half of its CPU time."""
    for variant, cpu in ((MULTIGRID, 50.0), (BASELINE, 100.0)):
        run = record(variant, 0, 100, 0.9)
        run.cpu = cpu
        run.write(tmp_path / f"{variant}.json")
    assert Comparison(tmp_path).verdict().startswith("Don't: with the callback it takes 100% of")
    found = Comparison(tmp_path, clock="cpu")
    said = "Can't tell: 2.00x faster by CPU time; val/top1 (higher is better) 0.9 against 0.9"
    assert found.verdict().startswith(said)
    assert found.seconds(MULTIGRID) == 50


def test_runs_without_cpu_time_are_not_compared_by_it(tmp_path):
    run = record(MULTIGRID, 0, 50, 0.5)
    run.cpu = 0.0
    run.write(tmp_path / "multigrid.json")
    with pytest.raises(ValueError, match="have no CPU time. Compare them by the `wall` clock"):
        Comparison(tmp_path, clock="cpu")


def test_a_run_that_diverges_is_counted_and_not_averaged(tmp_path):
    found = comparison(tmp_path, multigrid=[*GOOD[:2], (50, math.nan)], baseline=SAME)
    assert "1 of 3 diverged" in found.table()
    assert found.verdict() == "2.00x faster by the wall clock; the ends can't be compared: see the table."


def test_metrics_of_the_validation_come_before_those_of_the_training(tmp_path):
    one = record(MULTIGRID, 0, 50, 0.5)
    one.validations[-1][2].clear()
    one.validations[-1][2].update({"multigrid/lr": 1.0, "train_loss": 0.1, "val_loss": 0.2})
    one.write(tmp_path / "multigrid-0.json")
    found = Comparison(tmp_path)
    assert (found.metric, found.mode) == ("val_loss", "min")


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_a_run_that_continues_is_not_recorded(tmp_path):
    saver = ModelCheckpoint(tmp_path, filename="half")
    fit(Module(), saver, max_epochs=2, enable_checkpointing=True)
    recorder = Recorder(str(tmp_path / "runs" / "baseline-0.json"), BASELINE)
    others = ModelCheckpoint(tmp_path / "others")
    with pytest.raises(MisconfigurationException, match="has only a part of its time"):
        fit(Module(), recorder, others, enable_checkpointing=True, ckpt_path=tmp_path / "half.ckpt")


def test_a_recorder_begins_anew_with_each_fit_and_ignores_other_stages(tmp_path):
    recorder = Recorder(str(tmp_path / "baseline-0.json"), BASELINE)
    host = fit(Module(), recorder, val=(val := loader(shuffle=False, number=8)))
    host.validate(Module(), val, verbose=False)
    assert len(recorder.record.validations) == 4
    fit(Module(), recorder, val=val)
    written = RunRecord.read(tmp_path / "baseline-0.json")
    assert (len(written.validations), written.clips) == (4, 8)
    assert written.machine.endswith(f", torch {torch.__version__}")


@pytest.mark.parametrize("settings", [{"max_epochs": 2}, {"max_epochs": -1, "max_steps": 50}])
def test_a_recorder_validates_at_shares_of_the_training(settings, tmp_path):
    recorder = Recorder(str(tmp_path / "baseline-0.json"), BASELINE, validate_at=[0.1, 0.5, 0.95, 1.0])
    trainer = {"check_val_every_n_epoch": None, "val_check_interval": 1, **settings}
    fit(Module(), recorder, val=loader(shuffle=False, number=8), **trainer)
    assert [share for _, share, _ in recorder.record.validations] == [0.1, 0.5, 0.96, 1.0]  # of 50 steps


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"metric": "top5"}, r"logs no metric 'top5'\. It logs val/top1\."),
        ({"mode": "maximum"}, "`mode` must be max or min, and `clock` wall or cpu, got 'maximum' and 'wall'"),
    ],
)
def test_what_the_runs_do_not_have_is_refused(arguments, message, tmp_path):
    comparison(tmp_path, multigrid=GOOD)
    with pytest.raises(ValueError, match=message):
        Comparison(tmp_path, **arguments)


def test_a_broken_file_is_named(tmp_path):
    (tmp_path / "multigrid-0.json").write_text('{"variant": ')
    with pytest.raises(ValueError, match=r"multigrid-0\.json holds no run of a comparison.*Remove it"):
        Comparison(tmp_path)


def test_a_variant_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="one of multigrid, baseline, shortened or multigrid_0.75, got 'fast'"):
        Recorder("x.json", "fast")


def test_runs_of_a_script_are_recorded_and_compared(tmp_path):
    """From Python: a recorder among the callbacks of a script."""
    for variant, own in ((MULTIGRID, [MultigridCallback()]), (BASELINE, [])):
        recorder = Recorder(str(tmp_path / f"{variant}.json"), variant, seed=3)
        saver = ModelCheckpoint(tmp_path / variant)
        fit(Module(), *own, saver, recorder, val=loader(shuffle=False, number=8), enable_checkpointing=True)
        found = json.loads((tmp_path / f"{variant}.json").read_text())
        assert (found["variant"], found["seed"]) == (variant, 3)
        assert len(found["validations"]) == 4
        assert found["account"].keys() == {START, REST}
        assert found["cpu"] > 0
        assert [share for _, share, _ in found["validations"]][-1] == 1
        times = [seconds for seconds, *_ in found["validations"]]
        assert times == sorted(times)
        assert times[-1] <= sum(found["account"].values())
    found = Comparison(tmp_path, "val")
    assert (found.runs[BASELINE][0].epochs, found.runs[BASELINE][0].steps) == (4, 100)
    assert found.runs[MULTIGRID][0].steps < 50
    assert not found.runs[SHORTENED]
    assert torch.isfinite(torch.tensor(found.ends(MULTIGRID))).all()
