"""What a long training needs besides its steps: memory and open files over thousands of mini-batches, large epochs.

    python benchmarks/long_run.py --folder /scratch/long --json long.json
    python benchmarks/long_run.py --folder /scratch/tiny --steps 40 --clips 10000     # seconds

First `fit` trains a tiny model on videos, on grids of all shapes, with two workers that stay. Ten times, equally far
apart, it says what is held by the process that trains and by its workers: memory in MiB (their own pages, not those
they share) and open files.

Then the plan of one epoch of so many clips is made, and all requests of a rank are drawn, as each of 128 does
when an epoch starts, with the recipe of SlowFast: seconds, and the most memory that Python held.
"""

import argparse
import os
import re
import time
import tracemalloc
from collections.abc import Sequence
from math import ceil
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import lightning as L
from measuring import write_json

from lightning_multigrid import (
    Baseline,
    BatchShape,
    MovingShapesDataModule,
    MultigridCallback,
    MultigridSchedule,
    VideoClassifier,
)
from lightning_multigrid.loading import MultigridSampler
from lightning_multigrid.loading.order import epoch_order
from lightning_multigrid.models import small_cnn
from lightning_multigrid.schedule import Plan, text_table

_DEVICES = 128
_FEWER = 3.5  # times the mini-batches of a baseline
_KINETICS = MultigridSchedule(Baseline(BatchShape(4, 32, 224), epochs=239, milestones=(94, 154, 196)))


def held(process: int) -> tuple[float, int]:
    """Memory that only this process holds, in MiB, and its open files (Linux)."""
    pages = Path(f"/proc/{process}/smaps_rollup").read_text()
    return sum(map(int, re.findall(r"Private_\w+: +(\d+) kB", pages))) / 1024, len(os.listdir(f"/proc/{process}/fd"))


class Watch(L.Callback):
    """Notes what the processes hold, ten times in so many steps."""

    def __init__(self, steps: int) -> None:
        self._every = max(1, steps // 10)
        self.rows: list[dict[str, float]] = []

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.global_step % self._every == 0:
            workers = [worker.pid for worker in active_children() if worker.pid]
            of_workers = [sum(column) for column in zip(*map(held, workers), strict=True)]
            own, its = held(os.getpid()), of_workers or (0, 0)
            names = "memory", "open files", "memory of workers", "open files of workers"
            self.rows.append({"mini-batches": trainer.global_step} | dict(zip(names, (*own, *its), strict=True)))


def long_fit(folder: Path, steps: int) -> list[dict[str, float]]:
    """Trains for at least so many mini-batches of mixed grids; returns what was held after each tenth of them."""
    data = MovingShapesDataModule(
        str(folder), train_per_class=8, val_per_class=1, batch_size=2, frames=8, size=32, num_workers=2
    )
    epochs = ceil(steps * _FEWER * data.batch_size / 128)
    model = VideoClassifier(small_cnn(num_classes=16, width=2), num_classes=16)
    watch = Watch(steps)
    trainer = L.Trainer(
        max_epochs=epochs,
        callbacks=[MultigridCallback(), watch],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        check_val_every_n_epoch=10,
    )
    trainer.fit(model, data)
    return watch.rows


def large_epoch(clips: int) -> dict[str, float]:
    """Plans an epoch of so many clips for a rank of 128, and draws all of its requests."""
    tracemalloc.start()
    started = time.perf_counter()
    plan = Plan(_KINETICS, clips // _DEVICES, world=_DEVICES)
    steps = len(plan.steps(0))
    planned = time.perf_counter()
    sampler = MultigridSampler(plan, lambda epoch: epoch_order(plan.seed, epoch, clips))
    requests = sum(map(len, sampler))
    drawn = time.perf_counter()
    memory = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    times = {"planned, s": planned - started, "drawn, s": drawn - planned, "memory, MiB": memory}
    return {"clips": clips, "steps": steps, "requests": requests, **times}


def table(rows: Sequence[dict[str, float]]) -> str:
    return text_table(list(rows[0]), [[f"{value:.4g}" for value in row.values()] for row in rows])


def main(args: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="for the videos")
    parser.add_argument("--steps", type=int, default=3000, help="mini-batches of the training")
    parser.add_argument("--clips", type=int, default=1_000_000, help="of the large epoch")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(args)
    epoch = large_epoch(given.clips)
    print(table([epoch]), flush=True)
    rows = long_fit(given.folder, given.steps)
    print(f"\nMiB and open files:\n{table(rows)}")
    write_json(given.json, "long_run", {"steps": given.steps, "device": "cpu"}, {"epoch": epoch, "fit": rows})


if __name__ == "__main__":
    main()
