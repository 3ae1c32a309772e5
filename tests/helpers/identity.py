"""What a script does with `MultigridCallback.baseline()` and without: traces of both, and in what they differ."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.loggers.logger import DummyLogger
from torch import Tensor

from lightning_multigrid import MultigridCallback
from tests.helpers import small_scripts
from tests.helpers.scripts import Style, run, tensors, weights

NUMBERS = (int, float, str, type(None))
IN_TRAINING = "random state in the training"
FOLLOWS = {"losses", "weights", "buffers", "logged values"}  # from the clips of a mini-batch

# What must differ, and why; all else that differs is a fault.
REASONS: dict[str, tuple[set[str], str]] = {
    "": ({IN_TRAINING}, "it is a function of the seed and the place, so that a run that continues has it"),
    **dict.fromkeys(
        [
            "Datasets and samples: random augmentation by torch, NumPy and `random`",
            "Datasets and samples: its own NumPy generator",
            "Datasets and samples: draws that no seed sets",
            "Loaders and samplers: mixup in `collate_fn`",
            "Several tensors per sample: boxes of each frame",
            "Several tensors per sample: boxes of the clip",
            "Several tensors per sample: key points",
            "Several tensors per sample: a mask of patches, made by the dataset",
        ],
        ({"order", "samples"}, "samples are drawn from the seed, the pass and the index, not from the worker's state"),
    ),
    **dict.fromkeys(
        [
            "Complete scripts: `import lightning as L`",
            "Loaders and samplers: `shuffle=True`",
            "Loaders and samplers: `SubsetRandomSampler`",
            "Loaders and samplers: a balanced sampler",
            "Loaders and samplers: a `DistributedSampler`",
            "Data of other libraries: webdataset",
            "Data of other libraries: webdataset, by two workers",
            "Data of other libraries: webdataset in torchdata's `StatefulDataLoader`",
        ],
        ({"order"}, "orders are drawn from the seed and the pass"),
    ),
    **dict.fromkeys(
        [
            "Loaders and samplers: `WeightedRandomSampler`",
            "Loaders and samplers: `RandomSampler` with replacement",
            "Loaders and samplers: a sampler with more clips than the data",
        ],
        ({"order", "samples", "labels"}, "the sampler draws which clips a pass has, from the seed and the pass"),
    ),
    "Loaders and samplers: `batch_sampler=BatchSampler(...)`": (
        {"order", "state of the sampler"},
        "the order is drawn; the loader that a script sees has the sampler of its `BatchSampler`",
    ),
    "Loaders and samplers: a last mini-batch that is smaller": (
        {"order", "samples", "labels"},
        "clips of the next pass fill it",
    ),
    "Modules and models: dropout": ({"losses", "weights", "buffers"}, "it draws from the random state"),
    "Data of other libraries: pytorchvideo's `LabeledVideoDataset`": (
        {"order", "samples", "labels", "steps", "files", "LR, momentum, decay"},
        "the stream ends before the epoch that the Trainer is told, and begins again",
    ),
}


def digest(*parts: Any) -> str:
    """A short name of tensors and of what prints the same where it is the same."""
    found = hashlib.blake2b(digest_size=6)
    for part in parts:
        found.update(
            part.detach().contiguous().cpu().view(-1).view(torch.uint8).numpy().tobytes()
            if isinstance(part, Tensor) and part.numel()
            else repr(part).encode()
        )
    return found.hexdigest()


def random_state() -> str:
    return digest(torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate())


def plain_values(thing: Any) -> dict[str, Any]:
    """The numbers and words that a dataset or a sampler holds."""
    return {name: value for name, value in getattr(thing, "__dict__", {}).items() if isinstance(value, NUMBERS)}


def numbers(optimizer: Any) -> list[dict[str, Any]]:
    """All numbers of the parameter groups: LR, momentum, weight decay, betas."""
    kinds = (int, float, tuple, Tensor)
    groups = [[item for item in group.items() if isinstance(item[1], kinds)] for group in optimizer.param_groups]
    return [{name: float(value) if isinstance(value, Tensor) else value for name, value in kept} for kept in groups]


class Names(DummyLogger):
    def __init__(self) -> None:
        super().__init__()
        self.logged: list[Any] = []

    def log_metrics(self, metrics: Any, step: Any = None) -> None:
        own = {name: value for name, value in metrics.items() if not name.startswith("multigrid/")}
        self.logged += [(step, own)] if set(own) - {"epoch"} else []


class Trace(L.Callback):
    """Notes what a training sees and does, by aspect."""

    def __init__(self) -> None:
        self.seen: dict[str, list[Any]] = {}

    def note(self, aspect: str, value: Any) -> None:
        self.seen.setdefault(aspect, []).append(value)

    def look(self, trainer: Any, module: Any) -> None:
        loader = trainer.train_dataloader
        self.note("state of the dataset", plain_values(getattr(loader, "dataset", None)))
        self.note("state of the sampler", plain_values(getattr(loader, "sampler", None)))
        self.note("buffers", {name: digest(buffer) for name, buffer in module.named_buffers()})

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.note("random state before the training", random_state())

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self.note("random state before the training", random_state())

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.note(IN_TRAINING, random_state())

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.look(trainer, pl_module)
        self.note("samples", Counter())
        self.note("labels", Counter())

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.note(IN_TRAINING, random_state())
        parts = [*tensors(batch)]
        clips = max(len(part) for part in parts if part.ndim)
        rows = [[part[row] for part in parts if part.ndim and len(part) == clips] for row in range(clips)]
        self.seen["samples"][-1].update(digest(*row) for row in rows)
        self.seen["labels"][-1].update(digest(*[part for part in row if not part.ndim]) for row in rows)
        self.note("order", [digest(*row) for row in rows])

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self.note("LR, momentum, decay", numbers(optimizer))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.note("losses", float(outputs["loss"]) if outputs else None)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self.note("validations", (trainer.current_epoch, trainer.global_step))
            self.note(IN_TRAINING, random_state())

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.look(trainer, pl_module)
        self.note("steps", (trainer.current_epoch, trainer.global_step))


def trace(style: Style, folder: Path, *callbacks: L.Callback) -> dict[str, Any]:
    names, notes = Names(), Trace()
    many = {} if "log_every_n_steps" in style.trainer else {"log_every_n_steps": 7}
    done = run(style, folder, *callbacks, notes, logger=names, **many)
    seen: dict[str, Any] = notes.seen
    seen["logged"] = [(step, sorted(metrics)) for step, metrics in names.logged]
    seen["logged values"] = names.logged
    seen["files"] = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    seen["weights"] = {name: digest(value) for name, value in weights(done.module).items()}
    return seen


def differences(style: Style, folder: Path) -> dict[str, tuple[Any, Any]]:
    """What differs with the callback: of each aspect both values. Only loaders that ask for it are shuffled."""
    small_scripts.SHUFFLES = False
    try:
        ours = trace(style, folder / "ours", MultigridCallback.baseline(**style.multigrid))
        plain = trace(style, folder / "plain")
    finally:
        small_scripts.SHUFFLES = True
    found = {name: (plain.get(name), ours.get(name)) for name in {**plain, **ours} if plain.get(name) != ours.get(name)}
    return {name: both for name, both in found.items() if "order" not in found or name not in FOLLOWS}
