"""The parts of small Lightning scripts: clips that can be told from one another, a module, and its variations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from tests.helpers.chosen_package import L

BATCH, FRAMES, SIZE, CLASSES, EPOCHS = 2, 4, 16, 3, 2
CLIPS = 96  # the coarsest grid of the default cycles has 32


def clip(index: int, frames: int = FRAMES, height: int = SIZE, width: int = SIZE) -> Tensor:
    """A clip C x T x H x W of values in [0, 1] that depend on its index, its frames and its places."""
    generator = torch.Generator().manual_seed(index)
    noise = torch.rand(3, frames, height, width, generator=generator)
    return 0.7 * noise + 0.1 * label(index)


def label(index: int) -> int:
    return index % CLASSES


class Clips(Dataset[Any]):
    """Clips and labels; `wrap` makes the sample of a script of them."""

    def __init__(self, wrap: Any = lambda x, y: (x, y), number: int = CLIPS, **sizes: int) -> None:
        self.wrap, self.number, self.sizes = wrap, number, sizes

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.number:
            raise IndexError(index)
        return self.wrap(clip(index, **self.sizes), label(index))


def loader(dataset: Any = None, **arguments: Any) -> DataLoader[Any]:
    dataset = Clips() if dataset is None else dataset
    return DataLoader(dataset, **{"batch_size": BATCH, "shuffle": True} | arguments)


def net(channels: int = 3, features: int = 4) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(
            nn.Conv3d(channels, features, 3, stride=2, padding=1),
            nn.BatchNorm3d(features),
            nn.ReLU(),
            nn.AdaptiveAvgPool3d(1),
            nn.Flatten(),
            nn.Linear(features, CLASSES),
        )


class Script(L.LightningModule):
    """A plain module. A subclass or an argument changes one thing."""

    def __init__(self, optimize: Any = None, unpack: Any = None, model: Any = None) -> None:
        super().__init__()
        self.net = net() if model is None else model()
        self.optimize = optimize or (lambda module: torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9))
        self.unpack = unpack or (lambda batch: batch)

    def forward(self, clips: Any) -> Tensor:
        return self.net(clips)

    def loss(self, batch: Any) -> Tensor:
        clips, labels = self.unpack(batch)
        return nn.functional.cross_entropy(self(clips), labels)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch)

    def configure_optimizers(self) -> Any:
        return self.optimize(self)


class WithValidation(Script):
    def val_dataloader(self) -> Any:
        return loader(Clips(number=6), shuffle=False)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        assert batch[0].shape == (BATCH, 3, FRAMES, SIZE, SIZE)
        clips, labels = batch  # of these clips as they are, not as the training data wrap them
        self.log("val_loss", nn.functional.cross_entropy(self(clips), labels))


def unpacked(unpack: Any) -> Any:
    """Makes modules that take mini-batches apart in this way."""
    return lambda: Script(unpack=unpack)


def of(wrap: Any, **sizes: int) -> Any:
    """Makes loaders of samples that are wrapped in this way."""
    return lambda: loader(Clips(wrap, **sizes))
