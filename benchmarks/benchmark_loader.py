"""How many clips per second a `DataLoader` with workers gives, in mini-batches that are ready for the device.

    python benchmarks/benchmark_loader.py video1.mp4 video2.mp4 --json loader.json
    python benchmarks/benchmark_loader.py --made 4 --methods ours --workers 16      # without videos of your own

Three loaders take turns on the same videos, with the same draws of frames and crops:

- `ours`: crops as YUV planes, from which the device makes the model's input (`resample_clips`);
- `torchcodec`: exact frames by torchcodec, cropped and resized as bytes (needs `pip install torchcodec`);
- `pyslowfast`: as in the paper's code base, but written anew: PyAV decodes and converts all frames of the span, which
  are normalised and resized as floats, and then cropped.

Each reads two sources: the videos as they are, and `prepared` copies, as `lightning-multigrid prepare` makes them. The
others can read the copies too. So there are two ratios: on the same videos, and ours on prepared videos to theirs on
the original ones.

All take turns in each round; the numbers are medians. Workers are started and warm before the first round. Seconds are
wall-clock time; CPU seconds are those of all processes, which other jobs on the machine disturb less. `--first` instead
measures how long the first mini-batch of a phase takes if one worker or all workers read it.
"""

import argparse
import importlib.util
import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import av
import torch
from measuring import made_videos, prepared_copies, write_json
from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils.data import DataLoader, Dataset

from lightning_multigrid import Baseline, BatchShape, LongCycle, MultigridSchedule, ShortCycle
from lightning_multigrid.clips import ClipSampling, VideoDataset, collate_clips
from lightning_multigrid.loading import MultigridLoader, MultigridSampler
from lightning_multigrid.schedule import Plan
from lightning_multigrid.sources import read_manifest

FRAMES, SIZE, STRIDE = 32, 224, 2  # the baseline
SAMPLING = ClipSampling(FRAMES, SIZE, STRIDE)
GRIDS = {"coarse": (8, 112), "full": (32, 224)}  # frames, size


class Peer(Dataset):
    """Clips on one grid, decoded in another way."""

    def __init__(self, paths: list[str], frames: int, size: int, length: int) -> None:
        self.paths, self.frames, self.size, self.length = paths, frames, size, length

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


def our_loader(paths: list[str], frames: int, size: int, batches: int, options: argparse.Namespace) -> MultigridLoader:
    """The loader of multigrid training, in a phase on one grid."""
    baseline = Baseline(
        BatchShape(options.clips, FRAMES, SIZE), epochs=100, milestones=(50,)
    )  # the last stage has no long cycle
    schedule = MultigridSchedule(baseline, LongCycle(((frames / FRAMES, size / SIZE),)), ShortCycle((1,)))
    shape = schedule.phases[0].shape
    assert (shape.frames, shape.size) == (frames, size)
    clips = batches * shape.clips
    with tempfile.TemporaryDirectory() as folder:
        lines = [f"{paths[clip % len(paths)]} 0\n" for clip in range(clips)]  # a video stands for many
        (Path(folder) / "list.csv").write_text("".join(lines))
        manifest = read_manifest(Path(folder) / "list.csv", allow_outside_root=True)
    data = VideoDataset(manifest, SAMPLING, options.pixels)
    sampler = MultigridSampler(Plan(schedule, clips), lambda _: range(clips))
    return MultigridLoader(data, sampler, DataLoader(data, num_workers=options.workers, collate_fn=collate_clips))


def loader_of(method: str, paths: list[str], grid: tuple[int, int], batches: int, options: argparse.Namespace):
    """Returns a loader of so many mini-batches on a grid, and the clips of a mini-batch (Eq. 1)."""
    frames, size = grid
    shape = BatchShape(options.clips, FRAMES, SIZE).rescaled(frames, size)
    if method == "ours":
        return our_loader(paths, frames, size, batches, options), shape.clips
    peer = {"torchcodec": TorchCodec, "pyslowfast": PySlowFast}[method]
    data = peer(paths, frames, size, batches * shape.clips)
    return DataLoader(data, batch_size=shape.clips, num_workers=options.workers, persistent_workers=True), shape.clips


def cpu_seconds() -> float:
    """CPU time of this process and, on Linux, of its workers."""
    seconds = time.process_time()
    for worker in multiprocessing.active_children():
        times = Path(f"/proc/{worker.pid}/stat")
        if times.exists():
            user, system = times.read_text().rpartition(")")[2].split()[11:13]
            seconds += (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return seconds


def turn(method: str, loader, number: int) -> tuple[float, float, float]:
    """Reads an epoch of so many clips; returns clips per second, clips per CPU second, megabytes of a mini-batch."""
    cpu, wall = cpu_seconds(), time.perf_counter()
    for batch in loader:
        size = sum(piece.nbytes for piece in (batch.pieces if method == "ours" else batch[:1]))
    return number / (time.perf_counter() - wall), number / (cpu_seconds() - cpu), size / 1e6


def first_batches(paths: list[str], options: argparse.Namespace) -> Iterator[dict]:
    """Seconds to the first mini-batch of a coarse phase, and clips per second of the following ones."""
    found: dict[str, list[tuple[float, float]]] = {"by one worker": [], "by all workers": []}
    for _ in range(options.rounds):
        for way, seen in found.items():
            loader, clips = loader_of("ours", paths, (8, 112), 4, options)
            if way == "by one worker":
                loader.pieces = 1
            for _ in loader:  # workers stay alive, and then know the videos
                pass
            start = time.perf_counter()
            times = [time.perf_counter() - start for _ in loader]
            seen.append((times[0], clips * (len(times) - 1) / (times[-1] - times[0])))
    for way, seen in found.items():
        yield {
            f"mini-batches of {clips} clips": way,
            "seconds to the first": round(median(first for first, _ in seen), 2),
            "clips per second, first to last": round(median(rate for _, rate in seen), 1),
        }


def compare(sources: dict[str, list[str]], options: argparse.Namespace) -> Iterator[list[dict]]:
    """After each round, a row per grid and source."""
    methods = [m for m in options.methods if m != "torchcodec" or importlib.util.find_spec("torchcodec")]
    cells = [(grid, source, method) for grid in options.grids for source in sources for method in methods]
    seen: dict[tuple, list[tuple[float, float, float]]] = {cell: [] for cell in cells}
    loaders = {}
    for grid, source, method in cells:
        clips = BatchShape(options.clips, FRAMES, SIZE).rescaled(*GRIDS[grid]).clips
        batches = max(1, options.turn // clips)
        loader, _ = loader_of(method, sources[source], GRIDS[grid], batches, options)
        loaders[grid, source, method] = loader, batches * clips
        turn(method, loader, 1)  # starts the workers, which stay alive
    for _ in range(options.rounds):
        for cell in random.sample(cells, len(cells)):
            seen[cell].append(turn(cell[2], *loaders[cell]))
        yield list(rows_of(seen, methods, sources, options))


def rows_of(
    seen: dict[tuple, list[tuple[float, float, float]]],
    methods: list[str],
    sources: dict[str, list[str]],
    options: argparse.Namespace,
) -> Iterator[dict]:
    for grid in options.grids:
        for source in sources:
            row: dict = {"grid": "{} {} x {}".format(grid, *GRIDS[grid]), "videos": source}
            for method in methods:
                rates = seen[grid, source, method]
                row[f"{method}: clips/s"] = round(median(rate for rate, _, _ in rates), 1)
                row[f"{method}: clips/CPU s"] = round(median(rate for _, rate, _ in rates), 1)
                row[f"{method}: MB"] = round(median(size for _, _, size in rates), 1)
            for method in methods[1:]:
                for other in dict.fromkeys((source, "original")):
                    for name, of in (("", 0), (" (CPU)", 1)):
                        ratios = [
                            ours[of] / theirs[of]
                            for ours, theirs in zip(
                                seen[grid, source, methods[0]], seen[grid, other, method], strict=True
                            )
                        ]
                        row[f"{methods[0]} / {method} on {other}{name}"] = round(median(ratios), 2)
            yield row


def main(args: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("videos", type=Path, nargs="*")
    parser.add_argument("--made", type=int, metavar="NUMBER", help="draw so many videos instead, of 340 x 256")
    parser.add_argument("--seconds", type=float, default=10, help="of each of these (default: %(default)s)")
    parser.add_argument(
        "--clips", type=int, default=8, help="of the baseline; a coarse mini-batch has 16 times as many"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--methods", nargs="+", default=["ours", "torchcodec", "pyslowfast"])
    parser.add_argument("--grids", nargs="+", choices=GRIDS, default=list(GRIDS))
    parser.add_argument("--pixels", choices=["rgb", "yuv"], default="yuv", help="of ours")
    parser.add_argument("--turn", type=int, default=256, help="clips of each turn, and at least a mini-batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--first", action="store_true", help="measure the first mini-batch of a phase instead")
    parser.add_argument("--json", type=Path, help="write the numbers to this file, too")
    options = parser.parse_args(args)
    if bool(options.videos) == bool(options.made):
        parser.error("give videos, or --made with a number of them")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        videos = made_videos(Path(folder), options.made, options.seconds) if options.made else options.videos
        original = [str(path.resolve()) for path in videos]
        start = time.process_time()
        prepared = prepared_copies(original, Path(folder))
        sizes = [sum(Path(path).stat().st_size for path in paths) for paths in (prepared, original)]
        about = {"seconds": time.process_time() - start, "bytes, prepared / original": sizes[0] / sizes[1]}
        print(f"prepared {len(prepared)} videos in {about['seconds']:.1f} CPU s")
        sources = {"original": original, "prepared": prepared}
        names = ("clips", "workers", "pixels", "turn", "rounds", "first", "made")
        given = {"device": "cpu"} | {name: vars(options)[name] for name in names}
        rows: list[dict] = []
        for rows in [list(first_batches(prepared, options))] if options.first else compare(sources, options):
            write_json(options.json, "loader", given, {"prepared": about, "rows": rows}, ["av", "torchcodec"])
    for row in rows:
        print("\n".join(f"{name:45}{value}" for name, value in row.items()), end="\n\n")


if __name__ == "__main__":
    main()
