"""A `Dataset` of folders of JPEG frames, of which it takes a random stretch.

python jpeg_frames.py alone|line|recommended
"""

import random
import sys
from pathlib import Path

import lightning as L
import torch
from measured import Measured, count_read, recommended
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, default_collate
from torchvision import transforms

from lightning_multigrid import MultigridCallback

VARIANT = sys.argv[1]
FRAMES = 16
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


class FrameDataset(Dataset):
    def __init__(self, root, train):
        self.train = train
        self.folders = sorted(path for path in Path(root).glob("*/*"))
        self.classes = sorted({folder.parent.name for folder in self.folders})
        to_tensor = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
        self.to_tensor = transforms.Compose([transforms.Resize(128), *to_tensor])
        self.crop = transforms.RandomCrop(112) if train else transforms.CenterCrop(112)

    def __len__(self):
        return len(self.folders)

    def __getitem__(self, index):
        count_read()
        folder = self.folders[index]
        paths = sorted(folder.glob("*.jpg"))
        first = random.randint(0, len(paths) - FRAMES) if self.train else (len(paths) - FRAMES) // 2
        images = [Image.open(path).convert("RGB") for path in paths[first : first + FRAMES]]
        clip = self.crop(torch.stack([self.to_tensor(image) for image in images]))
        return {"video": clip.permute(1, 0, 2, 3), "label": self.classes.index(folder.parent.name)}


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv3d(3, 16, (3, 7, 7), stride=(1, 4, 4), padding=(1, 3, 3), bias=False)
        self.conv2 = nn.Conv3d(16, 32, 3, stride=(1, 2, 2), padding=1, bias=False)
        self.conv3 = nn.Conv3d(32, 64, 3, stride=2, padding=1, bias=False)
        self.bn1, self.bn2, self.bn3 = nn.BatchNorm3d(16), nn.BatchNorm3d(32), nn.BatchNorm3d(64)
        self.fc = nn.Linear(64, 8)

    def forward(self, x):
        x = self.bn1(self.conv1(x)).relu()
        x = self.bn2(self.conv2(x)).relu()
        x = self.bn3(self.conv3(x)).relu()
        return self.fc(x.mean((2, 3, 4)))

    def training_step(self, batch, batch_idx):
        loss = nn.functional.cross_entropy(self(batch["video"]), batch["label"])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        correct = self(batch["video"]).argmax(1) == batch["label"]
        self.log("val_acc", correct.float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3, weight_decay=0.01)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=self.trainer.max_epochs)
        return [optimizer], [scheduler]


def named(samples):
    """A mini-batch of samples `(clip, label)`, as the module reads it."""
    video, label = default_collate(samples)
    return {"video": video, "label": label}


def main():
    L.seed_everything(0, workers=True)
    train, val = FrameDataset("frames/train", train=True), FrameDataset("frames/val", train=False)
    collate = default_collate
    if VARIANT == "recommended":
        train, val = recommended(1, MEAN, STD)
        collate = named
    callbacks = [Measured()]
    if VARIANT != "alone":
        callbacks += [MultigridCallback()]
    trainer = L.Trainer(max_epochs=12, callbacks=callbacks, check_val_every_n_epoch=3, logger=False)
    train_loader = DataLoader(train, batch_size=8, shuffle=True, drop_last=True, num_workers=2, collate_fn=collate)
    trainer.fit(Classifier(), train_loader, DataLoader(val, batch_size=8, num_workers=2, collate_fn=collate))


if __name__ == "__main__":
    main()
