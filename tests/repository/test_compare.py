"""The comparison of training methods, on a task of seconds."""

import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

import pytest

from lightning_multigrid.schedule import Plan
from lightning_multigrid.schedule.cycles import Baseline
from lightning_multigrid.schedule.grid import BatchShape
from lightning_multigrid.schedule.schedule import MultigridSchedule

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NAMES = ["baseline", "multigrid_1.5x", "short_1.5x"]


@pytest.fixture(scope="module")
def compare():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        return runpy.run_path(str(BENCHMARKS / "compare.py"))


@pytest.fixture(scope="module")
def call(compare, tmp_path_factory):
    """Runs the script with arguments, on videos of its own."""

    def call(*arguments):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["compare.py", *arguments])
            patch.setenv("LIGHTNING_MULTIGRID_CACHE", str(cache))
            compare["main"]()

    cache = tmp_path_factory.mktemp("cache")
    return call


@pytest.fixture(scope="module")
def folder(call, tmp_path_factory):
    """The folder of a tiny comparison over two seeds."""
    folder = tmp_path_factory.mktemp("results") / "tiny"
    call("--tiny", "--folder", str(folder), "--seeds", "0", "1", "--variants", *NAMES)
    return folder


def records(folder, name):
    return [json.loads(file.read_text()) for file in sorted(folder.glob(f"{name}-seed*.json"))]


@pytest.mark.slow  # six trainings; one is in `TestOpponents`
class TestRuns:
    def test_each_run_leaves_a_file(self, folder):
        expected = {f"{name}-seed{seed}.json" for name in NAMES for seed in (0, 1)}
        assert {file.name for file in folder.iterdir()} == expected

    def test_files_say_what_was_run_and_on_what(self, folder):
        for seed, record in enumerate(records(folder, "multigrid_1.5x")):
            assert (record["variant"], record["seed"]) == ("multigrid_1.5x", seed)
            assert record["machine"].keys() >= {"device", "processors", "python", "torch", "lightning", "av"}
            assert record["task"]["epochs"] == 4
            assert 0 <= record["top1"] <= 1
            assert 0 < record["train_seconds"] < record["wall_seconds"] + 1

    def test_steps(self, folder):
        """64 videos in mini-batches of 2; multigrid by its schedule; the short baseline has as many as multigrid."""
        schedule = MultigridSchedule(Baseline(BatchShape(2, 8, 32), epochs=4, milestones=(2, 3)))
        steps = sum(len(Plan(schedule, 64).epoch(epoch)) for epoch in range(6))
        assert [record["steps"] for record in records(folder, "baseline")] == [4 * 32] * 2
        assert [record["steps"] for record in records(folder, "multigrid_1.5x")] == [steps] * 2
        assert [record["steps"] for record in records(folder, "short_1.5x")] == [steps] * 2
        assert steps < 4 * 32 / 2
        assert [record["epochs"] for record in records(folder, "multigrid_1.5x")] == [6, 6]

    def test_a_run_that_is_there_is_not_repeated(self, call, folder, tmp_path, capsys):
        kept = {file.name: file.read_bytes() for file in folder.iterdir()}
        missing = folder / "short_1.5x-seed1.json"
        missing.unlink()
        call("--tiny", "--folder", str(folder), "--seeds", "0", "1", "--variants", *NAMES)
        assert missing.exists()
        assert {n: c for n, c in kept.items() if n != missing.name}.items() <= {
            file.name: file.read_bytes() for file in folder.iterdir()
        }.items()
        assert capsys.readouterr().out.count(" is there.") == 5

    def test_the_same_seed_gives_the_same_model(self, call, folder, tmp_path):
        call("--tiny", "--folder", str(tmp_path / "again"), "--seeds", "1", "--variants", "multigrid_1.5x")
        (again,) = records(tmp_path / "again", "multigrid_1.5x")
        assert (again["loss"], again["top1"]) == tuple(
            records(folder, "multigrid_1.5x")[1][key] for key in ("loss", "top1")
        )

    @pytest.mark.parametrize("arguments", [["--tiny"], ["--width", "32"], ["--easy"]])
    def test_other_runs_are_not_taken_for_results(self, arguments, call, capsys):
        with pytest.raises(SystemExit):
            call(*arguments)
        assert "`--tiny`, `--easy`, `--width` and `--epochs` need a `--folder` of their own" in capsys.readouterr().err


@pytest.mark.slow
class TestTransformer:
    def test_it_trains_as_it_is_planned_and_the_speed_up_is_predicted(self, compare, call, tmp_path, capsys):
        call("--tiny", "--model=transformer", "--folder", str(tmp_path / "t"), "--seeds=0", "--variants=multigrid_1.5x")
        (record,) = records(tmp_path / "t", "multigrid_1.5x")
        task = replace(compare["TRANSFORMER"], train_per_class=4, val_per_class=1, epochs=4)
        assert record["steps"] == task.multigrid_steps()
        assert record["task"]["multigrid"]["size_divisor"] == 6
        assert "square root" in capsys.readouterr().out
        schedule = task.schedule()
        assert schedule.grids[0].frames == 8
        predicted = compare["predicted_speedup"](task, compare["TRANSFORMERS"]["multigrid_1.5x"])
        # Attention among all tokens makes fewer tokens cheaper than Eq. 1 says.
        assert schedule.flop_reduction < predicted < 1.5 * schedule.flop_reduction


class TestReport:
    @pytest.mark.slow
    def test_the_table_is_of_the_files(self, call, folder, capsys):
        call("--tiny", "--report", "--folder", str(folder))
        printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
        rows = {
            cells[0]: cells for cells in ([cell.strip() for cell in line.strip("|").split("|")] for line in printed)
        }
        baseline, multigrid = records(folder, "baseline"), records(folder, "multigrid_1.5x")
        top1 = [100 * record["top1"] for record in multigrid]
        ratio = mean(b["train_seconds"] / m["train_seconds"] for b, m in zip(baseline, multigrid, strict=True))
        cells = rows["Multigrid 1.5x (default)"]
        assert cells[1] == str(multigrid[0]["steps"])
        assert cells[2] == "2"
        assert cells[3] == f"{mean(top1):.1f} ± {stdev(top1):.1f}"
        assert cells[5] == f"{ratio:.1f}x"
        assert rows["Baseline"][5] == "1.0x"
        assert len(rows) == 2 + 3

    @pytest.mark.parametrize(("waited", "faster"), [(1.0, "3.0x"), (1.2, "")])
    def test_the_wall_clock_is_compared_only_where_nothing_else_ran(self, compare, waited, faster):
        def run(seconds, waited):
            times = {"train_seconds": seconds, "wall_seconds": waited * seconds, "decode_seconds": 1.0}
            return {"seed": 0, "steps": 7, "top1": 0.5, "task": {}, **times}

        runs = {"baseline": [run(30.0, waited)], "multigrid_1.5x": [run(10.0, 1.0)]}
        row = compare["table"](runs, compare["COMPARISON"]).splitlines()[-1]
        assert [cell.strip() for cell in row.split("|")][6:9] == ["3.0x", "10", faster]

    @pytest.mark.slow
    def test_the_figure_is_drawn(self, call, folder, capsys):
        pytest.importorskip("matplotlib")
        call("--tiny", "--report", "--folder", str(folder))
        figure = folder.parent / "tiny.png"
        assert str(figure) in capsys.readouterr().out
        assert figure.read_bytes().startswith(b"\x89PNG")
        assert figure.stat().st_size < 150_000


class TestOpponents:
    def test_a_baseline_of_equal_time_has_so_many_more_steps_and_its_lr(self, call, compare, tmp_path):
        call("--tiny", "--folder", str(tmp_path), "--seeds", "0", "--variants", "short_1.5x_time_lr2")
        (run,) = records(tmp_path, "short_1.5x_time_lr2")
        assert run["steps"] == round(compare["TINY"].equal_time * compare["TINY"].multigrid_steps())
        assert compare["opponents"](compare["TINY"])["short_1.5x_time_lr2"].lr_factor == 2

    def test_the_factor_of_time_is_that_of_the_committed_runs(self, compare):
        baseline, multigrid = (
            mean(
                (run["train_seconds"] + run["decode_seconds"]) / run["steps"]
                for run in records(BENCHMARKS / "results" / "lips", name)
            )
            for name in ("baseline", "multigrid_1.5x")
        )
        # It was set by the first seeds.
        assert compare["AVLETTERS"].equal_time == pytest.approx(multigrid / baseline, abs=0.1)


def test_a_task_of_another_length_has_its_stages_at_the_same_shares(compare):
    task = compare["Task"]()
    assert task.of_length(task.epochs) == task
    half = task.of_length(20)
    assert (half.epochs, half.milestones, half.warmup_epochs) == (20, (10, 15), 0.5)
    ratios = [of.steps * of.epochs / of.multigrid_steps() for of in (task, half)]
    assert ratios[0] == pytest.approx(ratios[1], rel=0.01)


@pytest.mark.parametrize("also", [["--tiny"], ["--fine-tuning"], ["--model", "transformer"]])
def test_the_lips_are_a_task_of_their_own(also, call, capsys):
    with pytest.raises(SystemExit):
        call("--avletters", "folder", *also)
    assert "`--avletters` is the CNN's" in capsys.readouterr().err


class TestAblations:
    """Of the task itself, by their plans."""

    def test_each_has_about_the_steps_of_the_default(self, compare):
        task = compare["Task"]()
        default = task.multigrid_steps()
        for name, variant in compare["ablations"](task).items():
            assert task.multigrid_steps(**variant.multigrid) == pytest.approx(default, rel=0.03), name

    def test_without_fine_tuning_the_long_cycle_goes_to_the_end(self, compare):
        task = compare["Task"]()
        arguments = compare["ablations"](task)["no_fine_tuning"].multigrid
        schedule = task.schedule(**arguments)
        steps = Plan(schedule, 16 * task.train_per_class).phase_steps
        assert [phase.shape for phase in schedule.phases[8:12]] == [phase.shape for phase in schedule.phases[:4]]
        assert len(steps) == 3 * 4
        assert max(steps[8:12]) < 1.1 * min(steps[8:12])

    def test_long_and_short_cycles_of_fewer_shapes_are_the_last_ones(self, compare):
        task = compare["Task"]()
        variants = compare["ablations"](task)

        def grids(name):
            return [(shape.frames, shape.size) for shape in task.schedule(**variants[name].multigrid).grids]

        assert grids("long_1") == [(16, 20), (16, 28), (16, 40)]
        assert grids("long_2") == [(8, 20), (8, 28), (8, 40), (16, 20), (16, 28), (16, 40)]
        assert grids("short_cycle_1") == [(4, 28), (8, 28), (8, 40), (16, 40)]
        assert grids("short_cycle_2") == [(4, 28), (8, 28), (8, 40), (16, 28), (16, 40)]


@pytest.mark.slow
def test_fine_tunings_start_from_one_training(call, tmp_path, capsys):
    for seed in ("0", "1"):
        call("--fine-tuning", "--tiny", "--folder", str(tmp_path), "--seeds", seed, "--variants", "multigrid_1.5x")
    assert capsys.readouterr().out.count("Training on easy shapes") == 1
    [first, second] = records(tmp_path, "multigrid_1.5x")
    assert first["task"] == second["task"]
    assert first["task"]["fine_tunes"]


def test_the_table_of_the_committed_results_is_that_of_the_json(compare):
    rows = compare["table"](
        compare["load"](BENCHMARKS / "results" / "fine_tuning"), compare["FINE_TUNINGS"]
    ).splitlines()
    assert len(rows) > 3
    text = (BENCHMARKS / "results" / "README.md").read_text()
    assert [row for row in rows if row not in text] == []
