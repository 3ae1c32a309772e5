"""Official files of datasets, from a config to a fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import pytest
import yaml
from lightning.pytorch import Trainer
from PIL import Image
from torch import Tensor

from lightning_multigrid.cli.main import main
from lightning_multigrid.sources.charades import Charades
from lightning_multigrid.sources.kinetics import Kinetics
from lightning_multigrid.sources.manifest import Manifest, VideoSource
from lightning_multigrid.sources.something_something import SomethingSomething
from lightning_multigrid.sources.text import ManifestError
from lightning_multigrid.sources.ucf_hmdb import HMDB51, UCF101
from lightning_multigrid.sources.video_list import VideoList, read_manifest
from lightning_multigrid.video.classifier import VideoClassifier
from lightning_multigrid.video.datamodule import VideoDataModule
from tests.helpers.videos import write_video

pytestmark = pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`")


class Recorder(VideoClassifier):
    """Keeps what it was given."""

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


QUIET = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)


def write_config(path, num_classes, data, callbacks=(), **model):
    values = {
        "model": {
            "class_path": "tests.sources.test_source.Recorder",
            "init_args": {
                "model": {
                    "class_path": "lightning_multigrid.models.small_cnn",
                    "init_args": {"num_classes": num_classes, "width": 2},
                },
                "num_classes": num_classes,
                **model,
            },
        },
        "data": {
            "class_path": "lightning_multigrid.VideoDataModule",
            "init_args": {"batch_size": 1, "frames": 4, "size": 32, "stride": 2, **data},
        },
        "trainer": {
            "accelerator": "cpu",
            "max_epochs": 1,
            "num_sanity_val_steps": 0,
            "callbacks": [*callbacks],
            **QUIET,
        },
    }
    path.write_text(yaml.safe_dump(values))
    return str(path)


# --- The classes ---


@pytest.mark.parametrize("kind", [Charades, HMDB51, Kinetics, SomethingSomething, UCF101, VideoList])
def test_nothing_is_read_before_read(kind, tmp_path):
    videos = kind(*[tmp_path / "missing"] * 2)
    assert isinstance(videos, VideoSource)
    assert videos == kind(*[tmp_path / "missing"] * 2)
    with pytest.raises(ManifestError, match=r"does not exist|can't be listed"):
        videos.read()


@pytest.mark.parametrize(
    ("kind", "content"),
    [(Kinetics, "label,youtube_id,time_start,time_end,split\nrun,aaaaaaaaaaa,1,2,val\n"), (VideoList, "v.mp4 1\n")],
)
def test_its_own_classes_come_before_those_of_training(kind, content, tmp_path):
    (tmp_path / "list.csv").write_text(content)
    assert kind(tmp_path / "list.csv", tmp_path).read(["run", "swim"]).classes == ("run", "swim")
    own = kind(tmp_path / "list.csv", tmp_path, classes=("swim", "run"))
    assert own.read(["run", "swim"]).classes == ("swim", "run")


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
    assert sum(len(labels) for _, labels in seen["train"]) == 2 * 12
    assert len({clips.shape for clips, _ in seen["train"]}) > 2
    for split in ("train", "val"):
        for clips, labels in seen[split]:
            for clip, label in zip(clips, labels.tolist(), strict=True):
                assert np.allclose(grays(clip), list(LEVELS.values())[label], atol=4)
    assert [labels.tolist() for _, labels in seen["val"][:2]] == [[2], [1]]
    # What Lightning saved is the config, and can be run.
    saved = yaml.safe_load((tmp_path / "config.yaml").read_text())
    expected = {**data["val"]["init_args"], "classes": [], "class_folders": False, "replacements": None}
    assert saved["data"]["init_args"]["val"] == {**data["val"], "init_args": expected}
    main(["fit", "--config", "config.yaml", "--trainer.max_epochs=1"])
    assert sum(len(labels) for _, labels in seen["train"]) == 3 * 12


# --- Charades ---

DARK, BRIGHT = 40, 200


def write_charades(folder):
    """Videos of 48 frames, dark in the first second of two, which is action 3, and bright in the other, action 7."""
    frames = [np.full((36, 48, 3), DARK if number < 24 else BRIGHT, np.uint8) for number in range(48)]
    (folder / "Charades_v1_classes.txt").write_text("".join(f"c{i:03d} Doing number {i}\n" for i in range(157)))
    header = "id,subject,scene,quality,relevance,verified,script,objects,descriptions,actions,length\n"
    for split, names in (("train", ("AAAAA", "BBBBB", "CCCCC")), ("test", ("DDDDD", "EEEEE"))):
        rows = ""
        for name in names:
            # The last one has no actions.
            actions = "" if name == names[-1] else "c003 0.00 1.00;c007 1.00 20.00"
            rows += f'{name},SUBJ,Kitchen,6,7,Yes,"A person, walking.",door,"Walks; ""on"".",{actions},2.00\n'
            (folder / "Charades_v1_rgb" / name).mkdir(parents=True)
            for number, frame in enumerate(frames, start=1):
                Image.fromarray(frame).save(folder / "Charades_v1_rgb" / name / f"{name}-{number:06d}.jpg")
        (folder / f"Charades_v1_{split}.csv").write_text(header + rows)
    videos = {"videos": f"{folder}/Charades_v1_rgb", "frame_rate": 24}
    return {
        split: source("Charades", annotations=f"{folder}/Charades_v1_{name}.csv", **videos)
        for split, name in (("train", "train"), ("val", "test"))
    }


def test_charades_labels_of_what_is_shown_in_training_and_of_the_video_in_validation(tmp_path, seen):
    data = {**write_charades(tmp_path), "stride": 4}
    path = write_config(tmp_path / "charades.yaml", 157, data, loss="bce")
    main(["fit", "--config", path, "--trainer.max_epochs=12"])
    found = set()
    for clips, labels in seen["train"]:
        for clip, row in zip(clips, labels, strict=True):
            seconds = {round((level - DARK) / (BRIGHT - DARK)) for level in grays(clip)}
            labelled = tuple(row.nonzero().flatten().tolist())
            assert labelled in (tuple({0: 3, 1: 7}[second] for second in sorted(seconds)), ())
            found.add(labelled)
    assert found == {(3,), (7,), (3, 7), ()}
    assert [labels.nonzero()[:, 1].tolist() for _, labels in seen["val"][:2]] == [[3, 7], []]
    assert all(labels.shape == (1, 157) for _, labels in seen["val"])


# --- Others, and mistakes ---


class Mine:
    """A source of the user's own."""

    def __init__(self, path: str) -> None:
        self.path = path

    def read(self, classes: Sequence[str] = ()) -> Manifest:
        return read_manifest(self.path, classes=classes or ("a", "b"), existing_only=True)


def write_list(folder):
    write_video(folder / "video.mp4", [np.full((36, 48, 3), 99, np.uint8)] * 8)
    (folder / "list.csv").write_text("video.mp4 1\nmissing.mp4 0\n")
    return str(folder / "list.csv")


def test_a_source_of_ones_own(tmp_path, seen):
    mine = {"class_path": "tests.sources.test_source.Mine", "init_args": {"path": write_list(tmp_path)}}
    main(["fit", "--config", write_config(tmp_path / "c.yaml", 2, {"train": mine})])
    assert {labels.tolist()[0] for _, labels in seen["train"]} == {1}


def test_a_list_with_the_arguments_that_a_path_lacks(tmp_path):
    data = VideoDataModule(VideoList(write_list(tmp_path), existing_only=True), Mine(write_list(tmp_path)))
    data.setup("fit")
    assert len(data.train_dataloader().dataset) == 1


def test_class_ids_are_those_of_training(tmp_path):
    path = write_list(tmp_path)
    data = VideoDataModule(VideoList(path, classes=("run", "swim")), VideoList(path))
    data.setup("validate")
    assert data.val_dataloader().dataset.manifest.classes == ("run", "swim")


def test_splits_of_different_classes_are_refused(tmp_path):
    path = write_list(tmp_path)
    data = VideoDataModule(VideoList(path, classes=("run", "swim")), VideoList(path, classes=("swim", "run")))
    with pytest.raises(ValueError, match=r"`val` \(.*list\.csv\) has 2 classes that are not the 2 of `train`, or "):
        data.setup("fit")


def test_nothing_is_read_for_a_plan(tmp_path, capsys):
    callback = {"class_path": "lightning_multigrid.MultigridCallback"}
    data = {"train": kinetics(tmp_path, "train")}
    path = write_config(tmp_path / "c.yaml", 400, data, [callback], schedule="constant")
    main(["plan", "--config", path])
    captured = capsys.readouterr()
    assert "fewer iterations" in " ".join(captured.out.split())
    warned = " ".join(captured.err.split())
    assert "Steps are not counted" in warned
    assert "train.csv does not exist" in warned
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations/train.csv").write_text("not what it should be")
    main(["plan", "--config", path, "--clips=2400"])
    captured = capsys.readouterr()
    assert "steps instead of 2400" in captured.out
    assert "counted" not in captured.err


def test_a_mistake_in_a_source_is_named(tmp_path, capsys):
    for wrong, message in (
        (source("Kinetics", annotatons="train.csv", videos="train"), "annotatons"),
        (source("Kinetix", annotations="train.csv", videos="train"), "Kinetix"),
    ):
        with pytest.raises(SystemExit) as exit_info:
            main(["fit", "--config", write_config(tmp_path / "c.yaml", 3, {"train": wrong})])
        assert exit_info.value.code == 2
        assert message in " ".join(capsys.readouterr().err.split())


def test_help_of_a_source(capsys):
    arguments = ["--data=lightning_multigrid.VideoDataModule", "--data.train.help=lightning_multigrid.sources.Kinetics"]
    with pytest.raises(SystemExit) as exit_info:
        main(["fit", *arguments])
    assert exit_info.value.code in (0, None)
    assert "many links are dead" in " ".join(capsys.readouterr().out.split())
