"""A config for videos that nobody has described: it trains as it is, and says why."""

import csv
import os
import re
import shutil
from collections import Counter
from itertools import product
from pathlib import Path

import pytest
import torch
import yaml
from lightning.pytorch.cli import LightningCLI
from PIL import Image

from lightning_multigrid.cli.init import _MACHINES, _training, hold_out, recording_name
from lightning_multigrid.cli.main import main
from lightning_multigrid.sources import VideoList
from lightning_multigrid.video import VideoDataModule
from tests.helpers.videos import numbered_frames, write_video

QUICK = ["--trainer.logger=false", "--trainer.enable_progress_bar=false", "--trainer.check_val_every_n_epoch=1"]
QUICK += ["--config=multigrid.yaml", "--data.num_workers=0"]


@pytest.fixture
def videos(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    video = write_video(tmp_path / "video.mp4", numbered_frames(10, 48, 64))
    for name in ("turn left", "turn right", "jump"):
        (tmp_path / "videos" / name).mkdir(parents=True)
        for index in range(8):
            shutil.copy(video, tmp_path / "videos" / name / f"{index}.mp4")
    return tmp_path


def data_of(config):
    return yaml.safe_load(config.read_text())["data"]["init_args"]


def test_fit_works_with_what_init_writes(videos, capsys):
    main(["init", "videos"])
    said = capsys.readouterr().out
    assert said.startswith("24 videos of 3 classes, short side 48 pixels, 10 frames at 30 per second.\n")
    assert "\nClasses: 3, with 8 videos each.\nTraining and validation: 21 and 3 videos.\n" in said
    assert "3 videos.\nWritten: multigrid.yaml, multigrid_train.csv, multigrid_val.csv.\n" in said
    assert "shorter than" not in said
    assert all(f"lightning-multigrid {word} --config multigrid.yaml" in said for word in ("check", "fit"))
    text = (videos / "multigrid.yaml").read_text()
    assert "# for a batch_size of 1;" in text
    assert "1 clips" not in text
    config = yaml.safe_load(text)
    data = config["data"]["init_args"]
    assert (data["batch_size"], data["frames"], data["size"], data["flip"]) == (1, 8, 32, False)
    lists = {split: Path(data[split]["init_args"]["source"]) for split in ("train", "val")}
    rows = {split: list(csv.DictReader(path.read_text().splitlines())) for split, path in lists.items()}
    assert [(row["path"], row["label"]) for row in rows["val"]] == [
        (f"videos/{name}/7.mp4", name) for name in ("jump", "turn left", "turn right")
    ]
    assert len({row["path"] for split in rows.values() for row in split}) == 24
    assert set(config) == {"seed_everything", "model", "data", "trainer"}  # as other programs take it
    with_lightning = LightningCLI(run=False, auto_configure_optimizers=False, args=["--config", "multigrid.yaml"])
    assert isinstance(with_lightning.datamodule, VideoDataModule)
    quick = [*QUICK, "--trainer.max_epochs=2"]
    main(["fit", *quick])
    best = "multigrid_checkpoints/best.ckpt"
    assert f"lightning-multigrid predict FOLDER --config multigrid.yaml --ckpt_path {best}\n" in said
    newest = torch.load(videos / "multigrid_checkpoints" / "last.ckpt", weights_only=True)
    assert newest["epoch"] == 2  # all epochs, whichever was the best
    main(["predict", *quick, "--ckpt_path", best, "--data.predict=multigrid_val.csv"])
    assert "turn left" in (videos / "predictions.csv").read_text()  # the names of the folders


def test_validation_videos_that_are_not_there_or_of_other_classes_are_refused(videos, capsys):
    (videos / "other" / "swim").mkdir(parents=True)
    shutil.copy(next(videos.glob("videos/*/*.mp4")), videos / "other" / "swim")
    for val, said in (("nothing", "nothing can't be read"), ("other", "'swim', which is not among the 3 `classes`")):
        with pytest.raises(SystemExit, match="1"):
            main(["init", "videos", "--val", val])
        assert said in " ".join(capsys.readouterr().err.split())
    assert not (videos / "multigrid.yaml").exists()


@pytest.fixture
def frames(tmp_path, monkeypatch):
    """Folders of images, in folders of classes."""
    monkeypatch.chdir(tmp_path)
    for name in ("jump", "turn"):
        for video in range(10):
            (folder := tmp_path / "frames" / name / f"v{video}").mkdir(parents=True)
            for number, frame in enumerate(numbered_frames(8, 48, 64)):
                Image.fromarray(frame).save(folder / f"{number}.png")
    return tmp_path


def test_folders_of_frames_are_trained_and_predicted_at_the_rate_that_init_is_given(frames, capsys):
    main(["init", "frames", "--frame_rate", "12"])
    assert "20 videos of 2 classes, short side 48 pixels, 8 frames at 12 per second." in capsys.readouterr().out
    data = data_of(frames / "multigrid.yaml")
    assert {data[split]["init_args"]["frame_rate"] for split in ("train", "val")} == {12}
    assert "frame_rate" not in data  # the unit of the stride, which is another thing
    quick = [*QUICK, "--trainer.max_epochs=1"]
    main(["fit", *quick])
    (frames / "list.csv").write_text("path,label\nframes/turn/v3,1\n")
    config = frames / "multigrid.yaml"
    with_test = re.sub(r"(?m)^    # (?=test|  class_path|  init_args)", "    ", config.read_text())
    config.write_text(with_test.replace("source: TEST", "source: list.csv"))
    capsys.readouterr()
    main(["test", *quick, "--ckpt_path", "multigrid_checkpoints/best.ckpt"])
    assert "test/top1" in capsys.readouterr().out
    for source, number in (("frames", 20), ("list.csv", 1)):
        main(["predict", source, *quick, "--ckpt_path", "multigrid_checkpoints/best.ckpt"])
        written = (frames / "predictions.csv").read_text()
        assert len(written.splitlines()) == 1 + number
        assert str(frames / "frames/turn/v3") in written
        assert "turn," in written or "jump," in written


def test_splits_of_folders_of_frames_are_taken(frames):
    (frames / "both").mkdir()
    (frames / "both" / "train").symlink_to(frames / "frames")
    (frames / "both" / "val").symlink_to(frames / "frames")
    main(["init", "both", "--frame_rate=29.97"])
    data = data_of(frames / "multigrid.yaml")
    assert {data[split]["init_args"]["frame_rate"] for split in ("train", "val")} == {29.97}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["frames"], "of frames are folders of images, which do not say how many are shown per second. Give `--frame_"),
        (["list.csv"], "of list.csv are folders of images, which do not say"),
        (["frames", "--frame_rate=0"], "`frame_rate` must be above 0 (frames per second), or None, got 0.0"),
        (["videos", "--frame_rate=30"], "videos holds videos, and no folders of images. Leave `frame_rate` out"),
    ],
)
def test_init_needs_the_rate_of_folders_of_frames_and_takes_none_of_videos(frames, capsys, words, message):
    (frames / "list.csv").write_text("path,label\nframes/turn/v3,0\n")
    (frames / "videos").mkdir()
    (frames / "videos" / "jump.mp4").touch()
    with pytest.raises(SystemExit):
        main(["init", *words])
    assert message in capsys.readouterr().err
    assert not list(frames.glob("multigrid*"))


def test_the_lists_that_init_writes_keep_the_stretches_of_videos(videos, capsys):
    stretches = [(number % 10 / 30, (number + 30) / 30) for number in range(40)]
    rows = [(number // 20, *stretch) for number, stretch in enumerate(stretches)]
    lines = [f"videos/jump/0.mp4,{label},{start},{end}" for label, start, end in rows]
    (videos / "list.csv").write_text("\n".join(["path,label,start,end", *lines, "videos/jump/0.mp4,0,0.2,"]))
    main(["init", "list.csv"])
    assert "48 pixels, 5.5 frames at 30 per second" in capsys.readouterr().out  # the median of 1 to 10
    train, val = (VideoList(videos / f"multigrid_{split}.csv").read() for split in ("train", "val"))
    written = [manifest.stretch(row) for manifest in (train, val) for row in range(len(manifest))]
    assert sorted(map(str, written)) == sorted(map(str, [*stretches, (0.2, float("inf"))]))
    assert len(val) == 8


def test_codecs_and_sizes_are_on_both_sides_where_a_class_has_five_of_them(videos, capsys):
    for name in ("jump", "turn left", "turn right"):
        for index in range(8, 8 + (5 if name != "jump" else 1)):  # one is too few to hold one out
            write_video(videos / "videos" / name / f"{index}.avi", numbered_frames(10, 64, 96), codec="mpeg4")
    main(["init", "videos"])
    said = " ".join(capsys.readouterr().out.split())
    assert "Training and validation: 30 and 5 videos; h264 64 x 48: 21 and 3; mpeg4 96 x 64: 9 and 2." in said
    val = list(csv.DictReader((videos / "multigrid_val.csv").read_text().splitlines()))
    kinds = [("jump", ".mp4"), *product(("turn left", "turn right"), (".avi", ".mp4"))]
    assert Counter((row["label"], row["path"][-4:]) for row in val) == dict.fromkeys(kinds, 1)


def test_videos_that_are_shorter_than_a_clip_are_said(videos, capsys):
    for name in ("jump", "turn left"):
        write_video(videos / "videos" / name / "7.mp4", numbered_frames(5, 48, 64))
    main(["init", "videos"])
    said = " ".join(capsys.readouterr().out.split())
    assert "Videos shorter than the 8 frames that a clip spans: 2 of 24 that were looked at." in said


@pytest.mark.parametrize("name", ["3", "a.mp4", "1;2"])
def test_labels_are_numbers_where_a_name_would_be_read_as_something_else(videos, name):
    (videos / "videos" / "jump").rename(videos / "videos" / name)
    main(["init", "videos"])
    data = yaml.safe_load((videos / "multigrid.yaml").read_text())["data"]["init_args"]
    read = VideoList(**data["val"]["init_args"]).read()
    named = [read.classes[read.label(row)] for row in range(len(read))]
    assert named == [Path(path).parent.name for path in read.paths()]
    val = csv.DictReader((videos / "multigrid_val.csv").read_text().splitlines())
    assert {row["label"] for row in val} == {"0", "1", "2"}


def test_a_list_elsewhere_names_videos_by_their_whole_paths(videos):
    main(["init", "videos", "--output", "configs/first.yaml"])
    rows = list(csv.DictReader((videos / "configs" / "first_val.csv").read_text().splitlines()))
    assert [row["path"] for row in rows][:1] == [str(videos / "videos" / "jump" / "7.mp4")]
    assert len(VideoList(videos / "configs" / "first_val.csv").read()) == 3


@pytest.mark.parametrize(
    ("home", "names"),
    [
        ('vidéos 😀 漢 "a": $b #c', ["saut 😀 'haut'", "turn left", "turn right"]),
        ("a\u2029b", ["line\u2028separator", "next\x85line \U000e0041", "\ufeff\x7f"]),
    ],
)
def test_paths_in_any_language_and_with_rare_separators_can_be_read_from_the_config(videos, monkeypatch, home, names):
    for before, name in zip(("jump", "turn left", "turn right"), names, strict=True):
        (videos / "videos" / before).rename(videos / "videos" / name)
    (home := videos / home).mkdir()
    (videos / "videos").rename(home / "videos")
    # Files may have names that are no UTF-8.
    path = home / "videos" / names[1] / os.fsdecode("é 7.mp4".encode("latin-1"))
    (home / "videos" / names[1] / "7.mp4").rename(path)
    monkeypatch.chdir(home)
    main(["init", "videos"])
    for loader in (yaml.SafeLoader, yaml.CSafeLoader):
        data = yaml.load((home / "multigrid.yaml").read_bytes(), loader)["data"]["init_args"]
        assert data["val"]["init_args"] == {"source": str(home / "multigrid_val.csv"), "classes": names}
    lists = [VideoList(home / f"multigrid_{split}.csv", classes=names).read() for split in ("train", "val")]
    assert str(path) in [manifest.path(row) for manifest in lists for row in range(len(manifest))]
    main(["plan", "--config", "multigrid.yaml"])


@pytest.mark.parametrize("place", ["class", "home"])
def test_names_that_are_no_utf_8_are_refused_before_a_file_is_written(videos, monkeypatch, capsys, place):
    before = videos / "videos" / "jump" if place == "class" else videos
    name = before.with_name(os.fsdecode(b"jump \xe9"))
    before.rename(name)
    home = videos if place == "class" else name
    monkeypatch.chdir(home)
    with pytest.raises(SystemExit):
        main(["init", "videos"])
    said = capsys.readouterr().err
    assert re.search(r"The name '.*jump \\udce9.*' is not UTF-8, which a config must be\. Rename the folder\.", said)
    assert not list(home.glob("multigrid*"))


def test_beside_a_gpu_the_config_uses_it(videos, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("lightning_multigrid.cli.init.CORES", 16)
    main(["init", "videos"])
    text = (videos / "multigrid.yaml").read_text()
    config = yaml.safe_load(text)
    assert config["trainer"]["precision"] == "bf16-mixed"
    assert config["model"]["init_args"]["channels_last"] is True
    assert config["data"]["init_args"]["num_workers"] == 14


def test_what_init_says_of_broken_and_larger_videos_and_of_paths_with_spaces(videos, capsys, monkeypatch):
    monkeypatch.setitem(_MACHINES["cpu"], "size", 32)
    monkeypatch.setitem(_MACHINES["gpu"], "size", 32)
    monkeypatch.setattr("lightning_multigrid.cli.init.needed_short_side", lambda data: data.size + 4)
    (broken := videos / "videos" / "jump" / "0.mp4").write_bytes(b"no video")
    main(["init", "videos", "--output", "first.yaml"])
    few = "Their decoded frames take about 835.2 kB: `lightning-multigrid prepare --config first.yaml --output prepared"
    assert f"{few} --store planes` writes them" in capsys.readouterr().out
    monkeypatch.setattr("lightning_multigrid.cli.init._SMALL", 300_000)
    main(["init", "videos", "--output", "new folder/first.yaml"])
    said = capsys.readouterr().out
    assert f"warning: Broken videos: 1 of the 24 that were looked at, such as {broken}: " in said
    assert "training and validation share recordings: 1." in said
    assert "larger than their clips need: `lightning-multigrid prepare --config 'new folder/first.yaml'" in said
    assert "lightning-multigrid plan --measure --config 'new folder/first.yaml'\n" in said
    assert "--ckpt_path 'new folder/first_checkpoints/best.ckpt'\n" in said


@pytest.mark.parametrize("videos", [20, 150, 267, 540, 1000, 30_000])
def test_mini_batches_suit_batchnorm_and_validations_are_fifteen_at_most_and_one_at_the_end(videos):
    training = _training(videos)
    assert training["epochs"] % training["every"] == 0
    assert training["epochs"] // training["every"] <= 15
    if videos >= 267:
        assert training["batch_size"] >= 4
        assert training["epochs"] <= 150


def test_splits_that_are_there_are_taken(videos, capsys):
    (videos / "val").mkdir()
    (videos / "videos").rename(videos / "val" / "as folders")
    (videos / "val" / "as folders").rename(videos / "train")
    (videos / "val").rmdir()
    (videos / "val").symlink_to(videos / "train")
    main(["init", ".", "--output", "other.yaml"])
    data = data_of(videos / "other.yaml")
    assert [data[split]["init_args"]["source"] for split in ("train", "val")] == [f"{videos}/train", f"{videos}/val"]
    assert not list(videos.glob("*.csv"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["videos", "--output", "there.yaml"], "`init` would write over there.yaml. Move it away"),
        (["videos", "--output", "their.yaml"], "would write over their_train.csv, their_val.csv. Move them away"),
        (["nowhere"], "nowhere"),
        (["https://host/list.csv"], "`init` looks at videos on a disk, and https://host/list.csv is a URL."),
        (["few/jump"], "few/jump have no labels. Give a list of `path label`, or a folder per class"),
        (["few"], "There are 5 training videos, beside 1 held out for validation; at least 16 are required, as"),
        (["few"], "for each of the baseline's. Add videos.\n"),
        (["few", "--val=enough"], "There are 6 training videos; at least 16 are required"),
        (["enough"], "for each of the baseline's. Add videos, or give validation videos of their own as `--val`.\n"),
        (["few", "--val=./few"], "`--val` is ./few, the videos of training, whose accuracy would say little. Give"),
        (["one"], "have one class, at least 2 are required. Give the folder that holds the folders of all classes"),
        (["broken"], "None of 2 videos can be read. The last: "),
        (["pair"], "No class of pair has 5 videos"),
        (["videos", "--outptu=x"], "unrecognized arguments: --outptu=x"),
    ],
)
def test_refusals(videos, capsys, arguments, message):
    for name in ("there.yaml", "their_train.csv", "their_val.csv"):
        (videos / name).write_text("the user's")
    for name, number in (("few", 6), ("enough", 16), ("one", 40), ("pair", 2)):
        (folder := videos / name / "jump").mkdir(parents=True)
        for index in range(number):
            (folder / f"{index}.mp4").write_bytes((videos / "videos" / "jump" / "0.mp4").read_bytes())
    (videos / "broken.csv").write_text("a.mp4 0\nb.mp4 0\n")
    (videos / "a.mp4").touch()
    (videos / "b.mp4").touch()
    arguments = ["broken.csv", "--val=videos"] if arguments == ["broken"] else arguments
    with pytest.raises(SystemExit):
        main(["init", *arguments])
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert message in said
    assert (videos / "their_val.csv").read_text() == "the user's"
    assert not list(videos.glob("multigrid*"))


# --- Which videos are held out ---


def split(tmp_path, names, classes=()):
    """The videos for training and for validation, and the recordings that are cut."""
    (path := tmp_path / "list.csv").write_text("\n".join(f"{name} {label}" for name, label in names))
    train, val, cut = hold_out(VideoList(path).read(classes))
    assert sorted([*train, *val]) == list(range(len(names)))
    return [names[row] for row in train], [names[row] for row in val], cut


def test_a_fifth_of_each_class_is_held_out_and_no_recording_is_on_both_sides(tmp_path):
    # As UCF101 names its videos: 25 groups of 4 to 7 clips in each class.
    names = [(f"v_c{c}_g{g:02}_c{i:02}.avi", c) for c in range(3) for g in range(25) for i in range(4 + (g + c) % 4)]
    train, val, cut = split(tmp_path, names)
    assert cut == 0
    assert not {recording_name(name) for name, _ in train} & {recording_name(name) for name, _ in val}
    sizes, held = (Counter(label for _, label in part) for part in (names, val))
    for label, size in sizes.items():
        assert 0.17 < held[label] / size < 0.23


def test_a_recording_with_several_classes_stays_whole(tmp_path):
    names = [(f"{c}/match{m}_{i}.mp4", int(c == "kick")) for c in ("kick", "pass") for m in range(5) for i in range(4)]
    train, val, cut = split(tmp_path, names, classes=("pass", "kick"))
    assert (len(train), len(val), cut) == (32, 8, 0)


def test_kinds_are_held_out_like_classes_and_recordings_with_several_stay_whole(tmp_path):
    path = tmp_path / "list.csv"
    names = [
        f"{game}_{i}.mp4" for game in ("a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l") for i in range(5)
    ]
    path.write_text("\n".join(f"{name} 0" for name in names))
    kinds = ["avi" if name < "d" and name != "a_0.mp4" else "mp4" for name in names]
    train, val, cut = hold_out(VideoList(path).read(), kinds)
    assert cut == 0
    assert {names[row][0] for row in val} == {"c", "k", "l"}  # `a` counts as its first video
    assert sorted([*train, *val]) == [*range(60)]


def test_what_can_only_be_cut_is_cut_and_counted(tmp_path):
    names = [(f"{c}/{i}.mp4", c) for c in range(2) for i in range(10)] + [(f"2/x{i}.mp4", 2) for i in range(4)]
    train, val, cut = split(tmp_path, names)
    assert [name for name, _ in val] == ["0/8.mp4", "0/9.mp4", "1/8.mp4", "1/9.mp4"]
    assert cut == 2
    assert sum(label == 2 for _, label in train) == 4  # too few to hold any out


@pytest.mark.timeout(20)
def test_the_time_depends_on_the_videos_and_not_on_the_number_of_classes(tmp_path):
    names = [(f"{label}/{i}.mp4", label) for i in range(10) for label in (10**8, 3)]
    _, val, cut = split(tmp_path, names)
    assert val == [(f"{label}/{i}.mp4", label) for i in (8, 9) for label in (10**8, 3)]
    assert cut == 2


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/videos/jump/7.mp4", "/videos/"),
        ("/videos/jump/day2/take 7b.mp4", "/videos/day2/take b"),
        ("s3://bucket/jump/first.webm", "s3://bucket/first"),
    ],
)
def test_names_of_recordings(path, name):
    assert recording_name(path, "jump") == name
