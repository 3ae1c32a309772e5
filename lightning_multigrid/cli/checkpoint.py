"""`--ckpt_path`: what is not a checkpoint is refused, and weights that no checkpoint gives are told."""

import re
import sys
import zipfile
from pathlib import Path

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_multigrid.cli.terminal import say
from lightning_multigrid.training import FROM_WEIGHTS, AtomicCheckpointIO

# What is in a checkpoint that is a folder, as FSDP and DeepSpeed write them.
_OF_STRATEGIES = (".metadata", "meta.pt", "latest", "checkpoint")
TRAIN_FROM_IT = f"To train from its weights as far as they fit, leave `--ckpt_path` out and give {FROM_WEIGHTS}."


def refuse_other_files(given: str) -> None:
    """Refuses a `--ckpt_path` that is missing, or that no training has written, before Lightning reads it."""
    if re.fullmatch("last|hpc|(?i:registry)(:.*)?|.*://.*", given):  # words of Lightning, and URLs
        return
    path = Path(given).expanduser()  # as Lightning reads it
    if not given or not path.exists():
        where = f"{path.absolute()}; `best` is known only while it trains"
        raise ValueError(f"`--ckpt_path {given}` is not there ({where}). Give a checkpoint of `fit`, or `last`.")
    if path.is_dir():
        if any((path / name).exists() for name in _OF_STRATEGIES):
            return
        files = sorted(path.glob("*.ckpt"), key=lambda file: file.stat().st_mtime)
        newest = f", such as {files[-1]}" if files else ""
        raise ValueError(f"`--ckpt_path {given}` is a folder. Give a checkpoint of `fit`{newest}, or `last`.")
    try:
        whole = zipfile.is_zipfile(path)  # torch writes archives, whose end says what is in them
        found = AtomicCheckpointIO().load_checkpoint(path, "meta") if whole else None  # type: ignore[arg-type]
    except RuntimeError:  # torch's, of other archives
        found = None
    if found is None:
        what = "is not a checkpoint, or only a part of one"
        raise ValueError(f"`--ckpt_path {given}` {what}. Give a checkpoint of `fit`, or `last`.")
    if missing := [name for name in ("state_dict", "pytorch-lightning_version") if name not in found]:
        what = f"is not a checkpoint of Lightning: it has no `{missing[0]}`"
        raise ValueError(f"`--ckpt_path {given}` {what}. {TRAIN_FROM_IT}")


class LoadedWeights(Callback):
    """Warns if no checkpoint gives weights to what is evaluated, and refuses `last` if there is none."""

    def __init__(self, ckpt_path: str | None) -> None:
        self.given = ckpt_path

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.ckpt_path is not None:
            return
        if self.given is not None:
            raise MisconfigurationException(
                f"`--ckpt_path {self.given}` finds no checkpoint of the config's callbacks. Train first, or give one."
            )
        if trainer.is_global_zero:
            say(
                "warning: There is no `--ckpt_path`, so the weights are the untrained ones of the config's model. "
                "`PretrainedWeights` is for `fit` alone. Give `--ckpt_path FILE`, or `last`, which is what "
                "`NewestCheckpoint` has written.",
                sys.stderr,
            )

    on_test_start = on_predict_start = on_validation_start
