"""The script that makes the videos of a task, on videos made here: the dataset is not ours to hand on."""

import runpy
from pathlib import Path

import av
import numpy as np
import pytest
import yaml

from lightning_multigrid import MultigridCallback, VideoDataModule
from lightning_multigrid.decode import VideoReader

TASKS = Path(__file__).parents[2] / "benchmarks" / "tasks"


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


def test_a_folder_without_words_is_named(script, tmp_path, capsys):
    with pytest.raises(SystemExit):
        script["main"]([str(tmp_path), str(tmp_path / "made")])
    assert "has no words.csv" in capsys.readouterr().err


def test_configs_and_their_rows_have_arguments_of_the_package():
    config = yaml.safe_load((TASKS / "grid_words.yaml").read_text())
    VideoDataModule(**config["data"]["init_args"] | {"train": None, "val": None})
    for row in (TASKS / "rows").glob("*.yaml"):
        [callback] = yaml.safe_load(row.read_text())["trainer"]["callbacks"]
        MultigridCallback(**callback["init_args"])
