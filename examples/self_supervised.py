"""Multigrid training without labels: two views of a video must have features that are alike (SimCLR).

Coarser mini-batches have more clips, so each view is told from more others: the loss is larger there.

    python examples/self_supervised.py                # multigrid
    python examples/self_supervised.py --baseline     # the same script without the callback
"""

import lightning as L
import torch
from moving_squares import MovingSquares, read_options, train
from torch import nn

from lightning_multigrid import MultigridCallback


class TwoViews(MovingSquares):
    """The same movement twice, each time in other colours and with other noise: two clips."""

    def __getitem__(self, index):
        return tuple(view["video"] for view in self.views(index, 2))


class Contrast(L.LightningModule):
    """Features of clips; those of two views of a video are more alike than those of different videos."""

    def __init__(self, epochs):
        super().__init__()
        layers, channels = [], 3
        for width in (16, 32, 64):
            layers += [nn.Conv3d(channels, width, 3, (1, 2, 2), 1, bias=False), nn.BatchNorm3d(width), nn.ReLU()]
            channels = width
        # Where the square is matters, so a grid of places is pooled, which has the same length on every grid.
        self.model = nn.Sequential(*layers, nn.AdaptiveAvgPool3d((2, 2, 2)), nn.Flatten(), nn.Linear(8 * 64, 32))
        self.epochs = epochs

    def forward(self, video):
        return nn.functional.normalize(self.model(video), dim=1)

    def training_step(self, batch, batch_idx):
        first, second = map(self, batch)
        alike = first @ second.T / 0.1
        own = torch.arange(len(alike), device=alike.device)
        return nn.functional.cross_entropy(alike, own) + nn.functional.cross_entropy(alike.T, own)

    def validation_step(self, batch, batch_idx):
        first, second = map(self, batch)
        found = (first @ second.T).argmax(1)
        self.log("found", (found == torch.arange(len(found), device=found.device)).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.epochs)]


def main(arguments=None):
    options = read_options(__doc__, arguments, epochs=8)
    # Both views are clips: they get the same frames and the same size.
    multigrid = MultigridCallback(clips=[0, 1])
    L.seed_everything(0, verbose=False)
    scores = train(Contrast(options.epochs), TwoViews, multigrid, options)
    print(f"Second views found by the first one, among 64: {scores['found']:.2f} (by chance 0.02)")
    return scores["found"]


if __name__ == "__main__":
    main()
