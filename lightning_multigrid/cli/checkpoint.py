"""`--ckpt_path`: weights that no checkpoint gives are told."""

import sys

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_multigrid.cli.terminal import say


class LoadedWeights(Callback):
    """Warns if no checkpoint gives weights to what is evaluated, and refuses `last` if there is none.

    Args:
        given: `--ckpt_path`.
    """

    def __init__(self, given: str | None) -> None:
        self.given = given

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.ckpt_path is not None:
            return
        if self.given is not None:
            raise MisconfigurationException(
                f"`--ckpt_path {self.given}` finds no checkpoint where the config's callbacks write theirs. Train "
                "first, or give the file: `--ckpt_path FILE`."
            )
        if trainer.is_global_zero:
            say(
                "warning: There is no `--ckpt_path`, so the weights are those with which the config makes the model, "
                "without training; `PretrainedWeights` is for `fit` alone. Give `--ckpt_path FILE`, or `last`, which "
                "is what `NewestCheckpoint` has written.",
                sys.stderr,
            )

    on_test_start = on_predict_start = on_validation_start
