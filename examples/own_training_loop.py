"""Multigrid training in a loop of your own, without Lightning's Trainer; then the same training with it.

Both trainings see the same clips, in mini-batches of the same shapes, with the same LR, so their losses are the same:

    python examples/own_training_loop.py
"""

import argparse

import lightning as L
import torch
from torch.nn.functional import cross_entropy
from torch.optim import SGD
from torch.utils.data import DataLoader

from lightning_multigrid import (
    Baseline,
    BatchShape,
    MovingShapesDataModule,
    MultigridCallback,
    MultigridSchedule,
    ShortCycle,
    VideoClassifier,
    resample_clips,
    sub_batches,
)
from lightning_multigrid.clips import collate_clips
from lightning_multigrid.loading import MultigridLoader, MultigridSampler, shuffled_order
from lightning_multigrid.models import small_cnn
from lightning_multigrid.schedule import Plan

CLASSES, LR, DECAY, SEED = 16, 0.05, 1e-4, 0
BASELINE = Baseline(BatchShape(clips=4, frames=16, size=40), epochs=3, milestones=(1, 2))
SCHEDULE = MultigridSchedule(BASELINE, short_cycle=ShortCycle((1,)))  # which the callback would make, too


def new_model():
    torch.manual_seed(SEED)
    return small_cnn(CLASSES)


def own_loop(dataset):
    """Losses of a multigrid training by hand."""
    plan = Plan(SCHEDULE, len(dataset), seed=SEED)
    print(plan)
    sampler = MultigridSampler(plan, lambda number: shuffled_order(SEED, number, len(dataset)))
    loader = MultigridLoader(dataset, sampler, template=DataLoader(dataset, num_workers=1, collate_fn=collate_clips))

    model = new_model()
    optimizer = SGD(model.parameters(), lr=LR, momentum=0.9, weight_decay=DECAY)
    losses = []
    for epoch in range(plan.epochs):
        sampler.set_epoch(epoch)
        for step, batch in zip(plan.epoch(epoch), loader, strict=True):
            # The baseline's LR, times the scale of the phase. Fine-tuning begins with the LR of the stage before.
            stage = sum(step.baseline_epoch >= milestone for milestone in BASELINE.milestones)
            optimizer.param_groups[0]["lr"] = LR * 0.1**stage * step.lr_scale
            clips = resample_clips(batch.crops(), batch.size, flips=batch.flips)
            optimizer.zero_grad()
            with sub_batches(step.sub_batch, of=step.shape.clips, baseline_batches=step.baseline_batches):
                loss = cross_entropy(model(clips), batch.class_ids())
                loss.backward()
            optimizer.step()
            losses.append(loss.item())
            print(f"epoch {epoch}  {step.shape} (clips x frames x size)  loss {loss.item():.4f}")
    return losses


class Losses(L.Callback):
    """Keeps the loss of every step."""

    def __init__(self):
        self.values = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.values.append(outputs["loss"].item())


def with_lightning(data):
    """Losses of the same training with the callback."""
    losses = Losses()
    classifier = VideoClassifier(
        new_model(),
        CLASSES,
        lr=LR,
        weight_decay=DECAY,
        norm_weight_decay=DECAY,
        schedule="steps",
        milestones=BASELINE.milestones,
    )
    trainer = L.Trainer(
        max_epochs=BASELINE.epochs,
        accelerator="cpu",
        callbacks=[MultigridCallback(schedule=SCHEDULE, seed=SEED), losses],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
    )
    trainer.fit(classifier, datamodule=data)
    return losses.values


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", help="folder for the videos; by default the user's cache folder")
    parser.add_argument("--videos", type=int, default=8, help="training videos of each of the 16 classes")
    args = parser.parse_args()

    data = MovingShapesDataModule(
        args.root, train_per_class=args.videos, val_per_class=1, batch_size=BASELINE.shape.clips, num_workers=1
    )
    data.prepare_data()
    data.setup("fit")
    own = own_loop(data.train_dataloader().dataset)
    lightning = with_lightning(data)
    difference = max(abs(a - b) for a, b in zip(own, lightning, strict=True))
    print(f"{len(own)} steps; the losses differ from those with MultigridCallback by at most {difference:g}.")


if __name__ == "__main__":
    main()
