"""The commands `prepare` and `check`, as they are typed."""

import csv
import re
from pathlib import Path

import pytest
from PIL import Image

from lightning_multigrid.cli.main import main
from lightning_multigrid.decode import VideoReader
from lightning_multigrid.prepare import TASK_SECONDS, Encoding, prepare
from lightning_multigrid.sources.video_list import VideoList
from tests.helpers.videos import numbered_frames, write_video


@pytest.fixture
def source(tmp_path):
    """A folder per class, for training and for validation."""
    for place, name in enumerate(("train/run/a b.mp4", "train/swim/b.mp4", "train/swim/c.mp4", "val/swim/d.mp4")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write_video(tmp_path / name, numbered_frames(12, first=12 * place))
    return tmp_path


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The user's cache of this package."""
    monkeypatch.setenv("LIGHTNING_MULTIGRID_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


SERIAL = ["--workers=0"]
QUICK = ["--preset=ultrafast", *SERIAL]
MODEL = """
model.class_path: lightning_multigrid.VideoClassifier
model.init_args.num_classes: 2
model.init_args.model: {class_path: lightning_multigrid.models.slow_r50, init_args: {num_classes: 2}}
"""
DATA = f"{MODEL}data:\n  class_path: lightning_multigrid.VideoDataModule\n  init_args: "
RECIPE = Path(__file__).parents[2] / "examples" / "recipes" / "slowfast_multigrid.yaml"


def test_prepare_a_folder(source, capsys):
    output = source / "prepared"
    encoding = Encoding(short_side=32, crf=30.0, preset="ultrafast")
    options = [f"--{name}={value}" for name, value in vars(encoding).items()]
    arguments = [f"--source={source / 'train'}", f"--output={output}", *options]
    main(["prepare", *arguments, *SERIAL])
    printed = capsys.readouterr().out
    assert printed.startswith("3 videos made: ")
    assert printed.endswith(f"data:\n  init_args:\n    train: {output}\n")
    assert VideoList(output).read().classes == ("run", "swim")
    main(["prepare", *arguments, *SERIAL])
    assert capsys.readouterr().out.startswith("0 videos made, 3 there before: ")
    assert prepare(VideoList(source / "train").read(), output, encoding).there == 3


def test_prepare_all_splits_of_a_config(source, capsys):
    text = f"""{DATA}{{val: {source / "val"}}}
trainer: {{accelerator: gpu, devices: 8}}
data.init_args.train:
  class_path: lightning_multigrid.sources.VideoList
  init_args: {{source: {source / "train"}}}
"""
    (source / "config.yaml").write_text(text)
    main(["prepare", f"--config={source / 'config.yaml'}", f"--output={source / 'out'}", *QUICK])
    printed = capsys.readouterr().out
    for split, videos in (("train", 3), ("val", 1)):
        manifest = VideoList(source / "out" / split).read()
        assert len(manifest) == videos
        assert manifest.classes == ("run", "swim")  # those of training, in validation too
        assert f"\n    {split}: {source / 'out' / split}\n" in printed


def test_prepare_writes_planes_and_says_their_bytes(source, capsys):
    command = ["prepare", str(source / "train"), f"--output={source / 'out'}", "--store=planes", *SERIAL]
    for made in ("3 videos made: ", "0 videos made, 3 there before: "):
        main(command)
        printed = capsys.readouterr().out
        said, size = re.match(r"The planes of 3 videos take about (.*)\.\n.*: (.*)\.\n", printed).groups()
        assert made in printed
        assert [f"{float(text.split()[0]):.0f} {text.split()[1]}" for text in (said, size)] == ["167 kB", "168 kB"]
    main(["check", str(source / "out"), *SERIAL])
    main(["index", str(source / "out"), *SERIAL])
    said = "3 videos checked, 0 broken, damaged or cut.\nNothing to do: prepared videos need no frame tables"
    assert capsys.readouterr().out.startswith(said)


def test_a_folder_of_splits_is_read_as_by_init(source, capsys):
    (source / "both").mkdir()
    for split in ("train", "val"):
        (source / split).rename(source / "both" / split)
    main(["check", str(source / "both"), *SERIAL])
    assert capsys.readouterr().out == "4 videos checked, 0 broken, damaged or cut.\n"
    main(["prepare", str(source / "both"), f"--output={source / 'out'}", *QUICK])
    shown = capsys.readouterr().out
    for split in ("train", "val"):
        assert f"\n    {split}: {source / 'out' / split}\n" in shown
        assert VideoList(source / "out" / split).read().classes == ("run", "swim")


@pytest.mark.parametrize(
    ("data", "pixels"),
    [
        ("{size: 224}", 256),  # the paper's [256, 340] (Sec. 4)
        ("{size: 80}", 92),  # 91.4, even
        ("{size: 112, short_side: [140, 160]}", 140),
        ("{size: 112, test_views: {size: 128, crops: 3, short_side: 150}}", 150),
    ],
)
def test_the_short_side_of_a_config_is_what_its_clips_need(source, capsys, data, pixels):
    (source / "config.yaml").write_text(f"{DATA}{data}\n")
    command = ["prepare", f"--config={source / 'config.yaml'}", f"--data.train={source / 'train'}", *QUICK]
    main([*command, f"--output={source / 'out'}"])
    assert f"\nThe videos have a short side of {pixels:.0f} pixels or less." in capsys.readouterr().out


@pytest.fixture
def frames(tmp_path):
    """A folder per class, in which each video is a folder of images."""
    for name in ("run/a", "swim/b"):
        (tmp_path / "frames" / name).mkdir(parents=True)
        for number, frame in enumerate(numbered_frames(8, 48, 64)):
            Image.fromarray(frame).save(tmp_path / "frames" / name / f"{number}.png")
    return tmp_path / "frames"


def test_folders_of_frames_are_taken_at_a_rate(frames, capsys, tmp_path):
    main(["prepare", str(frames), "--frame_rate=12", f"--output={tmp_path / 'out'}", *QUICK])
    assert capsys.readouterr().out.startswith("2 videos made: ")
    with VideoReader(VideoList(tmp_path / "out").read().path(0)) as video:
        assert (len(video), video.rate) == (8, 12)
    main(["index", str(frames), "--frame_rate=12"])
    assert "neither do folders of frames" in capsys.readouterr().out
    (frames / "run" / "a" / "5.png").write_bytes(b"no image")
    with pytest.raises(SystemExit, match="1"):
        main(["check", str(frames), "--frame_rate=12", *SERIAL])
    assert "5.png is not an image" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["prepare", "--output=out"], ["check"], ["index"]])
def test_folders_of_frames_need_a_rate(command, frames, capsys, monkeypatch):
    monkeypatch.chdir(frames.parent)
    with pytest.raises(SystemExit, match="1"):
        main([command[0], "frames", *command[1:]])
    assert "The videos of frames are folders of images" in capsys.readouterr().err
    given = "--source=lightning_multigrid.sources.VideoList", "--source.source=frames"
    with pytest.raises(SystemExit, match="2"):
        main([command[0], *given, "--frame_rate=12", *command[1:]])
    assert "--frame_rate=12 is for a list or folder given by its path. A config" in capsys.readouterr().err
    main([command[0], *given, "--source.frame_rate=12", *command[1:], *SERIAL])


def test_official_annotations(source, capsys):
    (source / "trainlist01.txt").write_text("swim/b.mp4 2\n")
    (source / "classInd.txt").write_text("1 run\n2 swim\n")
    arguments = [f"--source.annotations={source / 'trainlist01.txt'}", f"--source.videos={source / 'train'}"]
    main(["check", "--source=lightning_multigrid.sources.UCF101", *arguments, *SERIAL])
    assert capsys.readouterr().out == "1 video checked, 0 broken, damaged or cut.\n"


def test_check_says_what_is_broken(source, capsys):
    (source / "train" / "run" / "e.mp4").write_bytes(b"no video")
    with pytest.raises(SystemExit, match="1"):
        main(["check", f"--source={source / 'train'}", f"--report={source / 'broken.csv'}", *SERIAL])
    printed = capsys.readouterr()
    assert printed.out == "4 videos checked, 1 broken, damaged or cut.\n"
    assert f"{source / 'train' / 'run' / 'e.mp4'}: not a video, or damaged" in printed.err
    main(["index", str(source / "val"), *SERIAL])
    assert capsys.readouterr().out.startswith("Frame tables of 1 video made. ")
    main(["check", str(source / "val"), *SERIAL])
    assert capsys.readouterr().err == ""  # no bar, either
    with open(source / "broken.csv", newline="") as file:
        assert [row[0] for row in csv.reader(file)] == ["path", str(source / "train" / "run" / "e.mp4")]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["prepare", "--source=x"], 2, "output"),
        (["prepare", "--output=x"], 2, "`prepare` needs either a list .* or --config"),
        (
            ["prepare", "x", "--output=y", "--store=planes", "--crf=18"],
            2,
            "are for `--store h264`, not for planes. Leave",
        ),
        (["prepare", "x", "--output=y", "--store=jpeg"], 2, "jpeg"),
        (["check", "--source=a", f"--config={RECIPE}"], 2, "`check` needs either a list .* or --config"),
        (["check", "--source=nothing"], 1, "nothing can't be read: No such file"),
        (["check", "--source=nothing", "--report=none/a.csv"], 1, "`--report` must be in a folder that is there, got"),
        (["check", "--speed=3"], 2, "speed"),
    ],
)
def test_mistakes_are_said_in_a_sentence(capsys, arguments, code, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=str(code)):
        main(arguments)
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert re.search(message, error)


def test_other_data_is_refused(source, capsys):
    text = f"{MODEL}data:\n  class_path: lightning.pytorch.demos.boring_classes.BoringDataModule\n"
    (source / "config.yaml").write_text(text)
    with pytest.raises(SystemExit, match="1"):
        main(["check", f"--config={source / 'config.yaml'}", *SERIAL])
    assert "`data` is BoringDataModule, a VideoDataModule is required" in capsys.readouterr().err


def test_index_keeps_tables_in_the_cache_and_goes_on_from_them(source, capsys, cache):
    (broken := source / "train" / "run" / "e.mp4").write_bytes(b"no video")
    for made in ("3 videos made, 1 broken", "0 videos made, 3 there before, 1 broken"):
        with pytest.raises(SystemExit, match="1"):
            main(["index", str(source / "train"), *SERIAL])
        printed = capsys.readouterr()
        assert printed.out.startswith(f"Frame tables of {made}. ")
        assert " ".join(printed.out.split()).endswith(f"They are in {cache / 'tables'}.")
        assert f"{broken}: not a video" in printed.err
    broken.unlink()
    main(["index", str(source / "train"), *SERIAL])
    assert "0 videos made, 3 there before" in capsys.readouterr().out


@pytest.mark.parametrize(("index", "options", "folder"), [("own", [], "own"), ("own", ["--output=other"], "other")])
def test_tables_are_kept_where_the_config_says(source, monkeypatch, index, options, folder):
    monkeypatch.chdir(source)
    (source / "config.yaml").write_text(f"{DATA}{{index: {index}, train: {source / 'train'}}}\n")
    for command in ("check", "index"):
        main([command, "--config=config.yaml", *options, *SERIAL])
        assert len(list((source / folder).rglob("*.table"))) == 3


@pytest.mark.parametrize("command", ["prepare", "check", "index"])
def test_help_shows_how_it_is_called(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    main([command, "--help"])
    shown = capsys.readouterr().out
    assert f"    lightning-multigrid {command} videos" in shown
    assert re.search(r"\n  -c( CONFIG)?, --config CONFIG\s", shown)  # once since Python 3.13
    words = " ".join(shown.split())
    if command == "prepare":
        assert f"By default {TASK_SECONDS / 3600:g} hours. " in words
        assert f"By default {Encoding.crf:g}. " in words
        assert f"By default `{Encoding.preset}`." in words
    assert max(map(len, shown.splitlines())) <= 80
    assert "--trainer." not in shown  # what it doesn't use
