"""Multigrid training of a segmentation model: the masks follow the clip to other frames and sizes.

python examples/segmentation.py                # multigrid
python examples/segmentation.py --baseline     # the same script without the callback
"""

import lightning as L
import torch
from moving_squares import MovingSquares, read_options, train
from torch import nn

from lightning_multigrid import MultigridCallback


class Segmenter(L.LightningModule):
    """A class for each pixel of each frame, from features of half the size."""

    def __init__(self, epochs):
        super().__init__()
        self.model = nn.Sequential(
            nn.Conv3d(3, 16, 3, (1, 2, 2), 1, bias=False),
            nn.BatchNorm3d(16),
            nn.ReLU(),
            nn.Conv3d(16, 16, 3, padding=1, bias=False),
            nn.BatchNorm3d(16),
            nn.ReLU(),
            nn.Conv3d(16, 2, 1),
        )
        self.epochs = epochs

    def forward(self, video):
        """Logits of the pixels, B x 2 x T x H x W."""
        return nn.functional.interpolate(self.model(video), video.shape[2:], mode="trilinear")

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self(batch["video"]), batch["mask"])

    def validation_step(self, batch, batch_idx):
        found, true = self(batch["video"]).argmax(1) == 1, batch["mask"] == 1
        self.log("IoU", (found & true).sum() / (found | true).sum())

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.epochs)]


def main(arguments=None):
    options = read_options(__doc__, arguments, epochs=4)
    # A mask has the frames and the pixels of its clip, so it is taken at the same frames, and at the nearest pixels.
    multigrid = MultigridCallback(clips=["video"], follow={"mask": "THW", "boxes": "Txyxy"})
    L.seed_everything(0, verbose=False)
    scores = train(Segmenter(options.epochs), MovingSquares, multigrid, options)
    print(f"IoU of found and true pixels of squares: {scores['IoU']:.2f}")
    return scores["IoU"]


if __name__ == "__main__":
    main()
