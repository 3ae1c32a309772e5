"""What decides a training, as a line: it changes where the code trains otherwise, and results are of older code then.

    python benchmarks/fingerprint.py                                            # of this code
    python benchmarks/fingerprint.py --write benchmarks/results/quickstart      # beside results that this code has made

Two tiny trainings, with the callback and its baseline, note for each step which clips the model sees on which grid,
what BatchNorm hands to torch (the shape says of how many clips its statistics are), and with which LR, momentum and
weight decay the optimizer moves the weights: schedule, sampler, LR, statistics. What rounds differently on another
machine is not in it.
"""

import argparse
import hashlib
import inspect
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import nn
from torch.optim.lr_scheduler import MultiStepLR
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader, TensorDataset

from lightning_multigrid import MultigridCallback

NAME = "fingerprint.txt"
_CLIPS = 101  # so that epochs have tails


class _Statistics(TorchFunctionMode):
    """Notes what torch's BatchNorm gets."""

    def __init__(self, seen: list[str]) -> None:
        super().__init__()
        self._seen = seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func is nn.functional.batch_norm:
            given = inspect.signature(func).bind(*args, **named).arguments
            self._seen.append(f"{tuple(given['input'].shape)} {given['training']} {given['momentum']:.6g}")
        return func(*args, **named)


class _Module(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv3d(1, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten()
        )
        self.seen: list[str] = []

    def training_step(self, batch: Sequence[torch.Tensor], number: int) -> torch.Tensor:
        clips, labels = batch
        if not isinstance(self._trainer, L.Trainer):  # a rehearsal
            return nn.functional.cross_entropy(self.net(clips), labels % 4)
        self.seen.append(f"{tuple(clips.shape)} {labels.tolist()}")
        with _Statistics(self.seen):
            return nn.functional.cross_entropy(self.net(clips), labels % 4)

    def configure_optimizers(self) -> Any:
        module = self

        class Noting(torch.optim.SGD):
            def step(self, closure: Any = None) -> Any:
                loss = closure()
                (group,) = self.param_groups
                values = (f"{group[name]:.6g}" for name in ("lr", "momentum", "weight_decay"))
                module.seen.append(" ".join(values))
                super().step()
                return loss

        optimizer = Noting(self.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
        return [optimizer], [MultiStepLR(optimizer, [2, 3])]


def _training(callback: MultigridCallback) -> str:
    L.seed_everything(0, verbose=False)
    clips = torch.randn(_CLIPS, 1, 8, 16, 16, generator=torch.Generator().manual_seed(0))
    module = _Module()
    trainer = L.Trainer(
        max_epochs=4,
        callbacks=[callback],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(TensorDataset(clips, torch.arange(_CLIPS)), 2, shuffle=True))
    return str(module.seen)


def fingerprint() -> str:
    """Returns the hash of both trainings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        both = _training(MultigridCallback()), _training(MultigridCallback.baseline())
    return hashlib.sha256("".join(both).encode()).hexdigest()[:16]


def main(args: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="a folder of results of this code")
    given = parser.parse_args(args)
    line = fingerprint()
    print(line)
    if given.write is not None:
        (given.write / NAME).write_text(f"{line}\n")


if __name__ == "__main__":
    main()
