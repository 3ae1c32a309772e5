"""Models of other libraries by class path, and images."""

import runpy
from pathlib import Path

import lightning as L
import pytest

from lightning_multigrid.cli.main import main
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
    # With a path of its own, jsonargparse fills in defaults that `swin3d_t` refuses.
    model: {{class_path: torchvision.models.get_model, init_args: {{name: {name}}}, dict_kwargs: {{num_classes: 3}}}}
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "frames", "size", "first"),
    # S3D ends with a pool of 2 x 7 x 7, the map of 16 x 224 x 224, and has pools of 2 frames before.
    [("swin3d_t", 8, 32, "16 x 2 x 16"), ("s3d", 16, 224, "16 x 4 x 112")],
)
def test_models_of_torchvision_train_by_their_class_path(name, frames, size, first, tmp_path, monkeypatch, caplog):
    """The first shape of the long cycle has T/4 and S/sqrt 2, and the short cycle half of the size."""
    monkeypatch.chdir(tmp_path)
    write_video(tmp_path / "video.mp4", numbered_frames(20, 36, 48))
    (tmp_path / "videos.csv").write_text("".join(f"video.mp4 {number % 3}\n" for number in range(24)))
    (tmp_path / "config.yaml").write_text(CONFIG.format(name=name, frames=frames, size=size))
    main(["fit", "--config", "config.yaml", "--trainer.fast_dev_run=1"])
    assert first in caplog.text


def test_images_are_clips_of_one_frame(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    images, seen = runpy.run_path(str(EXAMPLES / "images.py")), []

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
