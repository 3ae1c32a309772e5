"""A Hugging Face `VideoMAEImageProcessor` in `__getitem__`, with the arguments of a published one but for the size.

python hugging_face.py alone|line|recommended
"""

import random
import sys
from itertools import islice
from pathlib import Path

import av
import lightning as L
import torch
from measured import Measured, count_read, recommended
from torch import nn
from torch.utils.data import DataLoader, Dataset, default_collate
from transformers import VideoMAEImageProcessor

from lightning_multigrid import MultigridCallback

VARIANT = sys.argv[1]
FRAMES, STRIDE = 16, 2
PROCESSOR = VideoMAEImageProcessor(size={"shortest_edge": 112}, crop_size={"height": 112, "width": 112})


class Videos(Dataset):
    def __init__(self, root):
        self.paths = sorted(Path(root).glob("*/*.mp4"))
        self.classes = sorted({path.parent.name for path in self.paths})

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        count_read()
        path = self.paths[index]
        with av.open(str(path)) as container:
            start = random.randint(0, container.streams.video[0].frames - FRAMES * STRIDE)
            chosen = islice(container.decode(video=0), start, start + FRAMES * STRIDE, STRIDE)
            frames = [frame.to_ndarray(format="rgb24") for frame in chosen]
        pixel_values = PROCESSOR(frames, return_tensors="pt")["pixel_values"][0]  # T x C x H x W
        return {"pixel_values": pixel_values, "labels": self.classes.index(path.parent.name)}


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv3d(3, 16, (3, 7, 7), (1, 4, 4), (1, 3, 3), bias=False), nn.BatchNorm3d(16), nn.ReLU(),
            nn.Conv3d(16, 32, 3, (1, 2, 2), 1, bias=False), nn.BatchNorm3d(32), nn.ReLU(),
            nn.Conv3d(32, 64, 3, 2, 1, bias=False), nn.BatchNorm3d(64), nn.ReLU(),
            nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 8),
        )  # fmt: skip

    def forward(self, pixel_values):
        return self.net(pixel_values.transpose(1, 2))

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self(batch["pixel_values"]), batch["labels"])

    def validation_step(self, batch, batch_idx):
        correct = self(batch["pixel_values"]).argmax(-1) == batch["labels"]
        self.log("val_acc", correct.float().mean(), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3, weight_decay=0.05)


def named(samples):
    """A mini-batch of samples `(clip, label)`, as the module reads it."""
    clips, labels = default_collate(samples)
    return {"pixel_values": clips.transpose(1, 2), "labels": labels}


if __name__ == "__main__":
    L.seed_everything(0)
    train, val = Videos("videos/train"), Videos("videos/val")
    collate = default_collate
    if VARIANT == "recommended":
        train, val = recommended(mean=PROCESSOR.image_mean, std=PROCESSOR.image_std)
        collate = named
    callbacks = [Measured()]
    if VARIANT != "alone":
        callbacks += [MultigridCallback()]
    trainer = L.Trainer(max_epochs=12, callbacks=callbacks, check_val_every_n_epoch=3, logger=False)
    loading = {"batch_size": 8, "num_workers": 2, "collate_fn": collate}
    trainer.fit(Classifier(), DataLoader(train, shuffle=True, **loading), DataLoader(val, **loading))
