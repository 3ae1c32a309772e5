"""Drawn clips of a square that moves, for the examples of detection, segmentation and self-supervised training."""

import argparse

import lightning as L
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class MovingSquares(Dataset):
    """Clips of a square that moves over noise, with everything that is known of them.

    A sample is a dict: `video` (3 x T x S x S, from 0 to 1), `mask` (T x S x S; 0 is the ground, 1 the square) and
    `boxes` (T x 4: x1, y1, x2, y2 in pixels).
    """

    def __init__(self, clips, frames=8, size=32, seed=0):
        self.clips, self.frames, self.size, self.seed = clips, frames, size, seed

    def __len__(self):
        return self.clips

    def __getitem__(self, index):
        return self.views(index, 1)[0]

    def views(self, index, number):
        """Samples of one movement: each has colours and noise of its own."""
        rng = np.random.default_rng((self.seed, index))
        edge = rng.uniform(0.2, 0.4) * self.size
        first, last = rng.uniform(0, self.size - edge, (2, 2))
        return [self.draw(first, last, edge, rng) for _ in range(number)]

    def draw(self, first, last, edge, rng):
        """Draws a square from its first to its last place (x, y)."""
        corner = first + np.linspace(0, 1, self.frames)[:, None] * (last - first)
        corner = corner.round()
        boxes = np.concatenate([corner, corner + round(edge)], 1).astype(np.float32)
        pixel = np.arange(self.size)
        across, down = [
            (boxes[:, axis, None] <= pixel) & (pixel < boxes[:, axis + 2, None]) for axis in (0, 1)
        ]  # T x S each
        mask = down[:, :, None] & across[:, None, :]
        ground, square = rng.uniform(0, 0.4, 3), rng.uniform(0.6, 1, 3)
        video = np.where(mask[None], square[:, None, None, None], ground[:, None, None, None])
        video += rng.normal(0, 0.1, video.shape)
        return {
            "video": torch.from_numpy(video.astype(np.float32)),
            "mask": torch.from_numpy(mask.astype(np.int64)),
            "boxes": torch.from_numpy(boxes),
        }


def read_options(description, arguments, epochs):
    """The options that the examples share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=int, default=256, help="drawn ones for training")
    parser.add_argument("--epochs", type=int, default=epochs)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--baseline", action="store_true", help="without the callback")
    return parser.parse_args(arguments)


def train(module, clips, multigrid, options, **arguments):
    """Trains a module on clips of a class, with the callback or without it; returns its scores on 64 other clips."""
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=options.epochs,
        callbacks=[] if options.baseline else [multigrid],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        **arguments,
    )
    trainer.fit(module, DataLoader(clips(options.clips), 8, shuffle=True, num_workers=options.workers))
    [scores] = trainer.validate(module, DataLoader(clips(64, seed=1), 64), verbose=False)
    return scores
