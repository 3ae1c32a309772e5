"""Draws which LR is which, as a multigrid training has logged them: `docs/images/lr.png`.

    python docs/figures/lr_in_use.py lr.png

The baseline has a warm-up and three LR stages. `LearningRateMonitor` logs the LR in `param_groups`, which is that of
the script's own schedule; the callback logs `multigrid/lr`, with which the optimizer updates. The model is one layer,
and the clips are random numbers.
"""

import argparse
import csv
import tempfile
from itertools import pairwise
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger
from matplotlib.figure import Figure
from torch import nn
from torch.optim.lr_scheduler import LinearLR, MultiStepLR, SequentialLR
from torch.utils.data import DataLoader, TensorDataset

from lightning_multigrid import MultigridCallback

BATCH = 4
# Okabe and Ito's blue and vermilion, which colour-blind people can tell apart.
IN_USE, OF_SCRIPT, GREY = "#0072B2", "#D55E00", "#777777"
TIMES = "\N{MULTIPLICATION SIGN}"


class Classifier(L.LightningModule):
    """One layer, with the LR schedule of an ordinary baseline."""

    def __init__(self, warmup, milestones, batches):
        super().__init__()
        self.net = nn.Sequential(nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(3, 4))
        self.warmup, self.stages = warmup * batches, [milestone * batches for milestone in milestones]

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        warmup = LinearLR(optimizer, 0.1, total_iters=self.warmup)
        stages = MultiStepLR(optimizer, [stage - self.warmup for stage in self.stages])
        scheduler = SequentialLR(optimizer, [warmup, stages], milestones=[self.warmup])
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def train(epochs, warmup, milestones, number, folder):
    """The plan of a training, and what was logged in each of its steps, by name."""
    clips = TensorDataset(torch.randn(number, 3, 4, 16, 16), torch.randint(4, (number,)))
    callback, logger = MultigridCallback.paper(), CSVLogger(folder)
    trainer = L.Trainer(
        max_epochs=epochs,
        callbacks=[callback, LearningRateMonitor("step")],
        logger=logger,
        log_every_n_steps=1,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
        devices=1,
    )
    trainer.fit(Classifier(warmup, milestones, number // BATCH), DataLoader(clips, BATCH, shuffle=True))
    with open(Path(logger.log_dir) / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    return callback.run.plan, {
        name: [float(row[name]) for row in rows if row[name]] for name in ("lr-SGD", "multigrid/lr")
    }


def draw(plan, logged):
    """The figure: both LRs over the run, with the scale of each phase."""
    schedule = plan.schedule
    positions = [float(plan.position(step.place)) for epoch in range(plan.epochs) for step in plan.epoch(epoch)]
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    axes = figure.subplots()
    ends = [*positions[1:], plan.epochs]  # of the steps
    in_use, of_script = "multigrid/lr: the LR in use", "LearningRateMonitor, param_groups: the script's own schedule"
    axes.step([0, *ends], [logged["multigrid/lr"][0], *logged["multigrid/lr"]], color=IN_USE, lw=2.2, label=in_use)
    axes.step([0, *ends], [logged["lr-SGD"][0], *logged["lr-SGD"]], "--", color=OF_SCRIPT, lw=1.8, label=of_script)
    axes.set_yscale("log")
    lowest, highest = min(logged["lr-SGD"]), max(logged["multigrid/lr"])
    axes.set_ylim(lowest / 1.6, highest * 3.2)
    axes.set_xlim(0, plan.epochs)
    for phase in schedule.phases:
        middle = float(phase.start_epoch + phase.end_epoch) / 2
        axes.text(middle, highest * 1.9, f"{TIMES}{phase.lr_scale:g}", color=GREY, ha="center", va="center")
    for before, phase in pairwise(schedule.phases):
        new_stage = phase.stage != before.stage
        axes.axvline(float(phase.start_epoch), color=GREY, linewidth=1.2 if new_stage else 0.6, linestyle=":")
    axes.set_ylabel("LR")
    axes.set_xlabel("epoch (dotted: phases, with the scale of their LR)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False)
    return figure


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=2, help="in epochs")
    parser.add_argument("--milestones", type=int, nargs="*", default=[10, 15])
    parser.add_argument("--clips", type=int, default=512)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        plan, logged = train(given.epochs, given.warmup, given.milestones, given.clips, folder)
    draw(plan, logged).savefig(given.file, dpi=150)
    print(f"{given.file}: the LRs of {len(logged['multigrid/lr'])} steps")


if __name__ == "__main__":
    main()
