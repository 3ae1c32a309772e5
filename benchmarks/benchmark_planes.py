"""What a clip costs a worker from the original, a prepared copy, and a file of planes, in CPU and in wall-clock time.

    python benchmarks/benchmark_planes.py --json planes.json
    python benchmarks/benchmark_planes.py video1.mp4 video2.mp4

Copies and planes have a short side of 128 and 256 pixels, and clips 4, 8, 16 and 32 frames at a stride of 2, whose
crops have 7/8 of the short side. Each clip is what `VideoDataset` gives of a request, as YUV planes for a GPU or (with
`--pixels rgb`) for a CPU: the file is opened, its frame table read, frames and crop drawn, decoded or read. Each is
read from a name that was not opened before (a hard link), whose bytes are in the page cache. All take turns at every
clip, in random order. Numbers are medians of rounds. Without videos the script draws some of 640 x 360 pixels and ten
seconds.
"""

import argparse
import os
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from statistics import median
from typing import Literal

import torch
from benchmark_decode import make_footage
from measuring import write_json

from lightning_multigrid.clips import ClipSampling, VideoDataset
from lightning_multigrid.decode import TableStore, make_table
from lightning_multigrid.loading import ClipRequest
from lightning_multigrid.prepare import Encoding, Planes, prepare
from lightning_multigrid.sources import VideoList

STRIDE = 2
Spent = tuple[float, float]
"""CPU ms and wall-clock ms of a clip."""


class Source:
    """Some videos of one kind, read under new names."""

    def __init__(self, files: list[Path], folder: Path, clips: int, *, indexed: bool) -> None:
        folder.mkdir()
        numbers = range(clips)
        links = [folder / f"{number}{files[0].suffix}" for number in numbers]
        for number, link in zip(numbers, links, strict=True):
            os.link(files[number % len(files)], link)
        tables = [make_table(path) for path in files] if indexed else []
        for number, link in enumerate(links if indexed else []):
            TableStore(folder / "tables", str(folder)).add(str(link), tables[number % len(files)])
        (folder / "list.csv").write_text("".join(f"{link} 0\n" for link in links))
        self._manifest = replace(VideoList(folder / "list.csv").read(), tables=str(folder / "tables"))
        self._rows = count()

    def read(self, frames: int, size: int, seed: int, pixels: Literal["rgb", "yuv"]) -> Spent:
        data = VideoDataset(self._manifest, ClipSampling(32, size, STRIDE), pixels)
        request = ClipRequest(next(self._rows), frames, size, seed)
        cpu, wall = time.process_time(), time.perf_counter()
        data.read_clip(request)
        return 1000 * (time.process_time() - cpu), 1000 * (time.perf_counter() - wall)


def measure(originals: list[Path], folder: Path, options: argparse.Namespace) -> list[dict]:
    draw, rows = random.Random(0), []
    for side in options.sides:
        (folder / f"{side}.csv").write_text("".join(f"{path} 0\n" for path in originals))
        manifest, files = VideoList(folder / f"{side}.csv").read(), {"original": originals}
        for name, encoding in (("copy", Encoding(side)), ("planes", Planes(side))):
            prepare(manifest, made := folder / f"{name}_{side}", encoding)
            files[name] = [Path(path) for path in VideoList(made).read().paths()]
        clips = len(options.frames) * options.rounds * options.clips
        sources = {
            name: Source(paths, folder / f"{name}_links_{side}", clips, indexed=name == "original")
            for name, paths in files.items()
        }
        for frames in options.frames:
            seen: dict[str, list[Spent]] = {name: [] for name in sources}
            for _ in range(options.rounds):
                spent: dict[str, list[Spent]] = {name: [] for name in sources}
                for _ in range(options.clips):
                    seed = draw.randrange(2**62)
                    for name in draw.sample(sorted(sources), len(sources)):
                        spent[name].append(sources[name].read(frames, side * 7 // 8, seed, options.pixels))
                for name, of in spent.items():
                    cpu, wall = zip(*of, strict=True)
                    seen[name].append((sum(cpu) / len(of), sum(wall) / len(of)))
            row: dict = {"side": side, "frames": frames}
            for name, of in seen.items():
                row[name] = {"cpu_ms": median(cpu for cpu, _ in of), "wall_ms": median(wall for _, wall in of)}
            rows.append(row)
        for name, paths in files.items():
            print(f"{side} pixels, {name}: {sum(path.stat().st_size for path in paths) / 1e6:.1f} MB")
    return rows


def main(args: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("videos", type=Path, nargs="*", help="mp4 files; made if none is given")
    parser.add_argument("--made", type=int, default=4, help="videos that are made (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=10, help="of each of these (default: %(default)s)")
    parser.add_argument("--sides", type=int, nargs="+", default=[128, 256], help="short sides (default: %(default)s)")
    parser.add_argument("--frames", type=int, nargs="+", default=[4, 8, 16, 32], help="(default: %(default)s)")
    parser.add_argument("--pixels", choices=["yuv", "rgb"], default="yuv", help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--clips", type=int, default=20, help="of each kind in a round (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers there")
    options = parser.parse_args(args)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        originals = [folder / f"original_{number}.mp4" for number in range(len(options.videos) or options.made)]
        for number, path in enumerate(originals):
            if options.videos:  # copies, as there may be no hard links across disks
                path.write_bytes(options.videos[number].read_bytes())
            else:
                make_footage(str(path), options.seconds, 360, 640, number)
        rows = measure(originals, folder, options)
    for row in rows:
        cells = (f"{name} {row[name]['cpu_ms']:.3f} ({row[name]['wall_ms']:.3f})" for name in [*row][2:])
        print(f"{row['side']} pixels, {row['frames']} frames: CPU ms (wall) {', '.join(cells)}")
    write_json(options, "planes", {"rows": rows}, ["av"])


if __name__ == "__main__":
    main()
