"""On a GPU, no step waits for the device: while steps run, torch raises an error for each operation that would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch

from lightning_multigrid import MovingShapesDataModule, MultigridCallback, VideoClassifier
from lightning_multigrid.models import small_cnn

pytestmark = pytest.mark.cuda


class NoWaiting(L.Callback):
    """Watches the last epoch, but for its first and last steps; in the first epoch the module looks at labels."""

    def __init__(self) -> None:
        self.watched = 0

    def on_train_batch_end(self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, *args: Any) -> None:
        batch, batches = trainer.fit_loop.epoch_loop.batch_idx, trainer.num_training_batches
        watches = trainer.current_epoch == trainer.max_epochs - 1 and 1 <= batch < batches - 2
        self.watched += watches
        torch.cuda.set_sync_debug_mode("error" if watches else "default")

    def teardown(self, *args: Any) -> None:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("multigrid", [False, True])
def test_steps_do_not_wait_for_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, multigrid: bool) -> None:
    monkeypatch.setenv("LIGHTNING_MULTIGRID_CACHE", str(tmp_path))
    data = MovingShapesDataModule(train_per_class=16, val_per_class=1, batch_size=4, frames=8, size=32, num_workers=1)
    watch = NoWaiting()
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="gpu",
        devices=1,
        callbacks=[*([MultigridCallback(seed=0)] if multigrid else []), watch],
        logger=False,
        enable_checkpointing=False,
        limit_val_batches=0,
    )
    trainer.fit(VideoClassifier(small_cnn(16), num_classes=16), data)
    assert watch.watched > 10
