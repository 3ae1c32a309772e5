"""A `Dataset` that decodes videos with PyAV, and draws a random clip of each.

python pyav_clips.py alone|line|recommended
"""

import random
import sys
from itertools import islice
from pathlib import Path

import av
import lightning as L
import numpy as np
import torch
from measured import Measured, count_read, recommended
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from lightning_multigrid import MultigridCallback

VARIANT = sys.argv[1]
FRAMES, STRIDE = 16, 2


class VideoClipDataset(Dataset):
    def __init__(self, root, train):
        self.paths = sorted(Path(root).glob("*/*.mp4"))
        self.classes = sorted({path.parent.name for path in self.paths})
        self.train = train
        crop = v2.RandomCrop(112) if train else v2.CenterCrop(112)
        scale = v2.ToDtype(torch.float32, scale=True)
        self.transform = v2.Compose([v2.Resize(128), crop, scale, v2.Normalize([0.45] * 3, [0.225] * 3)])

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        count_read()
        path = self.paths[index]
        with av.open(str(path)) as container:
            spare = container.streams.video[0].frames - FRAMES * STRIDE
            start = random.randint(0, spare) if self.train else spare // 2
            frames = islice(container.decode(video=0), start, start + FRAMES * STRIDE, STRIDE)
            clip = np.stack([frame.to_ndarray(format="rgb24") for frame in frames])
        clip = self.transform(torch.from_numpy(clip).permute(0, 3, 1, 2))
        return clip.transpose(0, 1), self.classes.index(path.parent.name)


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv3d(3, 16, (3, 7, 7), stride=(1, 4, 4), padding=(1, 3, 3), bias=False), nn.BatchNorm3d(16), nn.ReLU(),
            nn.Conv3d(16, 32, 3, stride=(1, 2, 2), padding=1, bias=False), nn.BatchNorm3d(32), nn.ReLU(),
            nn.Conv3d(32, 64, 3, stride=2, padding=1, bias=False), nn.BatchNorm3d(64), nn.ReLU(),
            nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(64, 8),
        )  # fmt: skip

    def training_step(self, batch, batch_idx):
        clips, labels = batch
        return nn.functional.cross_entropy(self.net(clips), labels)

    def validation_step(self, batch, batch_idx):
        clips, labels = batch
        self.log("val_acc", (self.net(clips).argmax(1) == labels).float().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


L.seed_everything(0)
train, val = VideoClipDataset("videos/train", train=True), VideoClipDataset("videos/val", train=False)
if VARIANT == "recommended":
    train, val = recommended(mean=[0.45] * 3, std=[0.225] * 3)
callbacks = [Measured()]
if VARIANT != "alone":
    callbacks += [MultigridCallback()]
trainer = L.Trainer(max_epochs=12, callbacks=callbacks, check_val_every_n_epoch=3, logger=False)
trainer.fit(
    Classifier(),
    DataLoader(train, batch_size=8, shuffle=True, num_workers=2, persistent_workers=True),
    DataLoader(val, batch_size=8, num_workers=2, persistent_workers=True),
)
