"""What a long training keeps: resident memory, open files, threads and shared memory, per 1,000 mini-batches.

    python benchmarks/benchmark_leaks.py --json leaks.json
    python benchmarks/benchmark_leaks.py --minutes 30 --only originals

Each source is read by a real `fit` of a tiny model, with `MultigridCallback`, in a process of its own: the data module
from originals with frame tables, from copies and planes of `prepare`, and from originals at URLs of a server on this
machine; and an own dataset in an ordinary `DataLoader`. All steps have one base shape, and go through the short cycle,
so that no phase needs more than another. Every `--every` mini-batches after a warm-up the script counts what the
process and its workers hold: the sum of their resident bytes, open files, threads, and the bytes of shared memory that
they have open. The growth of each is the slope of a line through all counts.
"""

import argparse
import ctypes
import gc
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import linear_regression
from typing import Any

import lightning
import torch
from benchmark_decode import make_footage
from measuring import write_json
from torch import nn
from torch.utils.data import DataLoader, Dataset

from lightning_multigrid import LongCycle, MultigridCallback, VideoDataModule
from lightning_multigrid.prepare import Encoding, Planes, prepare
from lightning_multigrid.sources import VideoList
from lightning_multigrid.video import VideoClassifier

sys.path.insert(0, str(Path(__file__).parents[1]))  # in which `tests` are

from tests.helpers.video_server import serving

SOURCES = "originals", "copies", "planes", "URLs", "own dataset"
CLASSES, FRAMES, SIZE, VIDEOS = 2, 8, 64, 8
PER_EPOCH = 200  # mini-batches of the baseline


class OwnDataset(Dataset):
    """Clips that are made when they are asked for."""

    def __len__(self) -> int:
        return 2 * PER_EPOCH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.rand(3, FRAMES, SIZE, SIZE), index % CLASSES


class Tiny(nn.Module):
    """Classifies clips by their means."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm3d(3), nn.Linear(3, CLASSES)

    def forward(self, clips: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(clips).mean(dim=(2, 3, 4)))


def held() -> dict[str, int]:
    """What this process and its children hold now."""
    gc.collect()
    with suppress(AttributeError):  # other libraries than GNU's
        ctypes.CDLL(None).malloc_trim(0)
    resident = files = threads = 0
    shared: dict[int, int] = {}
    for pid in [os.getpid(), *(child.pid for child in multiprocessing.active_children())]:
        process = Path(f"/proc/{pid}")
        resident += int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        threads += len(os.listdir(process / "task"))
        for name in os.listdir(process / "fd"):
            with suppress(OSError):  # of the listing itself
                path = process / "fd" / name
                files += 1
                if os.readlink(path).startswith("/dev/shm/"):
                    found = path.stat()
                    shared[found.st_ino] = found.st_size
    return {"bytes": resident, "files": files, "threads": threads, "shm": sum(shared.values())}


class Counts(lightning.Callback):
    """Counts every few mini-batches after a warm-up, and ends the training after so many, or so many seconds."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.steps, self.end = options, 0, 0.0
        self.rows: list[tuple[int, dict[str, int]]] = []

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        self.steps += 1
        after = self.steps - self.options.warm_up
        if after == 0:
            self.end = time.monotonic() + 60 * self.options.minutes
        if after >= 0 and after % self.options.every == 0:
            self.rows.append((after, held()))
            by_time = self.options.minutes and time.monotonic() >= self.end
            trainer.should_stop = bool(by_time or (not self.options.minutes and after >= self.options.batches))


@contextmanager
def loader_of(source: str, folder: Path, workers: int) -> Iterator[Any]:
    """The data of a source: videos are drawn, and prepared, in the folder."""
    if source == "own dataset":
        yield DataLoader(OwnDataset(), 2, shuffle=True, num_workers=workers)
        return
    videos = folder / "videos"
    videos.mkdir()
    for number in range(VIDEOS):
        make_footage(videos / f"{number}.mp4", 2, 96, 128, number)
    (videos / "list.csv").write_text("".join(f"{number}.mp4 {number % CLASSES}\n" for number in range(VIDEOS)))
    given: Any = videos / "list.csv"
    if source in ("copies", "planes"):
        prepare(VideoList(given).read(), folder / source, Planes(96) if source == "planes" else Encoding(96))
        given = folder / source
    shape = {"batch_size": 2, "frames": FRAMES, "size": SIZE, "stride": 1, "repeats": 2 * PER_EPOCH // VIDEOS}
    options = {"num_classes": CLASSES, "num_workers": workers, "index": str(folder / "tables"), **shape}
    if source != "URLs":
        yield VideoDataModule(str(given), **options)
        return
    with serving(videos, folder / "told") as server:
        yield VideoDataModule(VideoList(given, root=server.url), **options)


def measure(source: str, options: argparse.Namespace, folder: str, results: Any) -> None:
    torch.set_num_threads(1)
    counts = Counts(options)
    callback = MultigridCallback(epoch_factor=1, long_cycle=LongCycle(((1, 1),)))
    with loader_of(source, Path(folder), options.workers) as data:
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_epochs=10**6,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[callback, counts],
        )
        trainer.fit(VideoClassifier(Tiny(), CLASSES, lr=1e-4, schedule="constant"), data)
    results.put(counts.rows)


def row_of(rows: list[tuple[int, dict[str, int]]]) -> dict[str, Any]:
    """The slopes of what is held, per 1,000 mini-batches."""
    numbers, held = zip(*rows, strict=True)
    grown = {name: 1000 * linear_regression(numbers, [of[name] for of in held]).slope for name in held[0]}
    return {"mini_batches": numbers[-1], "resident": held[0]["bytes"], **grown}


def main(args: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=SOURCES, nargs="+", default=SOURCES, help="sources (default: all)")
    parser.add_argument("--batches", type=int, default=4000, help="mini-batches after it (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=0, help="of each source after the warm-up, instead")
    parser.add_argument("--warm-up", type=int, default=1000, help="mini-batches (default: %(default)s)")
    parser.add_argument("--every", type=int, default=100, help="mini-batches between two counts (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers there")
    options = parser.parse_args(args)
    context = multiprocessing.get_context("spawn")
    report: dict[str, dict[str, Any]] = {}
    for source in options.only:
        with tempfile.TemporaryDirectory() as folder:
            results = context.SimpleQueue()
            process = context.Process(target=measure, args=(source, options, folder, results))
            process.start()
            row = report[source] = row_of(results.get())
            process.join()
        print(
            f"{source}: {row['mini_batches']:,} mini-batches; in 1,000: {row['bytes'] / 1000:+.0f} KB of "
            f"{row['resident'] / 1e6:.0f} MB, {row['files']:+.2f} files, {row['threads']:+.2f} threads, "
            f"{row['shm'] / 1000:+.0f} KB of shared memory",
            flush=True,
        )
        write_json(options, "leaks", {"rows": report})


if __name__ == "__main__":
    main()
