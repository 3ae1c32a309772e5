"""Multigrid training of an image classifier: an image is a clip of one frame.

Any torchvision model and any dataset of images C x H x W will do. There are no frames to leave out, so the long cycle
changes the size only. The paper did not try images: compare with the baseline before you rely on it.

    python examples/images.py                       # multigrid
    python examples/images.py --baseline            # the same script without the callback
    python examples/images.py --folder imagenet/train --size 224 --batch-size 64 --epochs 90
"""

import argparse

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import FakeData, ImageFolder
from torchvision.models import resnet18

from lightning_multigrid import LongCycle, MultigridCallback


class ImageClassifier(L.LightningModule):
    """A plain module, which knows nothing of grids."""

    def __init__(self, num_classes, epochs):
        super().__init__()
        self.model = resnet18(num_classes=num_classes)
        self.epochs = epochs

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.model(images), labels)
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
        milestones = [round(self.epochs * share) for share in (1 / 3, 2 / 3, 8 / 9)]
        return [optimizer], [torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones)]


def read_images(folder, size, generated):
    """Images from a folder per class, or so many random ones, from which nothing can be learned."""
    transform = transforms.Compose([transforms.RandomResizedCrop(size), transforms.ToTensor()])
    if folder is None:
        return FakeData(generated, (3, size, size), num_classes=10, transform=transform), 10
    images = ImageFolder(folder, transform)
    return images, len(images.classes)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", help="a folder per class; without it, generated images")
    parser.add_argument("--images", type=int, default=512, help="generated ones")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=9)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--baseline", action="store_true", help="without the callback")
    options = parser.parse_args(arguments)

    images, num_classes = read_images(options.folder, options.size, options.images)
    loader = DataLoader(images, options.batch_size, shuffle=True, num_workers=options.workers)
    multigrid = MultigridCallback(
        # Pairs (frames, size): an image has one frame on every grid.
        long_cycle=LongCycle(((1, 0.5), (1, 0.5**0.5), (1, 1))),
        # Image recipes compute batch statistics over the whole mini-batch, not over the 8 clips of video.
    )
    trainer = L.Trainer(
        max_epochs=options.epochs,
        callbacks=[] if options.baseline else [multigrid],
        logger=False,
        enable_checkpointing=False,
    )
    trainer.fit(ImageClassifier(num_classes, options.epochs), loader)
    return trainer


if __name__ == "__main__":
    main()
