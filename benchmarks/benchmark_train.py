"""A real `fit`: videos, workers, `MultigridCallback`, and what the run reports, with the times of waiting for clips.

    python benchmarks/benchmark_train.py --device cpu                             # a small model on small clips
    python benchmarks/benchmark_train.py --model slowfast --clips 8 --frames 32 --size 224 --precision bf16-mixed \\
        --workers 16 --clips-of-epoch 2000

The script draws videos, prepares them as `lightning-multigrid prepare` does, and trains on a list that names each of
them many times, so the page cache holds all of them. `--baseline` trains without the callback: Lightning alone on the
baseline's shape. The table at the end is the one of every run: for each shape the time of a step without waiting, and
how long it waited for its clips. Validation is left out.
"""

import argparse
import logging
import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.loggers.logger import DummyLogger
from measuring import choose_device, machine, machine_line, made_videos, prepared_copies, write_json

from lightning_multigrid import MultigridCallback, VideoClassifier, VideoDataModule
from lightning_multigrid.models import i3d_nl_r50, i3d_r50, slowfast_r50, small_cnn

CLASSES = 16
MODELS = {
    "small": lambda: small_cnn(CLASSES),
    "slowfast": lambda: slowfast_r50(CLASSES),
    "i3d": lambda: i3d_r50(CLASSES),
    "i3d_nl": lambda: i3d_nl_r50(CLASSES),
}


class Notes(DummyLogger):
    """Keeps the last value of each metric that is logged, and saves the run each time."""

    def __init__(self, run: "Run") -> None:
        super().__init__()
        self.run = run

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.run.logged |= {name: float(value) for name, value in metrics.items()}
        self.run.save()


class Lines(logging.Handler):
    """Keeps what the run prints through `logging`: phases, a loader that is too slow, the table of times."""

    def __init__(self, run: "Run") -> None:
        super().__init__()
        self.run = run

    def emit(self, record: logging.LogRecord) -> None:
        self.run.lines.append(record.getMessage())
        self.run.save()


class Steps(L.Callback):
    """Counts steps and clips, and their seconds by the wall clock from the first to the last."""

    def __init__(self, run: "Run") -> None:
        self.run = run

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now = time.perf_counter()
        self.run.began = self.run.began or now
        self.run.steps += 1
        self.run.seconds = now - self.run.began


class Run:
    """What is known of a run so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.lines, self.logged = options, list[str](), dict[str, float]()
        self.began, self.seconds, self.steps = 0.0, 0.0, 0

    def save(self) -> None:
        shown = {key: value for key, value in vars(self.options).items() if key != "json"}
        found = {
            "steps": self.steps,
            "seconds": self.seconds,
            "logged": self.logged,
            "grids": grid_table(self.lines),
            "lines": self.lines,
        }
        write_json(self.options.json, "train", shown, found, ["av"])


def grid_table(lines: Sequence[str]) -> list[dict[str, Any]]:
    """Reads the table that a run prints at its end: a row per shape."""
    tables = [text for text in lines if text.startswith("Time per shape")]
    rows = [re.split(r"\s{2,}", line.strip()) for line in tables[-1].splitlines()[1:]] if tables else []
    shapes = [row for row in rows if re.fullmatch(r"\d+ x \d+ x \d+", row[0])]
    # The first column may have no name.
    return [{"shape": row[0]} | dict(zip(rows[0][-len(row) + 1 :], map(float, row[1:]), strict=True)) for row in shapes]


def main(args: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--model", choices=MODELS, default="small")
    parser.add_argument("--clips", type=int, default=4, help="of the baseline")
    parser.add_argument("--frames", type=int, default=8)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--stride", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2, help="of the baseline; the LR falls after half of them")
    parser.add_argument("--clips-of-epoch", type=int, default=64)
    parser.add_argument("--videos", type=int, default=4, help="that are drawn")
    parser.add_argument("--seconds", type=float, default=10, help="of each video")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--precision", default="32-true", help="of the Trainer")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--fused", action="store_true", help="the optimizer's fused implementation")
    parser.add_argument("--benchmark", action="store_true", help="cuDNN tries kernels")
    parser.add_argument("--baseline", action="store_true", help="without MultigridCallback")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers there")
    options = parser.parse_args(args)
    device = choose_device(options.device, parser.error)
    options.device = device.type
    run = Run(options)
    print(machine_line(machine(device)))
    L.seed_everything(0, verbose=False)
    with tempfile.TemporaryDirectory() as folder:
        videos = made_videos(Path(folder), options.videos, options.seconds)
        prepared = prepared_copies([str(path) for path in videos], Path(folder))
        lines = [f"{prepared[clip % len(prepared)]} {clip % CLASSES}\n" for clip in range(options.clips_of_epoch)]
        (Path(folder) / "train.csv").write_text("".join(lines))
        data = VideoDataModule(
            Path(folder) / "train.csv",
            batch_size=options.clips,
            frames=options.frames,
            size=options.size,
            stride=options.stride,
            num_classes=CLASSES,
            num_workers=options.workers,
            drop_last=True,
        )
        fit(run, data, device)


def fit(run: Run, data: VideoDataModule, device: torch.device) -> None:
    options = run.options
    module = VideoClassifier(
        MODELS[options.model](),
        num_classes=CLASSES,
        lr=1e-3,
        schedule="steps",
        milestones=[options.epochs / 2],
        channels_last=options.channels_last,
        fused_optimizer=options.fused,
    )
    callbacks: list[L.Callback] = [] if options.baseline else [MultigridCallback(seed=0)]
    trainer = L.Trainer(
        max_epochs=options.epochs,
        accelerator="cpu" if device.type == "cpu" else "gpu",
        devices=1,
        precision=options.precision,
        benchmark=options.benchmark,
        callbacks=[*callbacks, Steps(run)],
        logger=Notes(run),
        limit_val_batches=0,
        log_every_n_steps=10,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    handler = Lines(run)
    # The messages of both packages are in the logger of the one that was imported last.
    logs = [logging.getLogger(name) for name in ("lightning.pytorch", "pytorch_lightning")]
    for log in logs:
        log.addHandler(handler)
        log.setLevel(logging.INFO)
    try:
        trainer.fit(module, data)
    finally:
        for log in logs:
            log.removeHandler(handler)
    run.save()
    print(f"{run.steps} steps in {run.seconds:.1f} s from the end of the first to the end of the last.")


if __name__ == "__main__":
    main()
