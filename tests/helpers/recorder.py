"""A module that keeps the mini-batches that it was given, and arguments of a data module for small ones."""

import lightning as L
import torch
from torch import nn

from tests.helpers.tiny import trainer

TINY = {"batch_size": 4, "frames": 4, "size": 16, "stride": 2}


class Recorder(L.LightningModule):
    """Classifies clips by their mean, and keeps what it was given."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 3)
        self.seen = {"train": [], "val": [], "test": [], "predict": []}

    def forward(self, clips):
        return self.head(clips.mean(dim=(2, 3, 4)))

    def keep(self, split, batch):
        if not self.trainer.sanity_checking:
            self.seen[split].append(batch)

    def training_step(self, batch, batch_idx):
        self.keep("train", batch)
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.keep("val", batch)

    def test_step(self, batch, batch_idx):
        self.keep("test", batch)

    def predict_step(self, batch, batch_idx):
        self.keep("predict", batch)
        return self(batch[0]).argmax(dim=1)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


def quiet_trainer(**options):
    return trainer(**{"max_epochs": 1, **options})
