"""A `Dataset` that decodes videos with torchcodec, and draws a random clip of each.

python torchcodec_clips.py alone|line|recommended
"""

import random
import sys
from pathlib import Path

import lightning as L
import torch
from measured import Measured, count_read, recommended
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchcodec.decoders import VideoDecoder
from torchvision.transforms import v2

from lightning_multigrid import MultigridCallback

VARIANT = sys.argv[1]
FRAMES, STRIDE = 16, 2


class VideoFolder(Dataset):
    def __init__(self, root, train):
        self.train = train
        self.classes = sorted(folder.name for folder in Path(root).iterdir())
        self.samples = [(path, self.classes.index(path.parent.name)) for path in sorted(Path(root).glob("*/*.mp4"))]
        crop = v2.RandomCrop(112) if train else v2.CenterCrop(112)
        self.transform = v2.Compose([v2.Resize(128), crop, v2.ToDtype(torch.float32, scale=True)])

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        count_read()
        path, label = self.samples[index]
        decoder = VideoDecoder(path)
        spare = decoder.metadata.num_frames - FRAMES * STRIDE
        start = random.randint(0, spare) if self.train else spare // 2
        clip = decoder.get_frames_in_range(start, start + FRAMES * STRIDE, STRIDE).data
        return self.transform(clip), label  # T x C x H x W


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        layers = []
        for i, o, kernel, stride in [(3, 16, 7, (1, 4, 4)), (16, 32, 3, (1, 2, 2)), (32, 64, 3, 2)]:
            padding = (1, kernel // 2, kernel // 2)
            conv = nn.Conv3d(i, o, (3, kernel, kernel), stride=stride, padding=padding, bias=False)
            layers += [conv, nn.BatchNorm3d(o), nn.ReLU()]
        self.net = nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(64, 8))

    def forward(self, clips):
        if VARIANT != "recommended":
            clips = clips.transpose(1, 2)
        return self.net(clips * 2 - 1)

    def training_step(self, batch, batch_idx):
        clips, labels = batch
        loss = nn.functional.cross_entropy(self(clips), labels)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        clips, labels = batch
        self.log("val_acc", (self(clips).argmax(1) == labels).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
        return [optimizer], [torch.optim.lr_scheduler.MultiStepLR(optimizer, [8, 11])]


def main():
    L.seed_everything(0, workers=True)
    train, val = VideoFolder("videos/train", train=True), VideoFolder("videos/val", train=False)
    if VARIANT == "recommended":
        train, val = recommended()
    callbacks = [Measured()]
    if VARIANT != "alone":
        callbacks += [MultigridCallback()]
    trainer = L.Trainer(max_epochs=12, callbacks=callbacks, check_val_every_n_epoch=3, logger=False)
    trainer.fit(
        Classifier(),
        DataLoader(train, batch_size=8, shuffle=True, num_workers=2, persistent_workers=True),
        DataLoader(val, batch_size=8, num_workers=2),
    )


if __name__ == "__main__":
    main()
