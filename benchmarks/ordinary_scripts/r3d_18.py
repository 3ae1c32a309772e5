"""torchvision's r3d_18 on clips of 112 pixels, on a GPU compiled and in bf16.

python r3d_18.py alone|line|recommended

On a CPU it trains in fp32, as bf16 takes three times as long there (Xeon with avx512_bf16, torch 2.14), and eagerly, as
the few steps of this benchmark don't pay for the compiler.
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
from torch.utils.data import DataLoader, Dataset, Subset
from torchvision.models.video import r3d_18
from torchvision.transforms import v2

from lightning_multigrid import MultigridCallback

VARIANT = sys.argv[1]
FRAMES, STRIDE = 16, 2
MEAN, STD = [0.43216, 0.394666, 0.37645], [0.22803, 0.22145, 0.216989]


class Videos(Dataset):
    def __init__(self, root, train):
        self.paths = sorted(Path(root).glob("*/*.mp4"))
        self.classes = sorted({path.parent.name for path in self.paths})
        self.train = train
        crop = v2.RandomCrop(112) if train else v2.CenterCrop(112)
        scale = v2.ToDtype(torch.float32, scale=True)
        self.transform = v2.Compose([v2.Resize((128, 171)), crop, scale, v2.Normalize(MEAN, STD)])

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
        self.net = r3d_18(num_classes=8)
        if torch.cuda.is_available():
            self.net.compile()

    def training_step(self, batch, batch_idx):
        clips, labels = batch
        return nn.functional.cross_entropy(self.net(clips), labels)

    def validation_step(self, batch, batch_idx):
        clips, labels = batch
        self.log("val_acc", (self.net(clips).argmax(1) == labels).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
        total = self.trainer.estimated_stepping_batches
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=total)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


if __name__ == "__main__":
    L.seed_everything(0)
    train, val = Videos("videos/train", train=True), Videos("videos/val", train=False)
    if VARIANT == "recommended":
        train, val = recommended(mean=MEAN, std=STD)
    train = Subset(train, range(0, len(train), 3))  # a third, as it takes long on a CPU
    callbacks = [Measured()]
    if VARIANT != "alone":
        callbacks += [MultigridCallback()]
    trainer = L.Trainer(
        max_epochs=4,
        callbacks=callbacks,
        check_val_every_n_epoch=4,
        logger=False,
        precision="bf16-mixed" if torch.cuda.is_available() else "32-true",
    )
    trainer.fit(
        Classifier(),
        DataLoader(train, batch_size=8, shuffle=True, num_workers=2, persistent_workers=True, drop_last=True),
        DataLoader(val, batch_size=8, num_workers=2, persistent_workers=True),
    )
