"""pytorchvideo's `LabeledVideoDataset` on a folder of videos, as in its tutorial.

python labeled_video_dataset.py alone|line|recommended
"""

import sys
from pathlib import Path

import lightning as L
import torch
from measured import Measured, count_read, recommended
from pytorchvideo.data import labeled_video_dataset, make_clip_sampler
from torch import nn
from torch.utils.data import DataLoader, default_collate
from torchvision.transforms import v2

from lightning_multigrid import MultigridCallback

VARIANT = sys.argv[1]
FRAMES, STRIDE, RATE = 16, 2, 30


class VideoDataModule(L.LightningDataModule):
    def dataset(self, split, sampler, crop):
        normalize = [v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.45] * 3, [0.225] * 3)]
        transform = v2.Compose([v2.Resize(128), crop, *normalize])

        def transform_clip(sample):
            count_read()
            moments = torch.linspace(0, sample["video"].shape[1] - 1, FRAMES).long()
            video = sample["video"][:, moments].transpose(0, 1).to(torch.uint8)
            return {"video": transform(video).transpose(0, 1), "label": sample["label"]}

        clip_sampler = make_clip_sampler(sampler, FRAMES * STRIDE / RATE)
        return labeled_video_dataset(f"videos/{split}", clip_sampler, transform=transform_clip, decode_audio=False)

    def train_dataloader(self):
        return DataLoader(self.dataset("train", "random", v2.RandomCrop(112)), batch_size=8, num_workers=2)

    def val_dataloader(self):
        return DataLoader(self.dataset("val", "uniform", v2.CenterCrop(112)), batch_size=8, num_workers=2)


class Recommended(L.LightningDataModule):
    """As docs/faster.md recommends; the module reads `video` and `label`, as above."""

    def __init__(self):
        super().__init__()
        self.train, self.val = recommended(mean=[0.45] * 3, std=[0.225] * 3)

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=8, shuffle=True, num_workers=2, collate_fn=named)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=8, num_workers=2, collate_fn=named)


def named(samples):
    video, label = default_collate(samples)
    return {"video": video, "label": label}


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv3d(3, 16, (3, 7, 7), (1, 4, 4), (1, 3, 3), bias=False), nn.BatchNorm3d(16), nn.ReLU(),
            nn.Conv3d(16, 32, 3, (1, 2, 2), 1, bias=False), nn.BatchNorm3d(32), nn.ReLU(),
            nn.Conv3d(32, 64, 3, 2, 1, bias=False), nn.BatchNorm3d(64), nn.ReLU(),
            nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(64, 8),
        )  # fmt: skip

    def training_step(self, batch, batch_idx):
        loss = nn.functional.cross_entropy(self.net(batch["video"]), batch["label"])
        self.log("train_loss", loss.item())
        return loss

    def validation_step(self, batch, batch_idx):
        correct = self.net(batch["video"]).argmax(1) == batch["label"]
        self.log("val_acc", correct.float().mean(), batch_size=len(correct))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3)


if __name__ == "__main__":
    L.seed_everything(0, workers=True)
    callbacks = [Measured()]
    if VARIANT == "line":
        clips = len([*Path("videos/train").glob("*/*.mp4")])  # a stream has no length
        callbacks += [MultigridCallback(clips_per_epoch=clips)]
    elif VARIANT == "recommended":
        callbacks += [MultigridCallback()]
    trainer = L.Trainer(max_epochs=12, callbacks=callbacks, check_val_every_n_epoch=3, logger=False)
    trainer.fit(Classifier(), Recommended() if VARIANT == "recommended" else VideoDataModule())
