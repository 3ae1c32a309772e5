"""Masked pre-training as multigrid training: a VideoMAE fills in the parts of a video that it was not shown.

The mask is made in the step, for the patches that the clips at hand have: coarse clips have fewer. A dataset can't make
it, as it doesn't know on which grid a clip will be.

    python examples/masked_pretraining.py                # multigrid
    python examples/masked_pretraining.py --baseline     # the same script without the callback
"""

import lightning as L
import torch
from moving_squares import MovingSquares, read_options, train
from torch.optim.lr_scheduler import LinearLR
from transformers import VideoMAEConfig, VideoMAEForPreTraining

from lightning_multigrid import MultigridCallback

TUBELET, PATCH = 2, 8


class Clips(MovingSquares):
    """Clips alone, without labels: pixels of mean 0 and variance 1, roughly."""

    def __getitem__(self, index):
        return (super().__getitem__(index)["video"] - 0.45) / 0.225


class MaskedAutoencoder(L.LightningModule):
    """A small VideoMAE that is shown half of the patches, the same ones in all frames of a clip."""

    def __init__(self, frames=8, size=32, width=64, layers=2, lr=2e-3):
        super().__init__()
        decoder = {"decoder_hidden_size": width, "decoder_num_hidden_layers": 1, "decoder_intermediate_size": 2 * width}
        config = VideoMAEConfig(
            num_frames=frames, image_size=size, tubelet_size=TUBELET, patch_size=PATCH, hidden_size=width,
            num_hidden_layers=layers, intermediate_size=2 * width, num_attention_heads=4, decoder_num_attention_heads=4,
            norm_pix_loss=False, **decoder,
        )  # fmt: skip
        self.model, self.lr = VideoMAEForPreTraining(config), lr

    def mask(self, clips):
        """True for each tubelet (two frames of a patch) that is hidden, as many in each clip."""
        number, _, frames, height, width = clips.shape
        patches = (height // PATCH) * (width // PATCH)
        hidden = torch.rand(number, patches, device=clips.device).argsort(1) < patches // 2
        return hidden.repeat(1, frames // TUBELET)  # tubelets are numbered frame by frame

    def forward(self, clips):
        """The loss: the mean squared error of hidden pixels, from 0 to 1."""
        return self.model(clips.transpose(1, 2), bool_masked_pos=self.mask(clips)).loss  # it takes B x T x C x H x W

    def training_step(self, clips, batch_idx):
        return self(clips)

    def validation_step(self, clips, batch_idx):
        self.log("explained", 1 - self(clips) / (0.225**2 * clips.var()))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=0.05)
        return [optimizer], [LinearLR(optimizer, 1.0, 0.05, self.trainer.max_epochs)]


def main(arguments=None):
    options = read_options(__doc__, arguments, epochs=60)
    L.seed_everything(0, verbose=False)
    scores = train(MaskedAutoencoder(), Clips, MultigridCallback(), options)
    print(f"Of the variance of hidden pixels, explained: {scores['explained']:.2f}")
    return scores["explained"]


if __name__ == "__main__":
    main()
