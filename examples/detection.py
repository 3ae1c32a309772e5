"""Multigrid training of a detector: the boxes of the frames follow the clip to other frames and sizes.

python examples/detection.py                # multigrid
python examples/detection.py --baseline     # the same script without the callback
"""

import lightning as L
import torch
from moving_squares import MovingSquares, read_options, train
from torch import nn
from torchvision.ops import box_iou

from lightning_multigrid import MultigridCallback


class Detector(L.LightningModule):
    """Finds one object per frame: where it is from a heat map, and how large from the features there."""

    def __init__(self, epochs):
        super().__init__()
        layers, channels = [], 3
        for stride in (1, 2, 2):
            layers += [nn.Conv3d(channels, 24, 3, (1, stride, stride), 1, bias=False), nn.BatchNorm3d(24), nn.ReLU()]
            channels = 24
        self.features = nn.Sequential(*layers)
        self.heat_and_size = nn.Conv3d(24, 3, 1)
        self.epochs = epochs

    def forward(self, video):
        """Boxes of the frames, B x T x 4, in pixels of the clip at hand, which the targets follow."""
        heat, width, height = self.heat_and_size(self.features(video)).unbind(1)  # B x T x H/4 x W/4 each
        rows, columns = (4 * (torch.arange(cells, device=heat.device) + 0.5) for cells in heat.shape[2:])
        share = heat.flatten(2).softmax(2).view(heat.shape)

        def mean(values):
            return (share * values).sum((2, 3))

        x, y, width, height = mean(columns), mean(rows[:, None]), mean(4 * width), mean(4 * height)
        return torch.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2], 2)

    def training_step(self, batch, batch_idx):
        return nn.functional.smooth_l1_loss(self(batch["video"]), batch["boxes"])

    def validation_step(self, batch, batch_idx):
        found, true = self(batch["video"]).flatten(0, 1), batch["boxes"].flatten(0, 1)
        self.log("IoU", box_iou(found, true).diagonal().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.epochs)]


def main(arguments=None):
    options = read_options(__doc__, arguments, epochs=8)
    # "T": a box per frame, taken at the frames of the clip; "xyxy": its four numbers are pixels of the clip.
    multigrid = MultigridCallback(clips=["video"], follow={"boxes": "Txyxy", "mask": "THW"})
    L.seed_everything(0, verbose=False)
    scores = train(Detector(options.epochs), MovingSquares, multigrid, options, gradient_clip_val=5)
    print(f"IoU of found and true boxes: {scores['IoU']:.2f}")
    return scores["IoU"]


if __name__ == "__main__":
    main()
