"""A real `fit` on prepared videos: what a step takes on each grid, how long it waits for the loader, and its memory.

    python benchmarks/benchmark_fit.py --clips 2 --frames 8 --size 32 --steps 2 --workers 1      # on a CPU
    python benchmarks/benchmark_fit.py --setting slowfast --clips 8 --precision bf16-mixed --workers 16 --json fit.json

The models are those of `benchmark_speedup.py`, whose steps have no loader. Here `VideoDataModule` decodes prepared
videos of 340 x 256 in `--workers` processes, and `MultigridCallback` plans one epoch in which each base shape goes
about `--steps` times through its short cycle. The baseline's grid is the last of them. The videos are drawn, and each
has hard links, so that no worker remembers one.

The loader limits a grid on which steps wait for more than a tenth of their time. Whether the GPU limits the others, or
the host that starts its kernels, `benchmark_speedup.py --profile` tells.
"""

import argparse
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lightning
import torch
from benchmark_decode import make_footage
from benchmark_speedup import CLASSES, SETTINGS
from measuring import choose_device, machine, machine_line, prepared_copy, write_json

from lightning_multigrid import Baseline, BatchShape, MultigridCallback, MultigridSchedule, VideoDataModule
from lightning_multigrid.schedule import text_table
from lightning_multigrid.sources import Manifest, VideoList
from lightning_multigrid.video import VideoClassifier

HEIGHT, WIDTH = 256, 340
LABELS = 16  # each model of the settings has more classes, or as many
LIMIT = 0.1  # the share of a step's time for which it may wait


class Peaks(lightning.Callback):
    """Notes the peak memory of a GPU on each grid, in GiB."""

    def __init__(self) -> None:
        self.gib: dict[tuple[int, int], float] = {}

    def on_train_batch_start(self, trainer: lightning.Trainer, *_: Any) -> None:
        if trainer.strategy.root_device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()

    def on_train_batch_end(self, trainer: lightning.Trainer, module: Any, outputs: Any, batch: Any, *_: Any) -> None:
        if trainer.strategy.root_device.type == "cuda":
            grid = tuple(batch[0].shape[2:4])
            self.gib[grid] = max(torch.cuda.max_memory_allocated() / 2**30, self.gib.get(grid, 0))


def clips_needed(shape: BatchShape, steps: int) -> int:
    """The clips of an epoch in which each base shape goes through its short cycle `steps` times."""
    phases = MultigridSchedule(Baseline(shape, 1), fine_tuning=False).phases
    cycles = (MultigridSchedule(Baseline(shape, 1)).cycle(phase.shape) for phase in phases)
    return steps * sum(of_step.clips for cycle in cycles for of_step in cycle)


@dataclass(frozen=True)
class Links:
    """A source of prepared videos that are drawn here: each has many hard links, which all hold its frame table."""

    folder: Path
    made: int
    seconds: float
    number: int

    def make(self) -> "Links":
        for video in range(self.made):
            make_footage(self.folder / f"original_{video}.mp4", self.seconds, HEIGHT, WIDTH, video)
            prepared_copy(self.folder / f"original_{video}.mp4", self.folder / f"prepared_{video}.mp4")
        for link in range(self.number):
            os.link(self.folder / f"prepared_{link % self.made}.mp4", self.folder / f"{link}.mp4")
        lines = (f"{self.folder / str(link)}.mp4 {link % LABELS}\n" for link in range(self.number))
        (self.folder / "videos.csv").write_text("".join(lines))
        return self

    def read(self, classes: Sequence[str] = ()) -> Manifest:
        return replace(VideoList(self.folder / "videos.csv").read(classes), prepared=True)


def fit(options: argparse.Namespace, shape: BatchShape, videos: Links) -> tuple[MultigridCallback, Peaks]:
    setting, peaks = SETTINGS[options.setting], Peaks()
    classes = LABELS if options.setting == "small" else CLASSES
    callback = MultigridCallback(epoch_factor=1, fine_tuning=False)
    data = VideoDataModule(
        videos,
        num_classes=classes,
        batch_size=shape.clips,
        frames=shape.frames,
        size=shape.size,
        stride=setting.baseline.stride,
        short_side=(shape.size, shape.size * WIDTH / HEIGHT),
        num_workers=options.workers,
    )
    module = VideoClassifier(setting.make(), classes, lr=1e-4, schedule="constant", channels_last=options.channels_last)
    trainer = lightning.Trainer(
        accelerator="gpu" if options.device == "cuda" else "cpu",
        devices=1,
        precision=options.precision,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[callback, peaks],
    )
    trainer.fit(module, data)
    return callback, peaks


def rows_of(callback: MultigridCallback, peaks: Peaks) -> list[dict[str, Any]]:
    """A row for each grid, whose first step, which takes longer, does not count."""
    return [
        {
            "shape": str(grid.shape),
            "steps": grid.pace.steps,
            "ms": 1000 * grid.pace.stepping / grid.pace.steps,
            "ms_waiting": 1000 * grid.pace.waiting / grid.pace.steps,
            "clips_per_second": grid.pace.clips / grid.pace.seconds,
            "peak_gib": peaks.gib.get((grid.shape.frames, grid.shape.size)),
            "loader_is_the_limit": grid.pace.waiting > LIMIT * grid.pace.seconds,
        }
        for grid in callback.report.times.rows
    ]


def main(args: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setting", choices=SETTINGS, default="small", help="default: %(default)s")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--precision", default="32-true", help="Lightning's (default: %(default)s)")
    parser.add_argument("--channels-last", action="store_true", help="model and clips in channels_last_3d")
    parser.add_argument("--clips", type=int, help="clips of the baseline on a device, instead of the paper's")
    parser.add_argument("--frames", type=int, help="frames of the baseline, instead of the setting's")
    parser.add_argument("--size", type=int, help="height and width of the baseline, instead of the setting's")
    parser.add_argument("--steps", type=int, default=20, help="rounds of each short cycle (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--made", type=int, default=4, help="videos that are drawn (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=10, help="of each of these (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers there")
    options = parser.parse_args(args)
    device, own = choose_device(options, parser.error), SETTINGS[options.setting].baseline.shape
    shape = BatchShape(options.clips or own.clips, options.frames or own.frames, options.size or own.size)
    lightning.seed_everything(0, verbose=False)
    print(machine_line(machine(device)))
    with tempfile.TemporaryDirectory() as folder:
        videos = Links(Path(folder), options.made, options.seconds, clips_needed(shape, options.steps)).make()
        callback, peaks = fit(options, shape, videos)
    rows = rows_of(callback, peaks)
    write_json(options, "fit", {"rows": rows, "seconds": callback.report.account.seconds}, ["av"])
    columns = ["clips x frames x size", "steps", "ms each", "ms waiting", "clips/s", "GiB", "limit"]
    cells = [
        [
            row["shape"],
            str(row["steps"]),
            f"{row['ms']:.1f}",
            f"{row['ms_waiting']:.1f}",
            f"{row['clips_per_second']:.0f}",
            "-" if row["peak_gib"] is None else f"{row['peak_gib']:.1f}",
            "loader" if row["loader_is_the_limit"] else "steps",
        ]
        for row in rows
    ]
    print(f"{text_table(columns, cells)}\n{callback.report.account}")


if __name__ == "__main__":
    main()
