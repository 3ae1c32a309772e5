"""Models of other libraries by class path, images, and what cannot take a grid."""

import re
import runpy
from pathlib import Path

import lightning as L
import pytest

from lightning_multigrid.cli.main import main
from tests.helpers.sampling import sampled
from tests.helpers.videos import numbered_frames, write_video

EXAMPLES = Path(__file__).parents[2] / "examples"

CONFIG = """
trainer:
  accelerator: cpu
  devices: 1
  logger: false
  enable_progress_bar: false
  enable_model_summary: false
  fast_dev_run: 2
  callbacks:
    - class_path: lightning_multigrid.MultigridCallback
model:
  class_path: lightning_multigrid.VideoClassifier
  init_args:
    model: {model}
    num_classes: 3
    lr: 0.01
data:
  class_path: lightning_multigrid.VideoDataModule
  init_args:
    train: videos.csv
    batch_size: 1
    frames: {frames}
    size: {size}
"""


def torchvision_model(name):
    """A model by `get_model`: with its own path, jsonargparse fills in defaults that `swin3d_t` refuses."""
    return f"{{class_path: torchvision.models.get_model, init_args: {{name: {name}}}, dict_kwargs: {{num_classes: 3}}}}"


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Writes a config for a model, and videos beside it."""
    monkeypatch.chdir(tmp_path)
    write_video(tmp_path / "video.mp4", numbered_frames(20, 36, 48))
    (tmp_path / "videos.csv").write_text("".join(f"video.mp4 {number % 3}\n" for number in range(24)))

    def write(model, frames, size):
        text = CONFIG.format(model=model, frames=frames, size=size)
        (tmp_path / "config.yaml").write_text(text)
        return ["fit", "--config", "config.yaml"]

    return write


@pytest.mark.parametrize(
    "name",
    # In the ordinary tests a recipe trains r3d_18, and `test_models_on_grids.py` others of torchvision on every grid.
    sampled(["r3d_18", "swin3d_t", "mc3_18", "r2plus1d_18"]),
)
def test_models_of_torchvision_train_by_their_class_path(name, config, caplog):
    main(config(torchvision_model(name), frames=8, size=32))
    # The first shape of the long cycle: T/4 and S/sqrt 2.
    assert "16 x 2 x 16" in caplog.text


FLAT = """
from torch import nn

class Flat(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(3 * 8 * 32 * 32, 3))
"""


def test_what_cannot_take_a_grid_is_refused_with_the_way_out(config, capsys, tmp_path, monkeypatch):
    (tmp_path / "flat_model.py").write_text(FLAT)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SystemExit):
        main(config("{class_path: flat_model.Flat}", frames=8, size=32))
    message = " ".join(capsys.readouterr().err.split())
    assert "VideoClassifier cannot take clips of 2 x 16 x 16 (frames x height x width)" in message
    assert re.search(r"`model\.1` \(Linear\) fails with RuntimeError", message), message
    assert "end with a global pool" in message


@pytest.mark.slow
def test_a_model_with_pools_of_a_fixed_size_trains(config, caplog):
    """S3D ends with a pool of 2 x 7 x 7, the map of 16 x 224 x 224, and pools of 2 frames before."""
    main([*config(torchvision_model("s3d"), frames=16, size=224), "--trainer.fast_dev_run=1"])
    assert "16 x 4 x 112" in caplog.text


def test_images_are_clips_of_one_frame(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    images = runpy.run_path(str(EXAMPLES / "images.py"))
    seen = []

    class Recording(images["ImageClassifier"]):
        def training_step(self, batch, batch_idx):
            if isinstance(self._trainer, L.Trainer):  # the callback tries a copy without one
                seen.append(tuple(batch[0].shape))
            return super().training_step(batch, batch_idx)

    images["main"].__globals__["ImageClassifier"] = Recording
    trainer = images["main"](["--epochs=1", "--size=32", "--images=300"])
    assert trainer.current_epoch == 1
    # Eq. 1 without the frames: B x S^2 stays.
    assert {shape for shape in seen if shape[0] >= 16} >= {(64, 3, 16, 16), (32, 3, 23, 23), (16, 3, 32, 32)}
    assert all(clips * size * size <= 1.05 * 16 * 32 * 32 for clips, _, size, _ in seen)


def test_the_baseline_of_images_is_the_same_script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    images = runpy.run_path(str(EXAMPLES / "images.py"))
    trainer = images["main"](["--epochs=1", "--size=32", "--images=32", "--baseline"])
    assert trainer.global_step == 2
