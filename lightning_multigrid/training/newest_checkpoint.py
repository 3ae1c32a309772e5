"""The newest state of a training, for `ckpt_path="last"`."""

import os
from datetime import timedelta

from typing_extensions import override

from lightning_multigrid.host import LightningModule, ModelCheckpoint, Trainer


class NewestCheckpoint(ModelCheckpoint):
    """Keeps the newest state of a training as `last.ckpt`: every few minutes, at the end, and where it is stopped.

    `fit(..., ckpt_path="last")` continues from it. `ModelCheckpoint(monitor=..., save_last=True)` writes `last.ckpt`
    only together with a better one (Lightning 2.6.6), so with it a training goes back to its best epoch.

    Args:
        dirpath: Folder of this training's checkpoints; another training in it writes over them.
        minutes: Minutes of training from one write to the next, at least 0 (after each step). A kill loses no more.

    Raises:
        ValueError: If `minutes` is negative.
    """

    def __init__(self, dirpath: str | os.PathLike[str], minutes: float = 5.0) -> None:
        if minutes < 0:
            raise ValueError(f"`minutes` must be at least 0, got {minutes:g}.")
        interval = timedelta(minutes=minutes)
        super().__init__(
            os.fspath(dirpath),
            filename=self.CHECKPOINT_NAME_LAST,
            train_time_interval=interval,
            save_on_exception=True,
            enable_version_counter=False,
        )

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.fast_dev_run:  # type: ignore[attr-defined]
            path = os.path.join(str(self.dirpath), self.CHECKPOINT_NAME_LAST + self.FILE_EXTENSION)
            trainer.save_checkpoint(path, weights_only=False)
