"""The parts of small Lightning scripts: clips that can be told from one another, a module, and its variations."""

from typing import Any

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH, FRAMES, SIZE, CLASSES, EPOCHS = 2, 4, 16, 3, 2
SHUFFLES = True
CLIPS = 96  # the coarsest grid of the default cycles has 32


def clip(index, frames=FRAMES, height=SIZE, width=SIZE):
    """A clip C x T x H x W of values in [0, 1] that depend on its index, its frames and its places."""
    generator = torch.Generator().manual_seed(index)
    noise = torch.rand(3, frames, height, width, generator=generator)
    return 0.7 * noise + 0.1 * label(index)


def label(index):
    return index % CLASSES


class Clips(Dataset[Any]):
    """Clips and labels; `wrap` makes the sample of a script of them."""

    def __init__(self, wrap=lambda x, y: (x, y), number=CLIPS, **sizes):
        self.wrap, self.number, self.sizes = wrap, number, sizes

    def __len__(self):
        return self.number

    def __getitem__(self, index):
        if not 0 <= index < self.number:
            raise IndexError(index)
        return self.wrap(clip(index, **self.sizes), label(index))


def loader(dataset=None, **arguments):
    dataset = Clips() if dataset is None else dataset
    return DataLoader(dataset, **{"batch_size": BATCH, "shuffle": SHUFFLES} | arguments)


def net(channels=3):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        body = nn.Conv3d(channels, 4, 3, stride=2, padding=1), nn.BatchNorm3d(4), nn.ReLU(), nn.AdaptiveAvgPool3d(1)
        return nn.Sequential(*body, nn.Flatten(), nn.Linear(4, CLASSES))


class Script(L.LightningModule):
    """A plain module. A subclass or an argument changes one thing."""

    def __init__(self, optimize=None, unpack=None, model=None):
        super().__init__()
        self.net = net() if model is None else model()
        self.optimize = optimize or (lambda module: torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9))
        self.unpack = unpack or (lambda batch: batch)

    def forward(self, clips):
        return self.net(clips)

    def loss(self, batch):
        clips, labels = self.unpack(batch)
        return nn.functional.cross_entropy(self(clips), labels)

    def training_step(self, batch, batch_idx):
        return self.loss(batch)

    def configure_optimizers(self):
        return self.optimize(self)


class WithValidation(Script):
    def val_dataloader(self):
        return loader(Clips(number=6), shuffle=False)

    def validation_step(self, batch, batch_idx):
        assert batch[0].shape == (BATCH, 3, FRAMES, SIZE, SIZE)
        clips, labels = batch  # of these clips as they are, not as the training data wrap them
        self.log("val_loss", nn.functional.cross_entropy(self(clips), labels))


def unpacked(unpack):
    """Makes modules that take mini-batches apart in this way."""
    return lambda: Script(unpack=unpack)


def of(wrap, **sizes):
    """Makes loaders of samples that are wrapped in this way."""
    return lambda: loader(Clips(wrap, **sizes))
