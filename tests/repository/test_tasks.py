"""The tasks of `compare`: their configs, the script that trains them and shows them on the pages, and their videos.

Videos are made here: the dataset is not ours to hand on.
"""

import runpy
import shutil
import struct
import subprocess
from inspect import signature
from itertools import product
from pathlib import Path

import av
import numpy as np
import pytest
import torch
import yaml

import lightning_multigrid
from lightning_multigrid import MultigridCallback
from lightning_multigrid.cli import main
from lightning_multigrid.decode import VideoReader
from lightning_multigrid.models import small_cnn
from lightning_multigrid.reports import BASELINE, MULTIGRID, SHORTENED, RunRecord
from tests.helpers.versions import from_lightning_2_6

ROOT = Path(__file__).parents[2]
TASKS = ROOT / "benchmarks" / "tasks"


@pytest.fixture
def script():
    return runpy.run_path(str(TASKS / "grid_words.py"))


def test_words_are_cut_without_loss(script, tmp_path):
    source, target, random = tmp_path / "given", tmp_path / "made", np.random.default_rng(0)
    planes = [random.integers(0, 256, (96, 96), np.uint8) for _ in range(20)]
    script["write_video"](source / "videos" / "a.mp4", planes, 25)
    rows = ["video,word,start,end,part", "a.mp4,bin,0.08,0.40,train", "a.mp4,blue,0.48,0.80,val"]
    (source / "words.csv").write_text("\n".join(rows))
    script["main"]([str(source), str(target)])
    words = {"train/bin/a_0.mp4": (2, 10), "val/blue/a_1.mp4": (12, 20)}
    assert {str(path.relative_to(target)) for path in target.rglob("*.mp4")} == words.keys()
    for name, (start, end) in words.items():
        with av.open(str(target / name)) as container:
            found = [frame.to_ndarray(format="yuv420p") for frame in container.decode(video=0)]
        assert len(found) == end - start
        for frame, given in zip(found, planes[start:end], strict=True):
            assert (frame[:64] == given[:64, 12:84]).all()
            assert (frame.reshape(-1, 36)[128:] == given.reshape(-1, 48)[128:, 6:42]).all()
        with VideoReader(target / name) as reader:
            assert (len(reader), reader.height, reader.width) == (end - start, 64, 72)


def test_letters_are_read_from_matrices_without_loss(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(TASKS)  # as Python does for a script
    script, random = runpy.run_path(str(TASKS / "avletters.py")), np.random.default_rng(0)
    source, target = tmp_path / "given", tmp_path / "made"
    source.mkdir()
    with pytest.raises(SystemExit):
        script["main"]([str(source), str(target)])
    videos = {"train/A/A1_Anya.mp4": 12, "val/B/B3_Bill.mp4": 15}
    pixels = {name: random.integers(0, 256, (frames, 60, 80), np.uint8) for name, frames in videos.items()}
    for name, frames in videos.items():
        # MATLAB 4: type, rows, columns, whether imaginary, length of the name; then columns, each a frame by columns.
        head = struct.pack("<5i", 50, 60 * 80, frames, 0, 4) + b"vid\0"
        (source / f"{Path(name).stem}-lips.mat").write_bytes(head + pixels[name].transpose(0, 2, 1).tobytes())
    script["main"]([str(source), str(target)])
    assert {str(path.relative_to(target)) for path in target.rglob("*.mp4")} == videos.keys()
    for name, frames in videos.items():
        with VideoReader(target / name) as reader:
            found = reader.read(range(frames))
        for colour in found.unbind(-1):
            assert np.array_equal(colour.numpy(), pixels[name])
    (source / "A1_Anya-lips.mat").write_bytes(struct.pack("<5i", 0, 60 * 80, 12, 0, 4))
    with pytest.raises(ValueError, match="8-bit frames of 60 x 80"):
        script["main"]([str(source), str(target)])


def test_fine_tuning_takes_other_words_and_all_weights_but_the_last_layer(tmp_path):
    script = runpy.run_path(str(TASKS / "fine_tuning.py"))
    for part, word, number in product(("train", "val"), ("a", "b", "c", "d"), range(12)):
        (tmp_path / part / word).mkdir(parents=True, exist_ok=True)
        (tmp_path / part / word / f"{number:02}.mp4").touch()
    script["main"]([str(tmp_path)])
    for name, words in {"first": "ac", "other": "bd"}.items():
        for part in ("train", "val"):
            rows = [line.split() for line in (tmp_path / f"{name}_{part}.txt").read_text().splitlines()]
            assert rows == [[f"{part}/{word}/{number:02}.mp4", word] for word in words for number in range(12)]
    few = (tmp_path / "few_train.txt").read_text().splitlines()
    assert few == (tmp_path / "other_train.txt").read_text().splitlines()[::8]

    model, path = small_cnn(num_classes=4), tmp_path / "weights.ckpt"
    torch.save({"state_dict": {f"model.{name}": value for name, value in model.state_dict().items()}}, path)
    tuned = script["pretrained_cnn"](str(path), num_classes=3).state_dict()
    same = [name for name, value in model.state_dict().items() if torch.equal(value, tuned[name])]
    assert tuned.keys() - same == {"projection.weight", "projection.bias"}
    torch.save({"state_dict": {"other": torch.zeros(1)}}, path)
    with pytest.raises(ValueError, match="lacks stem.weight, .*Give a checkpoint of `small_cnn`"):
        script["pretrained_cnn"](str(path), num_classes=3)


def test_configs_and_their_rows_have_arguments_of_the_package():
    for config in TASKS.glob("*.yaml"):
        data = yaml.safe_load(config.read_text())["data"]
        signature(getattr(lightning_multigrid, data["class_path"].rpartition(".")[2])).bind(**data["init_args"])
    for row in (TASKS / "rows").glob("*.yaml"):
        [callback] = yaml.safe_load(row.read_text())["trainer"]["callbacks"]
        signature(MultigridCallback).bind(**callback["init_args"])


@pytest.fixture
def tasks(tmp_path, monkeypatch):
    """The script that runs the tasks, with results of its own."""
    loaded = runpy.run_path(str(TASKS / "run.py"))
    rows = {"default": "**multigrid**", "off": "multigrid without"}
    monkeypatch.setitem(loaded["train"].__globals__, "RESULTS", tmp_path)
    monkeypatch.setitem(loaded["train"].__globals__, "ROWS", rows)
    monkeypatch.setitem(loaded["train"].__globals__, "CLIPS", {"one": "clips"})
    return loaded


def record(folder, variant, seed, end, epochs, cpu):
    validations = [(1.0, 1.0, {"val/top1": end})]
    RunRecord(variant, seed, {}, validations, epochs, 1000 * epochs, cpu=cpu).write(folder / f"{variant}-{seed}.json")


def test_a_table_has_all_trainings_by_their_time_or_those_of_some_rows(tasks, tmp_path):
    for seed, end in enumerate((0.7, 0.72)):
        record(tmp_path / "one" / "default", BASELINE, seed, end, 8, 200.0 + 50 * seed)
    record(tmp_path / "one" / "default", MULTIGRID, 0, 0.65, 12, 100.25)
    record(tmp_path / "one" / "default", SHORTENED, 0, 0.5, 4, 101)
    record(tmp_path / "one" / "off", MULTIGRID, 0, 0.68, 12, 150)
    record(tmp_path / "one" / "off", SHORTENED, 0, 0.5, 4, 102)  # the same length is the same baseline
    table = tasks["table"]("one").splitlines()
    assert table[2:] == [
        "| baseline, 8 epochs | 2 | 71.0\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}1.0 | 8,000 | 200 | 100 % |",
        "| multigrid without | 1 | 68.0 | 12,000 | 150 | 75 % |",
        "| baseline, 4 epochs | 2 | 50.0\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}0.0 | 4,000 | 101 | 50 % |",
        "| **multigrid** | 1 | 65.0 | 12,000 | 100 | 50 % |",
    ]
    assert tasks["table"]("one", "8_epochs", "off").splitlines() == table[:4]
    marks = "before\n<!-- made by benchmarks/tasks/run.py: one 8_epochs off -->\n\n{}\n\n<!-- end -->\nafter"
    assert tasks["with_tables"](marks.format("old")) == marks.format("\n".join(table[:4]))
    record(tmp_path / "one" / "default", "multigrid_0.75", 0, 0.72, 9, 80)
    assert tasks["table"]("one", "default_0.75").splitlines()[2:] == [
        "| **multigrid**, 9 epochs | 1 | 72.0 | 9,000 | 80 | 40 % |"
    ]
    time = tasks["with_tables"](marks.format("old").replace("one 8_epochs off", "time one")).splitlines()[5]
    mean = "71.0\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}1.0"
    assert time == f"| clips | 8 epochs | {mean} | 200 | 9 epochs | 72.0 | 80 | **40 %** |"
    tasks["draw"](tmp_path / "one.png", "one", "8_epochs", "default")
    assert (tmp_path / "one.png").stat().st_size > 0


def test_rows_share_a_baseline_that_is_trained_once(tasks, tmp_path, monkeypatch):
    called = []

    def run(command, check, env):
        folder = Path(command[command.index("--output") + 1])
        called.append((command, sorted(path.name for path in folder.iterdir())))
        record(folder, BASELINE, 0, 0.7, 8, 200)
        record(folder, MULTIGRID, 0, 0.7, 8, 200)

    monkeypatch.setattr(subprocess, "run", run)
    tasks["train"]("one", 2, lengths=[0.75])
    (first, before), (second, copied) = called
    assert (before, copied) == ([], ["baseline-0.json"])
    assert {*first[3:9]} == {*second[3:9]} == {"compare", "--clock", "cpu", "--seeds", "2", "--lengths=[0.75]"}
    assert first[-1] == str(TASKS / "one.yaml")
    assert [path.name for path in (tmp_path / "one" / "off").iterdir()] == ["multigrid-0.json"]


@from_lightning_2_6
def test_what_is_there_is_not_repeated(tmp_path, monkeypatch, capsys):
    """If this fails, the arguments of the package have changed: write the configs of the results in today's."""
    results = ROOT / "benchmarks" / "results" / "hard_shapes"
    for file in (*results.glob("stages/*.json"), *results.glob("default/baseline-*.json")):
        shutil.copy(file, tmp_path)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("A training was started."))
    configs = [f"--config={TASKS / file}" for file in ("hard_shapes.yaml", "rows/stages.yaml")]
    main(["compare", "--clock", "cpu", "--output", str(tmp_path), *configs])
    assert "a baseline of as much time reaches" in " ".join(capsys.readouterr().out.split())


def test_the_pages_show_the_runs():
    """If this fails: `python benchmarks/tasks/run.py`."""
    tasks = runpy.run_path(str(TASKS / "run.py"))
    pages = [page.read_text() for page in tasks["PAGES"]]
    assert [tasks["with_tables"](page) for page in pages] == pages
    assert sum(bool(tasks["MARKED"].search(page)) for page in pages) == 5


def test_figures_have_few_trainings():
    assert all(len(rows) <= 5 for _, *rows in runpy.run_path(str(TASKS / "run.py"))["FIGURES"].values())
