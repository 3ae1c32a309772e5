"""Official files of datasets, from a config to a fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import pytest
import torch
import yaml
from lightning.pytorch import Trainer
from torch import Tensor

from lightning_multigrid.cli.main import main
from lightning_multigrid.sources import (
    HMDB51,
    UCF101,
    Charades,
    Kinetics,
    Manifest,
    ManifestError,
    SomethingSomething,
    VideoList,
    VideoSource,
)
from lightning_multigrid.video import VideoClassifier, VideoDataModule
from tests.helpers.tiny import QUIET
from tests.helpers.videos import write_video


class Recorder(VideoClassifier):
    seen: ClassVar[dict[str, list[tuple[Tensor, Tensor]]]] = {"train": [], "val": []}

    def training_step(self, batch, batch_idx):
        if isinstance(self.trainer, Trainer):  # the callback tries a copy without one
            self.seen["train"].append(tuple(batch))
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        self.seen["val"].append(tuple(batch))
        super().validation_step(batch, batch_idx)


@pytest.fixture(autouse=True)
def seen(tmp_path, monkeypatch):
    # `fit` writes its config to the current folder.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Recorder, "seen", {"train": [], "val": []})
    return Recorder.seen


def grays(clip):
    """Mean level of each frame of a normalised clip, 0 to 255."""
    return [(level * 0.225 + 0.45) * 255 for level in clip.mean(dim=(0, 2, 3)).tolist()]


def source(name, **arguments):
    return {"class_path": f"lightning_multigrid.sources.{name}", "init_args": arguments}


def write_config(path, num_classes, data, callbacks=(), **model):
    cnn = {"class_path": "lightning_multigrid.models.small_cnn", "init_args": {"num_classes": num_classes, "width": 2}}
    clips = {"batch_size": 1, "frames": 4, "size": 32, "stride": 2}
    trainer = {"accelerator": "cpu", "max_epochs": 1, "num_sanity_val_steps": 0, "callbacks": [*callbacks]}
    values = {
        "model": {
            "class_path": "tests.sources.test_source.Recorder",
            "init_args": {"model": cnn, "num_classes": num_classes, **model},
        },
        "data": {"class_path": "lightning_multigrid.VideoDataModule", "init_args": clips | data},
        "trainer": trainer | QUIET,
    }
    path.write_text(yaml.safe_dump(values))
    return str(path)


@pytest.mark.parametrize("kind", [Charades, HMDB51, Kinetics, SomethingSomething, UCF101, VideoList])
def test_nothing_is_read_before_read(kind, tmp_path):
    videos = kind(*[tmp_path / "missing"] * 2)
    assert isinstance(videos, VideoSource)
    assert videos == kind(*[tmp_path / "missing"] * 2)
    with pytest.raises(ManifestError, match=r"can't be (read|listed)"):
        videos.read()


# --- Kinetics ---

LEVELS = {"abseiling": 20, "air drumming": 120, "zumba": 220}


def write_kinetics(folder, split, labels, dead=0):
    (folder / "annotations").mkdir(exist_ok=True)
    (folder / split).mkdir()
    lines = ["label,youtube_id,time_start,time_end,split,is_cc"]
    for number, label in enumerate([*labels, *labels[:dead]]):
        quoted = f'"{label}"' if " " in label else label
        lines.append(f"{quoted},-{split:_<9}{number:x},{number},{number + 10},{split},0")
        if number < len(labels):
            path = folder / split / f"-{split:_<9}{number:x}_{number:06d}_{number + 10:06d}.mp4"
            write_video(path, [np.full((36, 48, 3), LEVELS[label], np.uint8)] * 10)
    (folder / "annotations" / f"{split}.csv").write_text("\n".join(lines) + "\n")


def kinetics(folder, split):
    annotations = str(folder / "annotations" / f"{split}.csv")
    return source("Kinetics", annotations=annotations, videos=str(folder / split), existing_only=True)


def test_kinetics_on_multigrid(tmp_path, seen, capsys):
    write_kinetics(tmp_path, "train", list(LEVELS) * 4, dead=2)
    # Without the first class: by itself, this split would number the other ones from 0.
    write_kinetics(tmp_path, "val", ["zumba", "air drumming"])
    cycle = {"long_cycle": {"factors": [[0.5, 0.75], [1, 1]]}, "epoch_factor": 1}
    callback = {"class_path": "lightning_multigrid.MultigridCallback", "init_args": cycle}
    data = {split: kinetics(tmp_path, split) for split in ("train", "val")}
    path = write_config(tmp_path / "kinetics.yaml", 3, data, [callback], schedule="constant")
    main(["plan", "--config", path])
    assert "steps instead of 12" in capsys.readouterr().out  # counted without the dead links
    main(["fit", "--config", path, "--trainer.max_epochs=2"])
    labels = torch.cat([labels for _, labels in seen["train"]])
    for number in range(2):  # passes, whatever the steps of an epoch are rounded to
        assert labels[12 * number : 12 * (number + 1)].bincount().tolist() == [4] * 3
    assert len({clips.shape for clips, _ in seen["train"]}) > 2
    for split in ("train", "val"):
        for clips, labels in seen[split]:
            for clip, label in zip(clips, labels.tolist(), strict=True):
                assert np.allclose(grays(clip), list(LEVELS.values())[label], atol=4)
    assert [labels.tolist() for _, labels in seen["val"][:2]] == [[2], [1]]
    # What Lightning saved is the config, and can be run.
    saved = yaml.safe_load((tmp_path / "config.yaml").read_text())
    expected = {**data["val"]["init_args"], "classes": []}
    assert saved["data"]["init_args"]["val"] == {**data["val"], "init_args": expected}
    main(["fit", "--config", "config.yaml", "--trainer.max_epochs=1"])
    again = torch.cat([labels for _, labels in seen["train"]])[len(labels) :]
    assert again[:12].bincount().tolist() == [4] * 3


# --- Others, and mistakes ---


class Mine:
    """A source of the user's own."""

    def __init__(self, path: str) -> None:
        self.path = path

    def read(self, classes: Sequence[str] = ()) -> Manifest:
        return VideoList(self.path, existing_only=True).read(classes or ("a", "b"))


def write_list(folder):
    write_video(folder / "video.mp4", [np.full((36, 48, 3), 99, np.uint8)] * 8)
    (folder / "list.csv").write_text("video.mp4 1\nmissing.mp4 0\n")
    return str(folder / "list.csv")


def test_a_source_of_ones_own(tmp_path, seen):
    mine = {"class_path": "tests.sources.test_source.Mine", "init_args": {"path": write_list(tmp_path)}}
    main(["fit", "--config", write_config(tmp_path / "c.yaml", 2, {"train": mine})])
    assert {labels.tolist()[0] for _, labels in seen["train"]} == {1}


def test_splits_of_different_classes_are_refused(tmp_path):
    path = write_list(tmp_path)
    data = VideoDataModule(VideoList(path, classes=("run", "swim")), VideoList(path, classes=("swim", "run")))
    with pytest.raises(ValueError, match=r"`val` \(.*list\.csv\) has 2 classes that are not the 2 of `train`, or "):
        data.setup("fit")


def test_a_mistake_in_a_source_is_named(tmp_path, capsys):
    for wrong, message in (
        (source("Kinetics", annotatons="train.csv", videos="train"), "annotatons"),
        (source("Kinetix", annotations="train.csv", videos="train"), "Kinetix"),
    ):
        with pytest.raises(SystemExit) as exit_info:
            main(["fit", "--config", write_config(tmp_path / "c.yaml", 3, {"train": wrong})])
        assert exit_info.value.code == 2
        assert message in " ".join(capsys.readouterr().err.split())
