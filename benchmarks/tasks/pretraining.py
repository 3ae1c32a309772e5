"""Masked pre-training with and without multigrid: the accuracy of one fine-tuning, against the CPU time before it.

    python benchmarks/tasks/pretraining.py --seeds 3    # what is there is not repeated; prints the table

A small VideoMAE learns moving shapes without their labels, by the example `masked_pretraining.py`. Then its encoder is
tuned with them, in the same way in all rows. Times are CPU seconds of one core, with decoding.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from transformers import VideoMAEForVideoClassification

from lightning_multigrid import MovingShapesDataModule, MultigridCallback, ShortCycle, VideoClassifier

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "pretraining"
sys.path.append(str(ROOT / "examples"))
from masked_pretraining import MaskedAutoencoder  # noqa: E402

EPOCHS, TUNED, SHAPE = 20, 8, {"frames": 16, "size": 40}
# Epochs of the baseline that pre-trains, and what makes its callback.
ROWS = {
    "none": (0, None),
    "baseline": (EPOCHS, None),
    "baseline, half as long": (EPOCHS // 2, None),
    "**multigrid 1.5x**, the default": (EPOCHS, MultigridCallback),
    "multigrid 1.5x without the short cycle": (EPOCHS, lambda: MultigridCallback(short_cycle=ShortCycle((1,)))),
    "**one pass** at 1x": (EPOCHS, MultigridCallback.progressive),
}


class PreTraining(MaskedAutoencoder):
    """The example on clips of a data module, whose labels it does not look at."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self(batch[0])


class Classifier(nn.Module):
    """The encoder with a linear layer, for clips B x 3 x T x H x W."""

    def __init__(self, pre_trained: MaskedAutoencoder) -> None:
        super().__init__()
        config = pre_trained.model.config
        config.num_labels = 16
        self.model = VideoMAEForVideoClassification(config)
        self.model.videomae.load_state_dict(pre_trained.model.videomae.state_dict())

    def forward(self, clips: Tensor) -> Tensor:
        return self.model(pixel_values=clips.transpose(1, 2)).logits


def clips() -> MovingShapesDataModule:
    return MovingShapesDataModule(difficulty="hard", train_per_class=64, val_per_class=64, batch_size=8, **SHAPE)


def fit(module: L.LightningModule, epochs: int, callbacks: Sequence[Any] = ()) -> tuple[float, L.Trainer]:
    """Trains; returns CPU seconds and the Trainer."""
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "limit_val_batches": 0}
    trainer = L.Trainer(accelerator="cpu", max_epochs=epochs, callbacks=[*callbacks], **quiet)
    started = time.process_time()
    trainer.fit(module, datamodule=clips())
    return time.process_time() - started, trainer


def run(row: str, seed: int) -> dict[str, Any]:
    epochs, callback = ROWS[row]
    L.seed_everything(seed, verbose=False)
    module, seconds, steps = PreTraining(**SHAPE, width=96, layers=4, lr=1e-3), 0.0, 0
    if epochs:
        seconds, trainer = fit(module, epochs, [] if callback is None else [callback()])
        steps = trainer.global_step
    L.seed_everything(seed, verbose=False)
    optimizer = partial(torch.optim.AdamW, lr=5e-4, weight_decay=0.05)
    tuned = VideoClassifier(Classifier(module), num_classes=16, optimizer=optimizer, schedule="cosine", warmup_epochs=1)
    tuning, trainer = fit(tuned, TUNED)
    quiet = {"logger": False, "enable_progress_bar": False}
    [scores] = L.Trainer(accelerator="cpu", **quiet).validate(tuned, datamodule=clips(), verbose=False)
    return {"row": row, "seed": seed, "steps": steps, "cpu": seconds, "tuning": tuning, "top1": scores["val/top1"]}


def table() -> str:
    """In Markdown, of the runs that there are."""
    lines = ["| pre-training | runs | top-1 % | steps | CPU time, s |", "| --- | --- | --- | --- | --- |"]
    for number, row in enumerate(ROWS):
        runs = [json.loads(file.read_text()) for file in sorted(RESULTS.glob(f"{number}-*.json"))]
        if runs:
            ends = [100 * one["top1"] for one in runs]
            spread = f" ± {stdev(ends):.1f}" if len(ends) > 1 else ""
            least = min(one["cpu"] for one in runs)
            lines.append(f"| {row} | {len(runs)} | {mean(ends):.1f}{spread} | {runs[0]['steps']:,} | {least:.0f} |")
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=0, help="runs of each row to have; 0 prints the table alone")
    options = parser.parse_args(given)
    torch.set_num_threads(1)
    RESULTS.mkdir(parents=True, exist_ok=True)
    for seed in range(options.seeds):
        for number, row in enumerate(ROWS):
            file = RESULTS / f"{number}-{seed}.json"
            if not file.exists():
                file.write_text(json.dumps(run(row, seed), indent=1) + "\n")
    print(table())


if __name__ == "__main__":
    main()
