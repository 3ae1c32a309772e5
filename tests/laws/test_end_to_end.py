"""From videos on disk to a multigrid-trained model, as users run it."""

import os
import re
import runpy
import shlex
import sys
import warnings
from collections import Counter
from pathlib import Path

import lightning as L
import pytest

from lightning_multigrid import MultigridCallback, VideoClassifier, VideoDataModule
from lightning_multigrid.cli.main import main
from lightning_multigrid.models import small_cnn
from lightning_multigrid.video.broken_videos import BrokenVideoWarning
from tests.helpers.interrupts import ctrl_c, stopped
from tests.helpers.tiny import trainer

EXAMPLES = Path(__file__).parents[2] / "examples"
REAL_VIDEOS = Path(os.environ.get("LIGHTNING_MULTIGRID_TEST_VIDEOS") or Path(__file__).parents[3] / "shared" / "videos")


@pytest.mark.skipif(not REAL_VIDEOS.is_dir(), reason="the folder of real videos is not there")
def test_real_videos_of_many_codecs(tmp_path):
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "text.mp4").write_text("not a video")
    files = sorted(path for path in REAL_VIDEOS.iterdir() if path.suffix in {".mp4", ".mkv", ".avi", ".mov", ".webm"})
    bad = [tmp_path / name for name in ("empty.mp4", "text.mp4", "missing.mp4")]
    videos = tmp_path / "train.csv"
    videos.write_text("\n".join(f'"{path}",{index % 4}' for index, path in enumerate([*bad, *files, *files])))
    shape = {"batch_size": 1, "frames": 4, "size": 32, "stride": 1, "num_workers": 0}
    data, callback = VideoDataModule(train=str(videos), val=str(videos), **shape), MultigridCallback()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer(callback, max_epochs=2).fit(VideoClassifier(small_cnn(4, width=4), num_classes=4), datamodule=data)
    messages = [str(warning.message) for warning in caught if issubclass(warning.category, BrokenVideoWarning)]
    assert callback.report.times.all.steps
    named = Counter(path for path in data.broken for message in messages if f"{path}:" in message)
    assert set(named.values()) == {1}  # each broken file once
    assert {str(path) for path in bad} <= set(data.broken)
    assert len(data.broken) < len(files) / 2


# --- Examples ---


@pytest.mark.smallest
def test_the_quick_start_and_the_command_that_ctrl_c_prints_which_continues_it(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("LIGHTNING_MULTIGRID_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    few = ["--data.train_per_class=4", "--data.val_per_class=1", "--trainer.max_epochs=2", "--model.milestones=[1.5]"]
    few += ["--data.frames=8", "--data.size=32", "--trainer.logger=CSVLogger", "--trainer.logger.save_dir=."]
    trained, own = [], VideoClassifier.training_step

    def training_step(module, batch, batch_idx):
        if len(trained) == 5 and isinstance(module._trainer, L.Trainer):
            ctrl_c()
        trained.extend([batch_idx] if isinstance(module._trainer, L.Trainer) else [])
        return own(module, batch, batch_idx)

    monkeypatch.setattr(VideoClassifier, "training_step", training_step)
    with stopped():
        main(["fit", "--config", str(EXAMPLES / "quickstart.yaml"), *few])
    trained.append("stopped")
    [command] = re.findall(r"`--ckpt_path last` continues from .*:\n    lightning-multigrid (.*)", caplog.text)
    main(shlex.split(command))
    assert "Multigrid schedule for a baseline of 4 x 8 x 32" in caplog.text
    assert "Time per shape of mini-batch" in caplog.text
    assert any("val/top1" in path.read_text() for path in tmp_path.rglob("metrics.csv"))
    [steps] = set(re.findall(r"(\d+) steps instead of", caplog.text))
    assert len(trained) == int(steps) + 1
    assert f"The training ends in {tmp_path / 'quickstart_checkpoints' / 'last.ckpt'}: " in caplog.text


@pytest.mark.smallest
def test_own_training_loop_has_the_callbacks_losses(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["own_training_loop.py", "--root", str(tmp_path), "--videos", "2"])
    runpy.run_path(str(EXAMPLES / "own_training_loop.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert (
        float(re.search(r"the losses differ from those with MultigridCallback by at most (\S+)\.\n", printed)[1]) < 1e-5
    )
