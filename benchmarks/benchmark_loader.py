"""How many clips per second a `DataLoader` with workers gives, in mini-batches that are ready for the device.

    python benchmarks/benchmark_loader.py video1.mp4 video2.mp4 --json loader.json
    python benchmarks/benchmark_loader.py --made 4 --methods ours --workers 16      # without videos of your own

The clips are those of a coarse grid, 8 frames of 112 pixels. The videos stand for many: each has hard links, `--paths`
in all, and in the first `rounds` turns of a loader each path is read once, as in a dataset of more videos than a worker
can remember. Loaders take turns on the same videos:

- `ours`: crops as YUV planes, from which the device makes the model's input (`resample_clips`); frame tables come from
  a `TableStore`;
- `torchcodec`: exact frames by torchcodec, cropped and resized as bytes (needs `pip install torchcodec`);
- `pyslowfast`: as in the paper's code base, but written anew: PyAV decodes and converts all frames of the span, which
  are normalised and resized as floats, and then cropped.

Each reads two sources: the videos as they are, and `prepared` copies, as `lightning-multigrid prepare` makes them. The
others can read the copies too. So there are two ratios: on the same videos, and ours on prepared videos to theirs on
the original ones.

All take turns in each round; the numbers are medians. Workers are started and warm before the first round. Seconds are
wall-clock time; CPU seconds are those of all processes, which other jobs on the machine disturb less.
"""

import argparse
import multiprocessing
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

import av
import torch
from benchmark_decode import make_footage
from measuring import prepared_copy, write_json
from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils.data import DataLoader, Dataset

from lightning_multigrid import Baseline, BatchShape, LongCycle, MultigridSchedule, ShortCycle
from lightning_multigrid.clips import ClipSampling, VideoDataset, collate_clips
from lightning_multigrid.decode import TableStore, make_table
from lightning_multigrid.loading import MultigridLoader, MultigridSampler
from lightning_multigrid.schedule import Plan
from lightning_multigrid.sources import Manifest, VideoList

FRAMES, SIZE, STRIDE = 32, 224, 2  # the baseline
SAMPLING = ClipSampling(FRAMES, SIZE, STRIDE)
COARSE = (8, 112)

Turn = Callable[[], tuple[float, float]]
"""Reads so many clips; returns clips per second, clips per CPU second."""


@dataclass
class Videos:
    """Files, and a folder with hard links of them."""

    name: str
    files: list[str]
    folder: str
    number: int  # of links

    def link(self) -> "Videos":
        os.mkdir(self.folder)
        for number, path in enumerate(self.paths):
            os.link(self.files[number % len(self.files)], path)
        return self

    @property
    def paths(self) -> list[str]:
        return [f"{self.folder}/{number}.mp4" for number in range(self.number)]


class Peer(Dataset):
    """Clips on the coarse grid, decoded in another way."""

    frames, size = COARSE

    def __init__(self, paths: list[str], length: int) -> None:
        self.paths, self.length = paths, length

    def __len__(self) -> int:
        return self.length

    def draw(self, index: int, length: int, height: int, width: int):
        return SAMPLING.draw(length, height, width, self.frames, self.size, random.Random(index))


class TorchCodec(Peer):
    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        from torchcodec.decoders import VideoDecoder

        video = VideoDecoder(self.paths[index % len(self.paths)], num_ffmpeg_threads=1)
        about = video.metadata
        grid = self.draw(index, len(video), about.height, about.width)
        top, left, height, width = grid.box
        frames = video.get_frames_at(list(grid.indices)).data[:, :, top : top + height, left : left + width]
        clip = interpolate(frames, (self.size, self.size), mode="bilinear")  # of bytes
        return (clip.flip(-1) if grid.flip else clip), 0


class PySlowFast(Peer):
    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with av.open(self.paths[index % len(self.paths)]) as container:
            stream = container.streams.video[0]
            grid = self.draw(index, stream.frames, stream.height, stream.width)
            tick = stream.duration / stream.frames
            first, last = int(grid.indices[0] * tick), int(grid.indices[-1] * tick)
            container.seek(max(first - 1024, 0), any_frame=False, backward=True, stream=stream)
            found = {}
            for frame in container.decode(video=0):
                if frame.pts < first:
                    continue
                found[frame.pts] = frame
                if frame.pts >= last:
                    break
            pixels = [found[pts].to_rgb().to_ndarray() for pts in sorted(found)]
        frames = torch.stack([torch.from_numpy(array) for array in pixels])
        frames = frames[torch.linspace(0, len(frames) - 1, self.frames).long()]
        clip = ((frames.float() / 255 - 0.45) / 0.225).permute(3, 0, 1, 2)
        height, width = clip.shape[2:]
        scale = self.size / grid.box.height
        clip = interpolate(clip, (round(height * scale), round(width * scale)), mode="bilinear", align_corners=False)
        top = min(round(grid.box.top * scale), clip.shape[2] - self.size)
        left = min(round(grid.box.left * scale), clip.shape[3] - self.size)
        clip = clip[:, :, top : top + self.size, left : left + self.size]
        return (clip.flip(-1) if grid.flip else clip), 0


def our_turns(videos: Videos, batches: int, options: argparse.Namespace) -> Turn:
    """The loader of multigrid training, in a phase on the coarse grid."""
    shape = BatchShape(coarse_clips(options), *COARSE)
    # Each turn is an epoch on this grid alone, and a pass.
    schedule = MultigridSchedule(Baseline(shape, 1000), LongCycle(((1, 1),)), ShortCycle((1,)), epoch_factor=1)
    clips = batches * shape.clips

    def order(number: int) -> list[int]:
        return [row % videos.number for row in range(number * clips, (number + 1) * clips)]

    manifest = manifest_of(videos)
    data = VideoDataset(manifest, SAMPLING, "yuv")
    sampler = MultigridSampler(Plan(schedule, clips), order)
    template = DataLoader(data, num_workers=options.workers, collate_fn=collate_clips, persistent_workers=True)
    loader = MultigridLoader(data, sampler, template)
    epochs = iter(range(1000))

    def turn() -> tuple[float, float]:
        sampler.set_epoch(next(epochs))
        return timed(loader, clips)

    return turn


def manifest_of(videos: Videos) -> Manifest:
    """The links with the frame tables of their videos."""
    file = Path(videos.folder) / "list.csv"
    file.write_text("".join(f"{path} 0\n" for path in videos.paths))
    manifest, tables = VideoList(file).read(), [make_table(path) for path in videos.files]
    for number, path in enumerate(videos.paths):
        TableStore(f"{videos.folder}/tables", manifest.root).add(path, tables[number % len(tables)])
    return replace(manifest, tables=f"{videos.folder}/tables")


def peer_turns(peer: type[Peer], videos: Videos, batches: int, options: argparse.Namespace) -> Turn:
    clips = coarse_clips(options)
    data = peer(videos.paths, batches * clips)
    loader = DataLoader(data, batch_size=clips, num_workers=options.workers, persistent_workers=True)
    return lambda: timed(loader, batches * clips)


def coarse_clips(options: argparse.Namespace) -> int:
    """Clips of a coarse mini-batch."""
    return BatchShape(options.clips, FRAMES, SIZE).rescaled(*COARSE).clips


def cpu_seconds() -> float:
    """CPU time of this process and, on Linux, of its workers."""
    seconds = time.process_time()
    for worker in multiprocessing.active_children():
        times = Path(f"/proc/{worker.pid}/stat")
        if times.exists():
            user, system = times.read_text().rpartition(")")[2].split()[11:13]
            seconds += (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return seconds


def timed(loader, clips: int) -> tuple[float, float]:
    """Reads an epoch of so many clips."""
    cpu, wall = cpu_seconds(), time.perf_counter()
    for _ in loader:
        pass
    return clips / (time.perf_counter() - wall), clips / (cpu_seconds() - cpu)


METHODS: dict[str, Callable[..., Turn]] = {
    "ours": our_turns,
    "torchcodec": partial(peer_turns, TorchCodec),
    "pyslowfast": partial(peer_turns, PySlowFast),
}


def compare(sources: list[Videos], options: argparse.Namespace) -> Iterator[list[dict]]:
    """After each round, a row per source."""
    batches = max(1, options.turn // coarse_clips(options))
    turns: dict[tuple[str, str], Turn] = {}
    for videos in sources:
        for method in options.methods:
            turns[videos.name, method] = turn = METHODS[method](videos, batches, options)
            turn()  # starts the workers, which stay alive
    seen: dict[tuple[str, str], list[tuple[float, float]]] = {cell: [] for cell in turns}
    for _ in range(options.rounds):
        for cell in random.sample(sorted(turns), len(turns)):
            seen[cell].append(turns[cell]())
        yield [row_of(seen, options.methods, videos.name) for videos in sources]


def row_of(seen: dict[tuple[str, str], list[tuple[float, float]]], methods: list[str], source: str) -> dict:
    row: dict = {"grid": "coarse {} x {}".format(*COARSE), "videos": source}
    for method in methods:
        for unit, of in (("clips/s", 0), ("clips/CPU s", 1)):
            row[f"{method}: {unit}"] = round(median(rates[of] for rates in seen[source, method]), 1)
    for method in methods[1:]:
        for other in dict.fromkeys((source, "original")):
            pairs = list(zip(seen[source, methods[0]], seen[other, method], strict=True))
            for name, of in (("", 0), (" (CPU)", 1)):
                ratio = median(ours[of] / theirs[of] for ours, theirs in pairs)
                row[f"{methods[0]} / {method} on {other}{name}"] = round(ratio, 2)
    return row


def main(args: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("videos", type=Path, nargs="*")
    parser.add_argument("--made", type=int, metavar="NUMBER", help="draw so many videos instead, of 340 x 256")
    parser.add_argument("--seconds", type=float, default=10, help="of each of these (default: %(default)s)")
    parser.add_argument("--paths", type=int, default=6000, help="hard links of all (default: %(default)s)")
    parser.add_argument(
        "--clips", type=int, default=8, help="of the baseline; a coarse mini-batch has 16 times as many"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), help="the first to the others")
    parser.add_argument("--turn", type=int, default=256, help="clips of each turn, and at least a mini-batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the numbers to this file, too")
    options = parser.parse_args(args)
    if bool(options.videos) == bool(options.made):
        parser.error("give videos, or --made with a number of them")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        originals, copies = [], []
        for number in range(options.made or len(options.videos)):
            originals.append(f"{folder}/original_{number}.mp4")
            copies.append(f"{folder}/prepared_{number}.mp4")
            if options.made:
                make_footage(originals[-1], options.seconds, 256, 340, number)
            else:  # copies, as there may be no hard links across disks
                shutil.copyfile(options.videos[number], originals[-1])
            prepared_copy(originals[-1], copies[-1])
        files = {"original": originals, "prepared": copies}
        sources = [Videos(name, of, f"{folder}/{name}", options.paths).link() for name, of in files.items()]
        rows: list[dict] = []
        for rows in compare(sources, options):
            write_json(options, "loader", {"rows": rows}, ["av", "torchcodec"])
    for row in rows:
        print("\n".join(f"{name:45}{value}" for name, value in row.items()), end="\n\n")


if __name__ == "__main__":
    main()
