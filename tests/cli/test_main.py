"""The command line as a user types it, in this process; one real process as a proof of the installed script."""

import errno
import io
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import warnings
from functools import partial
from inspect import signature
from unittest import mock

import lightning as L
import numpy as np
import pytest
import torch
import yaml
from lightning.fabric.accelerators import CUDAAccelerator
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch.optim.lr_scheduler import MultiStepLR

from lightning_multigrid import Baseline, BatchShape, MultigridSchedule, Plan, VideoClassifier, __version__
from lightning_multigrid.cli import commands
from lightning_multigrid.cli.main import OURS, main
from lightning_multigrid.models import small_cnn
from tests.helpers.planned import planned
from tests.helpers.sampling import sampled
from tests.helpers.tiny import Module, trainer
from tests.helpers.videos import numbered_frames, write_video

KINETICS = MultigridSchedule(Baseline(BatchShape(8, 32, 224), epochs=239, milestones=(94, 154, 196), stride=2))


def config(tmp_path, **trainer):
    cnn = {"class_path": "lightning_multigrid.models.small_cnn", "init_args": {"num_classes": 4}}
    model = {"model": cnn, "num_classes": 4, "schedule": "steps", "milestones": [94, 154, 196]}
    data = {"train": str(tmp_path / "train.csv"), "batch_size": 8, "frames": 32, "size": 224}
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False)
    callbacks = [{"class_path": "lightning_multigrid.MultigridCallback.paper"}]
    values = {
        "model": {"class_path": "lightning_multigrid.VideoClassifier", "init_args": model},
        "data": {"class_path": "lightning_multigrid.VideoDataModule", "init_args": data},
        "trainer": {"max_epochs": 239, "accelerator": "cpu", "callbacks": callbacks, **quiet, **trainer},
    }
    (path := tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    return str(path)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    # Without a logger `fit` writes its config, and `predict` its table, to the current folder.
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path / "run")


@pytest.fixture
def videos(tmp_path):
    lines = []
    for index in range(8):
        write_video(tmp_path / f"{index}.mp4", numbered_frames(10, 48, 64))
        lines.append(f"{index}.mp4 {index % 4}")
    (tmp_path / "train.csv").write_text("\n".join(lines))
    return tmp_path


SMALL = ["--data.batch_size=1", "--data.frames=4", "--data.size=32", "--data.stride=1", "--model.milestones=[1]"]
# 8 videos: the first mini-batch must not be larger.
SMALL_CYCLE = ["--trainer.callbacks.long_cycle.factors=[[0.5,0.75],[1,1]]"]

NEWEST = {"class_path": "lightning_multigrid.NewestCheckpoint", "init_args": {"dirpath": "kept"}}
KEEPING = {"max_epochs": 1, "enable_checkpointing": True, "callbacks": [NEWEST]}
QUIET = [f"--trainer.{name}=false" for name in ("logger", "enable_checkpointing", "enable_progress_bar")]


def failure(capsys, args):
    with pytest.raises(SystemExit) as exit_info:
        main(args)
    error = capsys.readouterr().err
    assert exit_info.value.code not in (0, None)
    assert "Traceback" not in error
    return error.split("error:")[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["predct"], " `predct` is not a command. There are fit, validate, test, "),
        (["Prepare-"], ".\nDid you mean `prepare`?\n"),
        (["check", "folder", "another"], "unrecognized arguments: another\n"),
        (["check", "folder", "--seeds=3"], "unrecognized arguments: --seeds=3\n"),  # of `compare`
        (["plan", "--model=tests.cli.test_main.Warns"], "required: data\n"),
    ],
)
def test_what_is_no_command_folder_or_option_is_named_and_what_is_missing(words, said, capsys):
    assert said in failure(capsys, words)


@pytest.mark.parametrize("words", [["predict", "folder"], ["fit"], ["validate"], ["test"], ["plan"], ["compare"]])
def test_a_command_without_a_config_says_that_it_needs_one(words, capsys):
    said = failure(capsys, words)
    assert f"`{words[0]}` needs the config of a training, such as `--config multigrid.yaml`.\n" in said
    assert said.count("\n") == 2


# --- plan ---


def test_plan_needs_neither_data_nor_gpu(tmp_path, capsys, caplog):
    caplog.set_level("INFO")
    main(["plan", "--config", config(tmp_path, accelerator="gpu", devices=8, strategy="ddp"), "--step_time=0.5"])
    text, warned = capsys.readouterr()
    assert "Seed set" not in caplog.text  # nor what Lightning says of GPUs
    assert "GPU available" not in caplog.text
    assert f"Steps are not counted: {tmp_path / 'train.csv'} can't be read" in warned
    assert text.startswith("Multigrid schedule for a baseline of 8 x 32 x 224 (clips x frames x size) on each of 8")
    assert len([line for line in text.splitlines() if re.match(r"\s+\d+\s+\d.* - ", line)]) == len(KINETICS.phases)
    assert "358.5 passes over the data in 239 epochs, 3.42x fewer iterations" in text
    *_, clips_per_second, _, _, _ = text.split("\n\n")[1].splitlines()[-3].split()  # above the legend
    # 32, 16 and 8 clips, the short cycle of the last phase, in about the same time.
    assert float(clips_per_second) == pytest.approx(8 * (32 + 16 + 8) / 3 / 0.5, rel=0.1)


@pytest.mark.parametrize(("given", "world"), [([], 16), (["--devices=6"], 6)])
def test_plan_on_other_devices_than_the_config_says(tmp_path, given, world):
    path = config(tmp_path, devices=8, num_nodes=2)
    preview, _ = planned("--config", path, "--clips=48000", "--model.lr=0.4", *given)
    assert (preview.plan.world, preview.steps) == (world, Plan(KINETICS, 48_000, world=world).phase_steps)
    assert ("at the LR 0.4. For 6, as in this table" in preview.lr_notes[-1]) == (world == 6)


@pytest.mark.parametrize(
    ("devices", "world"),
    sampled([("auto", 1), (-1, 1), ([0, 3], 2), ("4", 4), ("0,1", 2), ("3,", 1)], ("auto", 1), ([0, 3], 2), ("3,", 1)),
)
def test_devices_of_a_config(tmp_path, devices, world):
    with pytest.MonkeyPatch.context() as four:  # Lightning's own count, on a machine of so many
        four.setattr("lightning.fabric.accelerators.cuda.num_cuda_devices", lambda: 4)
        assert devices in ("auto", -1) or len(CUDAAccelerator.parse_devices(devices)) == world
    preview, _ = planned("--config", config(tmp_path, devices=devices), "--clips=48000")
    assert preview.plan.world == world


def test_plan_by_measured_step_times(tmp_path, monkeypatch):
    monkeypatch.setattr(commands, "measure_steps", partial(commands.measure_steps, rounds=1))
    (tmp_path / "train.csv").touch()  # not read: the clips are given
    arguments = ["--config", config(tmp_path), "--clips=300", *SMALL, "--trainer.max_epochs=3"]
    preview, seconds = planned(*arguments, "--measure")
    assert seconds.keys() == dict(preview.shapes).keys()
    assert min(seconds.values()) > 0
    assert planned(*arguments, "--measure=false")[1] == {}


def test_plan_measures_the_loader_of_videos_that_are_here(tmp_path, monkeypatch, capsys, caplog):
    monkeypatch.setattr(commands, "measure_steps", lambda _, shapes, *__, **___: dict.fromkeys(dict(shapes), 1e-4))
    monkeypatch.setattr("lightning_multigrid.training.plan_ahead._SECONDS", 0.05)
    paths = [write_video(tmp_path / f"{number}.mp4", numbered_frames(24, 48, 64)) for number in range(8)]
    (tmp_path / "train.csv").write_text("".join(f"{path},{number % 4}\n" for number, path in enumerate(paths)))
    arguments = ["--config", config(tmp_path), *SMALL, *SMALL_CYCLE, "--trainer.max_epochs=3", "--data.num_workers=0"]
    arguments.append("--measure")

    def says(*more):
        main(["plan", *arguments, *more])
        return capsys.readouterr().out

    arguments.append(f"--data.index={tmp_path / 'tables'}")
    assert "The loader is not measured, as 8 videos lack frame tables. Make them first, with" in says()
    main(["index", *arguments[:-2], arguments[-1]])
    caplog.clear()
    assert "The loader is the limit. Without validations, the training takes about" in says()
    assert caplog.text.count("Classes of `train`") == 1
    missing = "The loader is not measured, as the videos are not here, or `--clips` stands for them."
    assert missing in says("--clips=8")
    paths[0].parent.joinpath("train.csv").unlink()
    assert missing in says()


@pytest.mark.parametrize(
    ("given", "measured", "told"),
    [("16", "16-mixed", False), ("bf16", "bf16-mixed", False), ("32", "32-true", False), ("bf16-true", None, True)],
)
def test_steps_are_measured_in_the_precision_of_the_training(tmp_path, monkeypatch, capsys, given, measured, told):
    seen = []
    monkeypatch.setattr(commands, "measure_steps", lambda *_, precision: seen.append(precision) or {})
    main(["plan", "--config", config(tmp_path), "--clips=300", "--measure", f"--trainer.precision={given}"])
    assert seen == [measured or given]
    assert (f"Steps are measured at 32 bits, and not in `precision: {given}`." in capsys.readouterr().err) == told


def test_plan_draws_the_figure(tmp_path, capsys, monkeypatch):
    path = tmp_path / "plan.png"
    main(["plan", "--config", config(tmp_path), f"--plot={path}"])
    assert path.read_bytes().startswith(b"\x89PNG")
    assert f"Drawn to {path}" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # not installed
    said = failure(capsys, ["plan", "--config", config(tmp_path), f"--plot={path}"])
    assert "A figure needs matplotlib: `pip install lightning-multigrid[plot]`." in said


@pytest.mark.parametrize("command", ["plan", "compare"])
@pytest.mark.parametrize(("plot", "said"), [("x.txt", ".png, .ps"), ("x", ".png, .ps"), ("no/x.png", "in a folder")])
def test_what_cannot_be_drawn_is_refused_before_the_work(tmp_path, command, plot, said, capsys, monkeypatch):
    for work in ("preview", "compare"):
        monkeypatch.setattr(commands, work, None)
    error = failure(capsys, [command, "--config", config(tmp_path), f"--plot={plot}"])
    assert error.startswith(" `--plot` must be ")
    assert said in error
    assert f", got {plot!r}" in error


def test_plan_of_a_preset():
    preview, _ = planned("--like", "kinetics-i3d-1gpu", "--clips=240000")
    assert preview.plan.schedule.baseline.shape == BatchShape(8, 8, 224)
    assert preview.plan.baseline_steps == 1_200_000  # Sec. 5
    assert sum(preview.steps) == pytest.approx(343_000, rel=0.02)  # of the published code, in whole epochs


def test_plan_with_a_scheduler_that_counts_steps_needs_clips(tmp_path, capsys):
    class_path = "tests.cli.test_main.StepScheduled"
    args = ["plan", "--config", config(tmp_path), f"--model={class_path}"]
    assert "Give their number with `--clips`" in failure(capsys, args)
    main([*args, "--clips=800"])
    steps, baseline_steps = re.search(r"(\d+) steps instead of (\d+), 358.5 passes", capsys.readouterr().out).groups()
    assert int(baseline_steps) == 239 * 100
    assert int(steps) % 239 == 0  # each epoch has as many


def test_plan_refusals(tmp_path, capsys):
    args = ["plan", "--config", config(tmp_path)]
    for options, said in (
        (["--data=lightning.pytorch.demos.boring_classes.BoringDataModule"], "got BoringDataModule"),
        (["--devices=0"], "`--devices` must be at least 1, got 0"),
        (["--devices=-3"], "`--devices` must be at least 1, got -3"),
        (["--clips=0"], "`--clips` must be at least 1, got 0"),
        (["--step_time=0"], "`--step_time` must be above 0, got 0.0"),
    ):
        assert said in failure(capsys, [*args, *options])
    said = failure(capsys, [*args, "--like", "kinetics-i3d"])
    assert "argument --like: not allowed with argument -c/--config\n" in said
    said = failure(capsys, ["plan", "--like", "kinetics"])
    assert "argument --like: invalid choice: 'kinetics' (choose from 'charades-slowfast', 'kinetics-i3d'" in said


# --- fit and its friends ---


def test_fit_validate_test_predict(videos, capsys):
    path = config(videos, max_epochs=2, enable_model_summary=False)
    sources = [f"--data.{split}={videos / 'train.csv'}" for split in ("val", "test", "predict")]
    for command in ("fit", "validate", "test", "predict"):
        main([command, *SMALL, *SMALL_CYCLE, *sources, "--config", path])
        shown, warned = capsys.readouterr()
        assert ("warning: There is no `--ckpt_path`, so the weights are the untrained" in warned) == (command != "fit")
        assert "val/top1" in shown or command != "validate"


def test_the_names_of_classes_are_saved_beside_the_config_and_name_the_predictions(videos, capsys):
    names = ["run", "fly", "jump high", "swim"]
    (videos / "train.csv").write_text("\n".join(f"{index}.mp4,{names[index % 4]}" for index in range(8)))
    path = config(videos, max_epochs=2, enable_model_summary=False)
    main(["fit", *SMALL, *SMALL_CYCLE, "--config", path])
    saved = videos / "run" / "classes.txt"
    assert saved.read_text() == "fly\njump high\nrun\nswim\n"
    assert (videos / "run" / "config.yaml").is_file()
    saved.write_text("my own\n")  # the folder is not the run's alone, as there is no logger
    main(["fit", *SMALL, *SMALL_CYCLE, "--config", path])
    assert saved.read_text() == "my own\n"
    assert f"{saved} has other names than the classes of this training" in capsys.readouterr().err.replace("\n", " ")
    saved.write_text("fly\njump high\nrun\nswim\n")
    (videos / "train.csv").write_text("0.mp4,swim\n1.mp4,fly\n")
    source = ["--data.train=lightning_multigrid.sources.VideoList", f"--data.train.source={videos / 'train.csv'}"]
    main(["predict", str(videos / "train.csv"), *SMALL, "--config", path, *source, f"--data.train.classes={saved}"])
    rows = (videos / "run" / "predictions.csv").read_text().splitlines()[1:]
    assert [set(row.split(",")[1::2]) for row in rows] == [set(names)] * 2


def test_weights_of_a_checkpoint_are_not_warned_of_and_a_missing_last_one_is_refused(videos, capsys):
    path = config(videos, **KEEPING)
    words = ["--config", path, *SMALL, f"--data.val={videos / 'train.csv'}"]
    with pytest.warns(UserWarning, match="no last checkpoint"):  # Lightning's
        said = failure(capsys, ["validate", *words, "--ckpt_path=last"])
    assert "`--ckpt_path last` finds no checkpoint of the config's callbacks. Train first" in said
    main(["fit", *words])
    main(["validate", *words, "--ckpt_path=last"])
    assert "warning: There" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("empty", "`--ckpt_path ` is not there ("),
        ("best", "`best` is known only while it trains"),
        ("none", "is not there ("),
        ("text", "is not a checkpoint, or only a part of one. Give a check"),
        ("home", "a.ckpt` is not a checkpoint of Lightning"),
        ("cut", "is not a checkpoint, or only a part"),
        ("numpy", "is not a checkpoint, or only a part"),
        ("folder", "is a folder. Give a checkpoint of `fit`, such as "),
        ("tensors", "is not a checkpoint of Lightning: it has no `state_dict`. To train from its weights"),
        ("weights", "is not a checkpoint of Lightning: it has no `pytorch-lightning_version`. To train from"),
        ("other", "The weights of the checkpoint don't fit BoringModel: Missing"),
    ],
)
def test_what_is_no_checkpoint_of_this_model_is_refused_in_a_sentence(tmp_path, capsys, monkeypatch, kind, said):
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "a.ckpt"
    other = {"state_dict": {"other": torch.zeros(1)}, "pytorch-lightning_version": L.__version__, "epoch": 0}
    del other["pytorch-lightning_version" if kind == "weights" else "epoch"]
    torch.save({"a": 1} if kind in ("tensors", "home") else other, path)
    if kind == "numpy":
        with path.open("wb") as file:
            np.savez(file, a=np.zeros(1))
    if kind in ("text", "cut"):
        path.write_bytes(b"hello" if kind == "text" else path.read_bytes()[:-100])
    if kind == "none":
        path.unlink()
    given = {"empty": "", "best": "best", "home": "~/a.ckpt", "folder": tmp_path}.get(kind, path)
    boring = "lightning.pytorch.demos.boring_classes.Boring"
    words = ["--config", config(tmp_path), f"--model={boring}Model", f"--data={boring}DataModule"]
    error = failure(capsys, ["validate", *words, f"--ckpt_path={given}"])
    assert said in error
    assert error.count("\n") <= 2


def test_a_script_loads_the_module_of_a_config_with_its_checkpoint_alone(videos):
    path = config(videos, **KEEPING)
    main(["fit", "--config", path, *SMALL, "--model.optimizer=torch.optim.AdamW", "--model.optimizer.lr=0.01"])
    loaded = VideoClassifier.load_from_checkpoint("kept/last.ckpt")
    given = VideoClassifier.load_from_checkpoint("kept/last.ckpt", model=small_cnn(4), weights_only=True)
    for module in (loaded, given):
        assert module.milestones == (1,)
        assert [group["lr"] for group in module.configure_optimizers()["optimizer"].param_groups] == [0.01, 0.01]
    saved = torch.load("kept/last.ckpt", weights_only=True)["state_dict"]
    assert all(torch.equal(saved[name], value) for name, value in loaded.state_dict().items())


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("fit", {}),
        ("validate", {"_class_path": "tests.cli.test_main.Recorded"}),
        ("test", {"_class_path": "not.there"}),
        ("predict", {"_class_path": "not.there"}),
    ],
)
def test_what_is_typed_counts_and_not_the_hyperparameters_of_a_checkpoint(tmp_path, command, named):
    """Nor does a name in them choose what is imported."""
    path = tmp_path / "a.ckpt"
    host = trainer(max_epochs=1, limit_train_batches=1)
    host.fit(Recorded(lr=0.5))
    host.save_checkpoint(path)
    torch.save(torch.load(path, weights_only=True) | {"hyper_parameters": {"lr": 0.5, **named}}, path)
    words = ["--model=tests.cli.test_main.Recorded", "--model.lr=0.25", "--trainer.max_epochs=1"]
    words += ["--data=lightning.pytorch.demos.boring_classes.BoringDataModule", *QUIET]
    main([command, *words, f"--ckpt_path={path}"])
    assert Recorded.made == 0.25


def test_predict_of_a_folder_leaves_a_table(videos):
    (videos / "train.csv").unlink()  # on another machine; neither its labels nor its classes are needed
    (videos / "new").mkdir()
    for index in range(2):
        (videos / f"{index}.mp4").rename(videos / "new" / f"{index}.mp4")
    path = config(videos, enable_model_summary=False)
    main(["predict", str(videos / "new"), "--config", path, *SMALL, "--data.test_views.crops=3"])
    header, *rows = (videos / "run" / "predictions.csv").read_text().splitlines()
    assert header == "path," + ",".join(f"class_{place},probability_{place}" for place in range(1, 5))
    assert [row.split(",")[0] for row in rows] == [str(videos / "new" / f"{index}.mp4") for index in range(2)]


def test_predict_leaves_the_table_that_the_config_asks_for(videos):
    writer = {"class_path": "lightning_multigrid.PredictionWriter", "init_args": {"path": "best.csv", "top_k": 1}}
    path = config(videos, enable_model_summary=False, callbacks=[writer])
    main(["predict", "--config", path, *SMALL, f"--data.predict={videos / 'train.csv'}"])
    assert len((videos / "run" / "best.csv").read_text().splitlines()) == 1 + 8
    assert not (videos / "run" / "predictions.csv").exists()


def test_show_draws_the_clips_of_a_config_on_each_grid(videos, capsys):
    shown = videos / "shown"
    words = ["show", "--config", config(videos), *SMALL, *SMALL_CYCLE, f"--output={shown}"]
    main([*words, "--trainer.callbacks.short_cycle.factors=[1]", "--clips=2"])
    assert capsys.readouterr().out.split() == [str(shown / "2x24.png"), str(shown / "4x32.png")]
    assert len([*shown.iterdir()]) == 2
    assert "at least 1, got 0" in failure(capsys, [*words, "--clips=0"])


def test_show_without_the_callback_draws_the_baseline(videos, capsys):
    main(["show", "--config", config(videos, callbacks=[]), *SMALL, f"--output={videos / 'shown'}"])
    assert [path.name for path in (videos / "shown").iterdir()] == ["4x32.png"]


# --- Errors and help ---


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--data.batch_size=-2"], "`batch_size` must be at least 1, got -2"),
        (["--trainer.callbacks.epochfactor=1"], "'epochfactor' is not accepted"),
        (["--trainer.callbacks.short_cycle=null"], "Write `short_cycle: {factors: ...}`, with `factors: [1]` for"),
        (["--trainer.callbacks.long_cycle=[[1, 1]]"], "`long_cycle` of MultigridCallback has arguments of its own"),
        (["--trainer.acceleratr=gpu"], "unrecognized arguments: --trainer.acceleratr=gpu\n"),
        (["--trainer.max_epoch=3"], "unrecognized arguments: --trainer.max_epoch=3\n"),  # no abbreviation
        (["--trainer.callbacks+=lightning_multigrid.MultigridCallback"], "A training takes one MultigridCallback, got"),
        pytest.param(
            ["--trainer.accelerator=gpu"],
            "No supported gpu backend found!\n",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
        (["--config=missing.yaml"], "missing.yaml"),
        ([], "train.csv can't be read"),
    ],
)
def test_errors_of_users_are_one_paragraph(tmp_path, capsys, extra, message):
    assert message in failure(capsys, ["fit", "--config", config(tmp_path), *extra])


def test_errors_of_the_system_are_one_paragraph(tmp_path, capsys, monkeypatch):
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    error.__cause__ = RuntimeError("of a worker, without its frames")
    monkeypatch.setattr(commands, "count_clips", mock.Mock(side_effect=error))
    assert failure(capsys, ["plan", "--config", config(tmp_path)]) == " [Errno 28] No space left on device\n"


def test_warnings_of_the_script_are_shown_and_those_of_its_libraries_to_their_authors_are_not(tmp_path):
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        main(["plan", "--config", config(tmp_path), "--model=tests.cli.test_main.Warns", "--clips=8000"])
    assert [str(warned.message) for warned in shown if "will change" in str(warned.message)] == ["Mine will change."]


@pytest.mark.parametrize(("cores", "workers", "threads"), [(4, 1, 3), (2, 4, 1)])
def test_torch_leaves_cores_to_what_decodes(videos, monkeypatch, cores, workers, threads):
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(commands, "CORES", cores)
    set_threads = []
    monkeypatch.setattr(LightningCLI, "_run_subcommand", lambda *_: set_threads.append(torch.get_num_threads()))
    main(["fit", "--config", config(videos), f"--data.num_workers={workers}"])
    main(["fit", "--config", config(videos), f"--data.num_workers={workers}", "--threads=2"])
    assert set_threads == [threads, 2]


def test_a_name_that_the_output_cannot_show_ends_no_command(tmp_path, monkeypatch):
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, "ascii", write_through=True))
    monkeypatch.setattr(commands, "count_clips", lambda data: print("é") or 8000)
    main(["plan", "--config", config(tmp_path)])
    assert b"\\xe9\n" in output.getvalue()


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt, 130), (SIGTERMException, 143)])
def test_a_command_that_is_stopped_shows_no_traceback_and_is_no_success(tmp_path, capsys, monkeypatch, stop, code):
    monkeypatch.setattr(commands, "count_clips", mock.Mock(side_effect=stop))
    with pytest.raises(SystemExit, match=str(code)):
        main(["plan", "--config", config(tmp_path)])
    assert capsys.readouterr().err.strip() == ("Stopped." if code == 130 else "")


@pytest.mark.parametrize("words", [["migrate", "theirs.yaml"], ["check", "--help"], ["plan", "--like=kinetics-i3d"]])
def test_a_command_that_nobody_reads_ends_without_a_word(words, tmp_path, capfd, monkeypatch):
    (tmp_path / "run" / "theirs.yaml").write_text("TRAIN: {BATCH_SIZE: 8}")
    monkeypatch.setattr(commands, "count_clips", lambda _: 1000)
    reads, writes = os.pipe()
    os.close(reads)
    with open(writes, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        with pytest.raises(SystemExit, match="141"):
            main(words)
        print("what is written later")
    assert capfd.readouterr().err == ""


def test_a_pipe_that_is_not_the_output_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(commands, "count_clips", mock.Mock(side_effect=BrokenPipeError))
    with (tmp_path / "output").open("w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        with pytest.raises(BrokenPipeError):
            main(["plan", "--config", config(tmp_path)])


def test_sigterm_ends_what_a_command_has_started(tmp_path, monkeypatch):
    def started(*_):
        os.kill(os.getpid(), signal.SIGTERM)
        subprocess.run(["sleep", "600"], check=True)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(commands, "count_clips", started)
    with pytest.raises(SystemExit, match="143"):
        main(["plan", "--config", config(tmp_path)])
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_bug_keeps_its_traceback(tmp_path):
    with pytest.raises(ZeroDivisionError):
        main(["plan", "--config", config(tmp_path), "--model=tests.cli.test_main.Buggy"])


def test_all_options_of_fit_are_lightnings_and_those_that_its_help_names(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["fit", "--help_all"])
    told = capsys.readouterr().out
    main(["fit", "--help"])
    named = re.findall(r"^  --([\w.]+)", capsys.readouterr().out, re.MULTILINE)
    of_classes = {"data.batch_size", "model.lr", "help_all"}  # which a config names
    assert all(f"--{name}" in told for name in {*named} - of_classes)
    assert of_classes < {*named}


@pytest.mark.parametrize("command", [[], ["plan"]])
def test_help(command, capsys):
    main([*command, "--help"])
    text = capsys.readouterr().out
    if command == ["plan"]:
        assert text.startswith("usage: lightning-multigrid plan [--config CONFIG] [options]\n\nPrints the multigrid")
        own, _, lightnings = text.partition("\n------")
        assert "Number of training videos" in own
        assert "--trainer.max_epochs=10" in lightnings
    if not command:
        assert all(re.search(rf"^    {name} +\S", text, re.MULTILINE) for name in (*LightningCLI.subcommands(), *OURS))


@pytest.mark.parametrize("command", [*OURS, "fit"])
def test_help_names_all_that_our_commands_take_and_imports_nothing_that_trains(command):
    code = f"import sys; from lightning_multigrid.cli import main; main([{command!r}, '--help']); print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    shown, _, imported = shown.removesuffix("\n").rpartition("\n")
    assert not {"torch", "lightning", "jsonargparse"} & {*imported.split()}
    takes = {*signature(commands._OURS[command]).parameters} - {"cli", "datamodule"} if command in OURS else {"config"}
    assert {*re.findall(r"^  (?:--|-c.*--)?(\w+)", shown.lower(), re.MULTILINE)} >= takes


def test_a_path_may_start_from_the_home_folder_where_a_shell_leaves_it_so(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    words = ["~/videos", "--output=~/a=~/b", "--source.root", "~/c", "--data={train: ~/d}"]
    taken = ["--output=/home/me/a=~/b", "--source.root", "/home/me/c", "--data={train: ~/d}"]
    assert commands.typed("prepare", words) == [*taken, "--source=/home/me/videos"]


def test_the_version_is_told_without_importing_what_trains(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["lightning_multigrid", "--version"])
    monkeypatch.setitem(sys.modules, "lightning_multigrid.cli.commands", None)
    runpy.run_module("lightning_multigrid", run_name="__main__")
    assert capsys.readouterr().out == f"lightning-multigrid {__version__}\n"


def test_the_module_runs_as_a_program_and_torchrun_is_told_its_error(tmp_path, monkeypatch, capsys):
    """As torchrun's summary shows it; `test_launchers.py` runs torchrun itself."""
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    monkeypatch.setattr("faulthandler.enable", lambda **_: None)  # torch's; pytest has its own
    monkeypatch.setattr(sys, "argv", ["lightning_multigrid", "migrate", "nothing.yaml"])
    with pytest.raises(SystemExit) as left:
        runpy.run_module("lightning_multigrid", run_name="__main__")
    assert left.value.code == 1
    assert "nothing.yaml" in capsys.readouterr().err
    said = json.loads((tmp_path / "error.json").read_text())["message"]
    assert said["message"].startswith("FileNotFoundError: ")
    assert "in translate_pyslowfast" in said["extraInfo"]["py_callstack"]


# --- Classes that the tests above name ---


class StepScheduled(Module):
    def __init__(self):
        super().__init__(lambda one, _: {"scheduler": MultiStepLR(one, [9400, 15400]), "interval": "step"})


class Warns(Module):
    def __init__(self):
        super().__init__()
        of_lightning = {"filename": "file.py", "lineno": 1, "module": "lightning.pytorch.trainer"}
        warnings.warn_explicit("Lightning will change.", FutureWarning, **of_lightning)
        warnings.warn("Mine will change.", FutureWarning, stacklevel=1)


class Recorded(BoringModel):
    made: float

    def __init__(self, lr: float):
        super().__init__()
        self.save_hyperparameters()
        type(self).made = lr


class Buggy(Module):
    def configure_optimizers(self):
        return 1 / 0
