"""What reading a list of videos costs: CPU seconds, and memory above that of the imports.

    python benchmarks/benchmark_lists.py --rows 1000000 --json lists.json

The list has lines such as `class 17/video_0000417.mp4,class 17`. It is read in a process that reads nothing else.
"""

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path

from measuring import write_json

from lightning_multigrid.sources import VideoList

MEGA = 2**20 if sys.platform == "darwin" else 2**10  # the units of `ru_maxrss`
CLASSES = 400


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path, help="file to write")
    options = parser.parse_args(args)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "list.csv"
        with path.open("w") as file:
            file.write("path,label\n")
            for row in range(options.rows):
                file.write(f"class {row % CLASSES}/video_{row:07d}.mp4,class {row % CLASSES}\n")
        before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        manifest = VideoList(path).read()
        seconds = time.process_time() - start
        above = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / MEGA
        size = path.stat().st_size / 1e6
    print(f"{len(manifest):,} rows ({size:.1f} MB): {seconds:.2f} CPU seconds, {above:.0f} MiB above the imports")
    write_json(options, "lists", {"cpu_seconds": seconds, "mebibytes": above})


if __name__ == "__main__":
    main()
