"""The benchmarks run, compare like with like, and write what they print. Their times are not tested."""

import json
import math
import os
import re
import runpy
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import av
import pytest
import torch
from torch.testing import assert_close
from torch.utils.data import IterableDataset

from lightning_multigrid import BatchShape, MultigridSchedule, Plan
from tests.helpers.recipe_sources import settings
from tests.helpers.videos import numbered_frames, write_video

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RESULTS = BENCHMARKS / "results"


pytestmark = pytest.mark.smallest  # as for whoever runs the scripts


@pytest.fixture
def script(monkeypatch):
    """Loads a script of `benchmarks` as `python` would run it."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    threads = torch.get_num_threads()
    yield lambda name: runpy.run_path(str(BENCHMARKS / f"{name}.py"))
    torch.set_num_threads(threads)


def test_norm_prints_a_table_and_writes_json(script, tmp_path, capsys):
    file = tmp_path / "norm.json"
    shapes = ["16x2x2x3x3", "17x2x2x3x3"]
    script("benchmark_norm")["main"](["--seconds", "0", "--sub-batch", "4", "--shapes", *shapes, "--json", str(file)])
    lines = capsys.readouterr().out.splitlines()
    assert f"torch {torch.__version__}" in lines[0]
    report = json.loads(file.read_text())
    rows = report["rows"]
    assert report["machine"]["torch"] == torch.__version__
    assert len(lines) - 2 == len(rows) == 2 * 4
    for row in rows:
        assert set(row["ms"]) == {"plain", "ours", *(["split"] if row["shape"][0] == 16 else [])}
        assert row["ratio"]["ours"] == row["ms"]["ours"] / row["ms"]["plain"]


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last_3d])
def test_norm_compares_like_with_like(script, memory_format):
    x = torch.randn(12, 3, 2, 3, 2).contiguous(memory_format=memory_format)
    benchmark = script("benchmark_norm")
    ours, expected = benchmark["Ours"](3, sub_batch=4)(x), benchmark["SplitThenAffine"](3, groups=3)(x)
    assert_close(ours, expected)


def test_operations_are_counted(script, tmp_path, capsys):
    file = tmp_path / "operations.json"
    arguments = ["--model", "small_cnn", "--shape", "32", "4", "32"]
    script("count_operations")["main"]([*arguments, "--json", str(file)])
    report, printed = json.loads(file.read_text()), capsys.readouterr().out
    assert [row["memory_format"] for row in report["rows"]] == ["contiguous", "channels_last_3d"]
    for row in report["rows"]:
        assert f"{row['ratio']['bytes']:.3f}" in printed
    # Statistics of groups need no copy in contiguous memory, and in the other two where nothing is compiled.
    contiguous, copying = (row["ratio"]["bytes"] for row in report["rows"])
    assert 1 <= contiguous < 1.01
    assert copying > 1.2


def test_lists_are_read_in_little_memory(script, tmp_path, capsys):
    file = tmp_path / "lists.json"
    script("benchmark_lists")["main"](["--rows", "20000", "--json", str(file)])
    assert json.loads(file.read_text())["mebibytes"] < 50
    assert capsys.readouterr().out.startswith("20,000 rows (0.7 MB): ")


def test_speedup(script, tmp_path, capsys):
    file = tmp_path / "speedup.json"
    arguments = ["--device", "cpu", "--clips", "2", "--size", "32", "--frames", "8", "--rounds", "2", "--warm-up", "1"]
    script("benchmark_speedup")["main"]([*arguments, "--precision", "bf16", "--channels-last", "--json", str(file)])
    printed = capsys.readouterr().out
    report = json.loads(file.read_text())
    assert report["options"]["clips"] == 2
    result = report["settings"]["small"]
    baseline, *multigrid = result["grids"]
    assert (baseline["shape"], baseline["sub_batch"], baseline["steps"]) == ("2 x 8 x 32", 0, 28 * 1536 / 2)
    # The totals are sums over the grids.
    hours = sum(grid["steps"] * grid["ms"] for grid in multigrid) / 3.6e6
    assert result["multigrid_hours"] == pytest.approx(hours)
    assert result["speedup"] == pytest.approx(baseline["steps"] * baseline["ms"] / 3.6e6 / hours)
    assert f"{result['speedup']:.2f}x faster" in printed
    # 1.5 passes for each epoch, up to the rounding of its steps, of which there are about 411.
    clips = sum(grid["steps"] * int(grid["shape"].split()[0]) for grid in multigrid)
    assert clips == pytest.approx(1.5 * 28 * 1536, rel=0.005)
    assert result["clips_per_second_mean"] == pytest.approx(clips / hours / 3600)
    assert 2.5 < result["flops_bound"] < result["fewer_steps"] * 1.1
    tables = runpy.run_path(str(RESULTS / "tables.py"))
    made = tables["with_tables"](f"before\n{tables['START']}\nold\n{tables['END']}\nafter\n", tmp_path)
    assert made.startswith("before\n")
    assert made.endswith("after\n")
    assert "old" not in made
    assert f"{result['speedup']:.2f}x" in made


def test_speedup_saves_at_each_turn(script, tmp_path, monkeypatch):
    """A run that is cut off has lost nothing: each grid's warm-up and each round are in a file that was written."""
    benchmark, saved = script("benchmark_speedup"), []
    monkeypatch.setitem(benchmark["main"].__globals__, "write_json", lambda *args: saved.append(json.dumps(args[2])))
    arguments = ["--clips", "2", "--size", "16", "--frames", "4", "--rounds", "2", "--warm-up", "1"]
    benchmark["main"](["--device", "cpu", *arguments, "--fused"])
    files = [json.loads(text)["settings"]["small"] for text in saved]
    grids = len(files[-1]["grids"])
    assert [len(file["grids"]) for file in files] == [*range(1, grids + 1), grids, grids]
    assert [len(file["grids"][0].get("ms_of_rounds", [])) for file in files] == [0] * grids + [1, 2]
    assert ["speedup" in file for file in files] == [False] * grids + [True, True]
    baseline = files[-1]["grids"][0]
    assert (baseline["shape"], baseline["relative_flops"]) == ("2 x 4 x 16", 1)


@pytest.mark.parametrize("option", ["--profile", "--cuda-graphs"])
def test_a_profile_and_graphs_need_a_gpu(option, script, capsys):
    with pytest.raises(SystemExit, match="2"):
        script("benchmark_speedup")["main"](["--device", "cpu", option])
    assert "--profile and --cuda-graphs need a GPU" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["slowfast", "i3d", "i3d_nl"])
def test_speedup_is_of_the_recipes(script, name):
    """The baselines are those of the recipes of the same names."""
    setting, recipe = script("benchmark_speedup")["SETTINGS"][name], settings(f"{name}_baseline")
    shape = BatchShape(*(recipe[f"data.init_args.{key}"] for key in ("batch_size", "frames", "size")))
    assert (setting.baseline.shape, setting.baseline.epochs) == (shape, recipe["trainer.max_epochs"])
    assert list(setting.baseline.milestones) == recipe["model.init_args.milestones"]


def test_steps_of_the_plan(script):
    """All of them, and each on a grid of the schedule."""
    benchmark = script("benchmark_speedup")
    baseline = benchmark["SETTINGS"]["slowfast"].baseline
    schedule = MultigridSchedule(baseline)
    steps = benchmark["plan_steps"](schedule, 1875)
    fine = [(grid.shape, grid.sub_batch) for grid in steps if grid.shape.frames == 32]
    assert fine == [(BatchShape(clips, 32, size), 2 * clips) for clips, size in ((16, 112), (8, 158), (4, 224))]
    assert {(grid.shape, grid.sub_batch) for grid in steps} == set(schedule.grids_of_statistics)
    assert sum(steps.values()) == sum(Plan(schedule, 1875).phase_steps)


def test_overhead(script, tmp_path, capsys):
    file = tmp_path / "overhead.json"
    small = ["--clips", "2", "--frames", "4", "--size", "16", "--width", "2", "--videos", "32", "--epochs", "2"]
    arguments = ["--device", "cpu", *small, "--rounds", "1", "--json", str(file)]
    script("benchmark_overhead")["main"](arguments)
    report = json.loads(file.read_text())
    assert report["loops"]["steps"]["bare"] == report["loops"]["steps"]["callback"]
    assert report["loops"]["seconds"]["callback"] > 0
    assert f"{report['loops']['callback_ratio']:.4f}" in capsys.readouterr().out


def test_tables_are_those_of_the_json(script):
    tables = runpy.run_path(str(RESULTS / "tables.py"))
    text = (RESULTS / "README.md").read_text()
    assert tables["with_tables"](text, RESULTS) == text, "run `python benchmarks/results/tables.py`"
    assert "| " in text


HALF_HOUR = BENCHMARKS / "gpu_half_hour.sh"


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script")
@pytest.mark.parametrize("tiny", ["0", "1"])
def test_the_half_hour_calls_each_script_with_its_options_and_goes_on_after_a_stop(tiny, script, tmp_path, capsys):
    python, results = tmp_path / "python", tmp_path / "results"
    python.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\ncase "$1" in *norm*) exit 1;; esac\n')
    python.chmod(0o755)
    said = []
    for budget in ("100", "540", "540"):
        env = {**os.environ, "PYTHON": str(python), "TINY": tiny, "GRID": "videos", "BUDGET": budget}
        done = subprocess.run([HALF_HOUR, results], env=env, capture_output=True, text=True, check=True)
        said.append(done.stdout)
    assert "cuda_tests: waits for the next call" in said[0]
    assert said[0].endswith("Call it again for the rest.\n")
    assert said[1].endswith("All is done.\n")
    assert "norm_gpu FAILED" in said[2]
    assert "cuda_tests: done before" in said[2]
    calls = [line.split() for line in (tmp_path / "calls").read_text().splitlines()]
    shown = [call for call in calls if "tables.py" in call[0]]
    assert shown == 3 * [["benchmarks/results/tables.py", str(results)]]
    parts = [call[call.index("--json") + 1] for call in calls if "--json" in call]
    assert parts.count(str(results / "norm_gpu.json")) == 3  # it failed
    assert len(parts) == len({*parts}) + 2
    trained = [call for call in calls if call[:3] == ["-m", "lightning_multigrid", "fit"]]
    assert len(trained) == 4  # two variants, two seeds
    configs = {word for call in trained for word in call if word.startswith("benchmarks/")}
    assert len(configs) == 2
    assert [config for config in sorted(configs) if not (BENCHMARKS.parent / config).is_file()] == []
    for path, *options in (call for call in calls if "--json" in call):
        with pytest.raises(SystemExit, match="0"):
            script(Path(path).stem)["main"](["--help"])
        told = capsys.readouterr().out
        assert [option for option in options if option.startswith("--") and option not in told] == [], path


def test_a_fit_of_prepared_videos_says_what_limits_each_grid(script, tmp_path, capsys):
    file = tmp_path / "fit.json"
    small = ["--clips", "2", "--frames", "4", "--size", "32", "--steps", "1", "--workers", "0", "--made", "1"]
    script("benchmark_fit")["main"](["--device", "cpu", *small, "--seconds", "1", "--json", str(file)])
    rows = json.loads(file.read_text())["rows"]
    assert rows[-1]["shape"] == "2 x 4 x 32"
    assert [row["steps"] > 0 and row["ms"] > 0 for row in rows] == [True] * len(rows)
    assert f"{rows[0]['ms']:.1f}" in shown(tmp_path)
    assert f"{rows[0]['ms_waiting']:.1f}" in capsys.readouterr().out


def shown(folder):
    """The tables of the JSON files of a folder."""
    tables = runpy.run_path(str(RESULTS / "tables.py"))
    return "".join(tables["made_of"](folder, tables["KINDS"]))


def test_codecs_are_measured_each_with_its_bytes(script, tmp_path, capfd):
    pytest.importorskip("torchcodec")
    file, few = tmp_path / "codecs.json", ["--seconds", "2", "--minutes", "0.05", "--clips", "1"]
    script("benchmark_codecs")["main"]([*few, "--json", str(file)])
    rows = json.loads(file.read_text())["rows"]
    assert len(rows) == 7
    for row in rows.values():
        assert row["ms"].keys() == {"ours", "PyAV, seeking", "torchcodec"}
        assert min(row["ms"].values()) > 0
        assert 0 < row["bytes"] <= row["bytes_per_minute"]
        assert 1 <= row["requests"] <= 3
    assert "CPU ms" in capfd.readouterr().out
    assert "| `codecs.json` | H.264, only keyframes | " in shown(tmp_path)


def test_planes_are_measured_beside_originals_and_copies(script, tmp_path, capsys):
    file = tmp_path / "planes.json"
    few = ["--made", "1", "--seconds", "1", "--sides", "32", "--frames", "4", "8", "--rounds", "1", "--clips", "2"]
    script("benchmark_planes")["main"]([*few, "--json", str(file)])
    rows = json.loads(file.read_text())["rows"]
    assert [(row["side"], row["frames"]) for row in rows] == [(32, 4), (32, 8)]
    assert all(row[name]["cpu_ms"] > 0 for row in rows for name in ("original", "copy", "planes"))
    assert "32 pixels, 8 frames: CPU ms (wall) original " in capsys.readouterr().out
    assert "| `planes.json` | 32 | 4 | " in shown(tmp_path)


@pytest.fixture
def decode(script, monkeypatch):
    for name in ("torchcodec", "torchcodec.decoders", "decord", "cv2"):
        monkeypatch.setitem(sys.modules, name, None)  # as if not installed
    return script("benchmark_decode")["main"]


def test_decoders_are_measured_on_ordinary_prepared_and_long_files(decode, tmp_path, capsys):
    few = ["--sizes", "64x48", "--seconds", "2.2", "--long", "0.1", "--rounds", "1", "--clips", "1"]
    decode([*few, "--json", str(tmp_path / "decode.json")])
    report = json.loads((tmp_path / "decode.json").read_text())
    assert list(report["files"]) == ["64x48 ordinary", "64x48 prepared", "64x48 ordinary, 0.1 minutes"]
    names = ["ours", "ours, YUV", "ours, without a table", "pyslowfast", "pyav"]
    for name, file in report["files"].items():
        is_long = "minutes" in name
        assert file["same"] == dict.fromkeys([*names[:2], "pyslowfast"] if is_long else names, True)
        assert file["table"]["ours"]["x ours"] == 1
        assert [len(file["ms"][grid]["pyslowfast"]) for grid in file["ms"]] == [1, 1, 1]
        assert file["costs of its table"]["CPU s to make it"] > 0
    assert report["machine"]["av"] == av.__version__
    printed = capsys.readouterr().out
    assert "not installed: torchcodec exact" in printed
    assert "clips/s/core" in printed


def test_a_folder_without_videos_is_named(decode, tmp_path, capsys):
    (tmp_path / "text.mp4").write_text("text")
    with pytest.raises(SystemExit):
        decode(["--videos", str(tmp_path)])
    assert "no H.264 file of 64 frames or more in mp4 there" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="counts by /proc")
def test_what_a_training_keeps_is_counted(script, tmp_path):
    benchmark, counts = script("benchmark_leaks"), []
    options = Namespace(warm_up=2, batches=4, every=2, minutes=0, workers=0)
    benchmark["measure"]("own dataset", options, str(tmp_path), SimpleNamespace(put=counts.extend))
    assert [number for number, _ in counts] == [0, 2, 4]
    assert all(held["bytes"] > 10**8 and held["files"] > 2 and held["threads"] > 0 for _, held in counts)
    made = [(step, {"bytes": 10**8 + 7 * step, "files": 9, "threads": step // 2, "shm": 0}) for step in (0, 2, 4)]
    grown = {"bytes": 7000, "files": 0, "threads": 500, "shm": 0}
    assert benchmark["row_of"](made) == pytest.approx({"mini_batches": 4, "resident": 10**8, **grown})


class Numbers(IterableDataset):
    def __len__(self):
        return 12

    def __iter__(self):
        return iter(range(12))


@pytest.mark.parametrize("dataset", [[{"x": torch.ones(2), "in": {"number": n}} for n in range(12)], Numbers()])
@pytest.mark.parametrize("workers", [0, 1])
def test_samples_come_as_from_torchs_loader(dataset, workers, script, tmp_path):
    both = script("torch_loader_tests")
    theirs, ours = (both[kind](dataset, batch_size=3, num_workers=workers) for kind in ("DataLoader", "Ours"))
    assert len(ours) == len(theirs)
    for _ in range(2):
        assert str([*ours]) == str([*theirs])
    with pytest.raises(SystemExit, match=r"test_dataloader.py isn't there. Give a folder with the sources of the inst"):
        both["main"]([str(tmp_path)])


def test_the_readme_names_every_script():
    named = re.findall(r"`(\w+\.(?:py|sh))`", (BENCHMARKS / "README.md").read_text())
    assert sorted(named) == sorted(path.name for suffix in ("py", "sh") for path in BENCHMARKS.glob(f"*.{suffix}"))


def test_the_glossary_has_the_words_of_its_picture(tmp_path):
    drawing = runpy.run_path(str(BENCHMARKS.parent / "docs" / "figures" / "glossary.py"))
    drawing["main"]([str(tmp_path / "words.png")])
    page = (BENCHMARKS.parent / "docs" / "glossary.md").read_text()
    words = re.findall(r"^\| \*\*(.+)\*\* \|", page, re.MULTILINE)
    assert len(words) == 9
    figure = drawing["figure"]()
    drawn = " ".join(text.get_text() for axes in figure.axes for text in axes.texts)
    assert [word for word in words if word not in drawn] == []


def test_settings_of_prepare_are_compared_at_equal_bytes(script, tmp_path, capsys):
    file, videos = tmp_path / "prepare.json", tmp_path / "videos"
    videos.mkdir()
    write_video(videos / "a.mp4", numbered_frames(20, 48, 64))
    (videos / "b.mp4").write_bytes(b"no video")
    benchmark = script("benchmark_prepare")
    benchmark["main"]([str(videos), "--short-sides", "32", "--json", str(file)])
    report = json.loads(file.read_text())
    assert "b.mp4: " in capsys.readouterr().out
    [found] = report["files"].values()
    assert {row["crf"] for rows in found["settings"].values() for row in rows} == {18, 21, 24}
    assert {*found["against"]["medium"].values()} == {0, 1}  # against itself
    assert "| medium, crf 18 |" in shown(tmp_path)
    # Twice the bytes for each 3 dB: with a quarter more bytes at each `crf`, it is log2(1.25) * 3 dB worse.
    rows = [{"crf": 21 + 6 * n, "bytes": 2.0**-n, "psnr": 40 - 3 * n, "encode_s": 1, "clip_ms": 1} for n in (-1, 0, 1)]
    more = [row | {"bytes": 1.25 * row["bytes"], "encode_s": 2} for row in rows]
    of = benchmark["compared"]({"medium": rows, "more": more})["more"]
    assert of == pytest.approx(
        {"psnr_at_equal_bytes": -3 * math.log2(1.25), "bytes_at_equal_psnr": 1.25, "encode": 2, "clip": 1}
    )
