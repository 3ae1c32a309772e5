"""On a GPU, no step waits for the device: while steps run, torch raises an error for each operation that would.

Without a GPU, fake CUDA tensors say so of what is done to clips: they have no values that could be read back.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_multigrid import Augmentation, MovingShapesDataModule, MultigridCallback, VideoClassifier, resample_clips
from lightning_multigrid.models import small_cnn
from tests.helpers.versions import not_torch_2_6

EDITS = Augmentation(rand_augment=2, erasing=0.5)


class NoWaiting(L.Callback):
    """Watches the last epoch, but for its first and last steps; in the first step the module looks at labels."""

    def __init__(self) -> None:
        self.watched = 0

    def on_train_batch_end(self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, *args: Any) -> None:
        batch, batches = trainer.fit_loop.epoch_loop.batch_idx, trainer.num_training_batches
        watches = trainer.current_epoch == trainer.max_epochs - 1 and 1 <= batch < batches - 2
        self.watched += watches
        torch.cuda.set_sync_debug_mode("error" if watches else "default")

    def teardown(self, trainer: L.Trainer, module: L.LightningModule, stage: str) -> None:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("multigrid", [False, True])
def test_steps_do_not_wait_for_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, multigrid: bool) -> None:
    monkeypatch.setenv("LIGHTNING_MULTIGRID_CACHE", str(tmp_path))
    data = MovingShapesDataModule(train_per_class=16, val_per_class=1, batch_size=4, frames=8, size=32, num_workers=1)
    data.augment = EDITS
    watch = NoWaiting()
    callbacks = [*([MultigridCallback(seed=0)] if multigrid else []), watch]
    quiet = {"logger": False, "enable_checkpointing": False, "limit_val_batches": 0}
    trainer = L.Trainer(accelerator="gpu", devices=1, max_epochs=2, callbacks=callbacks, **quiet)
    trainer.fit(VideoClassifier(small_cnn(16), num_classes=16), data)
    assert watch.watched > 10


class Copies(TorchDispatchMode):
    """Counts copies to the device, and refuses those for which the host would wait."""

    number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        copied = func(*args, **(kwargs or {}))
        from_host = any(isinstance(each, Tensor) and each.device.type == "cpu" and each.ndim for each in args)
        if from_host and isinstance(copied, Tensor) and copied.is_cuda:
            assert (kwargs or {}).get("non_blocking"), func
            self.number += 1
        return copied


@not_torch_2_6
def test_what_is_done_to_clips_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: tensor)  # which fake tensors can't
    with FakeTensorMode(allow_non_fake_inputs=True), Copies() as copies:
        clips = resample_clips([torch.empty(4, side, 40, 3, dtype=torch.uint8, device="cuda") for side in (30, 40)], 24)
        normalised = {"mean": (0.45,) * 3, "std": (0.225,) * 3}
        edited, _ = EDITS.apply(clips, torch.zeros(2, device="cuda"), (3, 4), num_classes=5, **normalised)
    assert (edited.shape, edited.device.type) == ((2, 3, 4, 24, 24), "cuda")
    assert copies.number > 3
