"""The script that makes videos of AVLetters, on files made here: the dataset is not ours to hand on."""

import runpy
import struct
from dataclasses import replace
from pathlib import Path
from unittest import mock

import compare
import numpy as np
import pytest
import yaml

from lightning_multigrid.decode import VideoReader

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "avletters.py"


@pytest.fixture
def main():
    return runpy.run_path(str(SCRIPT))["main"]


def write_mat(path, frames, kind=50):
    """A MATLAB 4 file with a matrix `vid` of a frame per column, each column by column, and one after it."""
    columns = [frame.T.tobytes() for frame in frames]
    header = struct.pack("<5i", kind, frames[0].size, len(frames), 0, 4)
    path.write_bytes(header + b"vid\0" + b"".join(columns) + b"what follows")


def test_videos_are_lossless_and_split_by_take(main, tmp_path):
    source, target, random = tmp_path / "Lips", tmp_path / "made", np.random.default_rng(0)
    source.mkdir()
    given = {name: random.integers(0, 256, (5, 60, 80), np.uint8) for name in ("A1_Anya", "B2_Yi", "B3_Yi")}
    for name, frames in given.items():
        write_mat(source / f"{name}-lips.mat", frames)
    main([str(source), str(target)])
    videos = {path.stem: path for path in target.glob("*/*/*.mp4")}
    folders = {name: str(path.parent.relative_to(target)) for name, path in videos.items()}
    assert folders == {"A1_Anya": "train/A", "B2_Yi": "train/B", "B3_Yi": "val/B"}
    for name, path in videos.items():
        rgb = np.asarray(VideoReader(path).read(range(5)))
        np.testing.assert_array_equal(rgb, np.repeat(given[name][..., None], 3, axis=-1))
    config = yaml.safe_load((target / "config.yaml").read_text())
    assert config["data"]["init_args"]["train"] == str(target / "train")


def test_each_person_validates_in_one_of_five_folds(main, tmp_path, capsys):
    source, people = tmp_path / "Lips", [f"Person{number}" for number in range(10)]
    source.mkdir()
    for number, person in enumerate(people):
        write_mat(source / f"A{number % 3 + 1}_{person}-lips.mat", np.zeros((2, 60, 80), np.uint8))
    held_out = []
    for fold in range(5):
        target = tmp_path / str(fold)
        main([str(source), str(target), "--people", str(fold)])
        split = {part: [path.stem[3:] for path in (target / part).rglob("*.mp4")] for part in ("train", "val")}
        assert sorted(split["train"] + split["val"]) == people
        held_out += split["val"]
    assert sorted(held_out) == people
    (source / "A1_Person0-lips.mat").unlink()
    with pytest.raises(SystemExit, match="2"):
        main([str(source), str(tmp_path / "other"), "--people", "0"])
    assert "has 9 people, and the folds are of 10" in capsys.readouterr().err


def test_the_lips_are_as_many_as_there_are(tmp_path):
    with pytest.raises(SystemExit, match="has no videos in `train`: `avletters.py` writes them"):
        compare.lips(str(tmp_path))
    (tmp_path / "train" / "A").mkdir(parents=True)
    for number in range(52):
        (tmp_path / "train" / "A" / f"{number}.mp4").touch()
    assert compare.lips(str(tmp_path)) == replace(compare.AVLETTERS, videos=str(tmp_path), train_per_class=2)


def test_compare_trains_what_the_config_says():
    config = yaml.safe_load(runpy.run_path(str(SCRIPT))["CONFIG"].format(train="here/train", val="here/val"))
    data, model, task = config["data"]["init_args"], config["model"]["init_args"], compare.AVLETTERS
    assert (task.clips, task.frames, task.size) == (data["batch_size"], data["frames"], data["size"])
    assert task.epochs == config["trainer"]["max_epochs"]
    assert (task.lr, task.classes, task.milestones) == (model["lr"], model["num_classes"], ())
    with mock.patch.object(compare, "VideoDataModule") as made:
        replace(task, videos="here").data(1)
    made.assert_called_once_with(
        Path(data.pop("train")), Path(data.pop("val")), **data | {"short_side": tuple(data["short_side"])}
    )


def test_files_of_another_kind_are_refused(main, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path), str(tmp_path / "made")])
    assert "has no files such as A1_Anya-lips.mat" in capsys.readouterr().err
    write_mat(tmp_path / "A1_Anya-lips.mat", np.zeros((5, 60, 80), np.uint8), kind=0)
    with pytest.raises(ValueError, match=r"A1_Anya-lips\.mat must hold 8-bit frames of 60 x 80"):
        main([str(tmp_path), str(tmp_path / "made")])
