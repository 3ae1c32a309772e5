"""A config for videos that nobody has described: it trains as it is, and says why."""

import csv
from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image

from lightning_multigrid.cli.main import main
from tests.helpers.videos import numbered_frames, write_video


@pytest.fixture
def videos(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("turn left", "turn right", "jump"):
        (tmp_path / "videos" / name).mkdir(parents=True)
        for index in range(8):
            write_video(tmp_path / "videos" / name / f"{index}.mp4", numbered_frames(10, 48, 64))
    return tmp_path


def test_fit_works_with_what_init_writes(videos, capsys, caplog):
    main(["init", "videos"])
    said = capsys.readouterr().out
    assert said.startswith("24 videos of 3 classes, short side 48 pixels, 10 frames at 30 per second.\n")
    assert "lightning-multigrid fit --config multigrid.yaml" in said
    config = yaml.safe_load((videos / "multigrid.yaml").read_text())
    data = config["data"]["init_args"]
    assert (data["batch_size"], data["frames"], data["size"], data["flip"]) == (1, 8, 32, False)
    lists = {split: Path(data[split]["init_args"]["source"]) for split in ("train", "val")}
    rows = {split: list(csv.DictReader(path.read_text().splitlines())) for split, path in lists.items()}
    assert [(row["path"], row["label"]) for row in rows["val"]] == [
        (str(videos / "videos" / name / "7.mp4"), str(label))
        for label, name in enumerate(("jump", "turn left", "turn right"))
    ]
    assert len({row["path"] for split in rows.values() for row in split}) == 24
    assert config["threads"] >= 1  # else torch takes the cores of the workers, too, and is many times slower
    quick = ["--trainer.max_epochs=2", "--trainer.logger=false", "--trainer.enable_progress_bar=false"]
    quick += ["--data.num_workers=0"]
    said = ["--threads=1", "--about=This is a first try.", "--next=Then another one."]
    with caplog.at_level("INFO", logger="lightning.pytorch.utilities.rank_zero"):
        main(["fit", "--config", "multigrid.yaml", *quick, *said])
    assert caplog.messages.index("This is a first try.") < caplog.messages.index("SmallCNN: 48,563 parameters.")
    assert caplog.messages[-1] == "Then another one."
    assert config["next"].startswith(
        f"Weights are in {videos / 'multigrid_checkpoints'}: best.ckpt, by top1, and last.ckpt, the newest."
    )
    best = str(videos / "multigrid_checkpoints" / "best.ckpt")
    assert config["next"].endswith(f"--ckpt_path {best}")
    newest = torch.load(videos / "multigrid_checkpoints" / "last.ckpt", weights_only=True)
    assert newest["epoch"] == 2 * 1.5  # all epochs, whichever was the best
    main(["predict", "--config", "multigrid.yaml", *quick, "--ckpt_path", best, "--data.predict=multigrid_val.csv"])
    assert "turn left" in (videos / "predictions.csv").read_text()  # the names of the folders


def test_what_init_says_of_videos_that_differ_and_of_paths_with_spaces(videos, capsys):
    write_video(videos / "videos" / "jump" / "0.mp4", numbered_frames(20, 64, 80), rate=15)
    main(["init", "videos", "--output", "new folder/first.yaml"])
    said = capsys.readouterr().out
    assert ", short side 48 to 64 pixels, 10 to 20 frames at 15 to 30 per second.\n" in said
    assert "lightning-multigrid plan --config 'new folder/first.yaml'\n" in said
    config = yaml.safe_load((videos / "new folder" / "first.yaml").read_text())
    assert f"--ckpt_path '{videos / 'new folder' / 'first_checkpoints' / 'best.ckpt'}'" in config["next"]


def test_init_names_what_it_leaves_out(videos, capsys):
    jump = videos / "videos" / "jump"
    (jump / "notes.txt").touch()
    (jump / "0.mp4").write_bytes(b"no video")
    frames = [Image.fromarray(frame) for frame in numbered_frames(10, 48, 64)]
    frames[0].save(jump / "é 9.gif", save_all=True, append_images=frames[1:], duration=40)
    main(["init", "videos"])
    said = capsys.readouterr().out
    assert f"Broken, left out: {jump / '0.mp4'}: " in said
    assert "No videos by their names, left out: videos/jump/notes.txt\n" in said
    listed = "".join((videos / f"multigrid_{split}.csv").read_text() for split in ("train", "val"))
    assert str(jump / "0.mp4") not in listed
    assert str(jump / "é 9.gif") in listed


def test_splits_that_are_there_are_taken(videos, capsys):
    (videos / "val").mkdir()
    (videos / "videos").rename(videos / "val" / "as folders")
    (videos / "val" / "as folders").rename(videos / "train")
    (videos / "val").rmdir()
    (videos / "val").symlink_to(videos / "train")
    main(["init", ".", "--output", "other.yaml"])
    data = yaml.safe_load((videos / "other.yaml").read_text())["data"]["init_args"]
    assert [data[split]["init_args"]["source"] for split in ("train", "val")] == [
        str(videos / "train"),
        str(videos / "val"),
    ]
    assert not list(videos.glob("*.csv"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["videos", "--output", "there.yaml"], "there.yaml exists already. Remove it, or give another"),
        (["nowhere"], "nowhere"),
        (["few/jump"], "few/jump have no labels. Give a list of `path label`, or a folder per class"),
        (["few"], "too few for the large mini-batches"),
        (["broken"], "None of 2 videos can be read. The last: "),
        (["pair"], "No class of pair has 5 videos"),
        (["videos", "--outptu=x"], "no option `--outptu`. Did you mean `output`?"),
    ],
)
def test_refusals(videos, capsys, arguments, message):
    (videos / "there.yaml").touch()
    for name, number in (("few", 6), ("pair", 2)):
        folder = videos / name / "jump"
        folder.mkdir(parents=True)
        for index in range(number):
            (folder / f"{index}.mp4").write_bytes((videos / "videos" / "jump" / "0.mp4").read_bytes())
    (videos / "broken.csv").write_text("a.mp4 0\nb.mp4 0\n")
    (videos / "a.mp4").touch()
    (videos / "b.mp4").touch()
    arguments = ["broken.csv", "--val=broken.csv"] if arguments == ["broken"] else arguments
    with pytest.raises(SystemExit):
        main(["init", *arguments])
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert message in said
