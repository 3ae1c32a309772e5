"""What a store of frame tables costs a training: the time and memory of opening it, and of an epoch's reads.

    python benchmarks/benchmark_store.py
    python benchmarks/benchmark_store.py --videos 240000 --bytes 6000 --json store.json

The tables are bytes without a meaning, as many as those of videos of ten seconds. Each is read once, in random order,
as in an epoch; they are in the page cache, as they were just written. Memory is that of this process (`VmRSS`).
"""

import argparse
import random
import tempfile
import time
from pathlib import Path

import torch
from measuring import machine, machine_line, write_json

from lightning_multigrid.sources import TableStore


def resident() -> int:
    """Megabytes of this process in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Time and memory of a store of frame tables.")
    parser.add_argument("--videos", type=int, default=240_000, help="(default: %(default)s)")
    parser.add_argument("--bytes", type=int, default=6_000, help="of a table (default: %(default)s)")
    parser.add_argument("--segment", type=int, default=1_000, help="videos of a segment (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers there")
    options = parser.parse_args()
    paths = [f"/videos/class_{number % 400}/{number:08d}.mp4" for number in range(options.videos)]
    table, found = random.Random(0).randbytes(options.bytes), {}
    with tempfile.TemporaryDirectory() as folder:
        for start in range(0, len(paths), options.segment):
            TableStore(folder).add(dict.fromkeys(paths[start : start + options.segment], table))
        before, began = resident(), time.perf_counter()
        tables = TableStore(folder).tables(paths)
        found["open, s"], found["open, MB"] = time.perf_counter() - began, resident() - before
        order = random.Random(0).sample(range(len(paths)), len(paths))
        before, began = resident(), time.perf_counter()
        for row in order:
            tables[row]
        found["an epoch's reads, s"], found["an epoch's reads, MB"] = time.perf_counter() - began, resident() - before
    print(machine_line(machine(torch.device("cpu"))))
    for name, value in found.items():
        print(f"{name:22} {value:8.2f}")
    asked = {"device": "cpu", "videos": options.videos, "bytes": options.bytes, "segment": options.segment}
    write_json(options.json, "store", asked, {"found": found})


if __name__ == "__main__":
    main()
