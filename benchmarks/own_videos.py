"""What a new user gets: a folder of mixed videos, the config that `init` writes for it, and what `compare` says.

    python benchmarks/own_videos.py --videos 400 --folder /scratch/own              # by whichever way `init` takes
    python benchmarks/own_videos.py --videos 400 --folder /scratch/own --callback   # with MultigridCallback in any case
    python benchmarks/own_videos.py --videos 24 --folder /scratch/tiny --seeds 1 --trainer.max_epochs=2   # minutes

The folder gets clips of moving shapes in four classes, in seven containers and codecs, one of them GIF, and with short
sides of 120 to 240 pixels; names with blanks and accents; one video is cut short, and one file is a text.
All steps are the commands that a user types. What is there is not made again, so an interrupted run continues; options
with a dot go to `compare`. The time of `init`, most of which is preparing, counts for all variants.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import av
import numpy as np

from lightning_multigrid.reports import Comparison
from lightning_multigrid.schedule import text_table
from lightning_multigrid.video.shape_clips import DIRECTIONS, SHAPES, Image, draw_clip

CLASSES = {"down": "vers le bas é", "left": "to the left", "right": "to the right", "up": "upwards"}
# Suffix, encoder, its options, and the format of pixels.
KINDS: list[tuple[str, str, dict[str, str], str]] = [
    (".mp4", "libx264", {}, "yuv420p"),
    (".avi", "mpeg4", {}, "yuv420p"),
    (".gif", "gif", {}, "rgb8"),
    (".mkv", "libx265", {"preset": "ultrafast", "x265-params": "log-level=none"}, "yuv420p"),
    (".mov", "mjpeg", {}, "yuvj420p"),
    (".webm", "libvpx-vp9", {"deadline": "realtime", "cpu-used": "8"}, "yuv420p"),
    (".mpg", "mpeg2video", {}, "yuv420p"),
]
SIZES = [(120, 160), (144, 192), (180, 240), (240, 320)]  # height, width
RATES = [24, 25, 30]  # those that MPEG-2 knows
REPEATS = 2  # of each drawn frame: a video of two seconds


def write_video(path: Path, clip: Image, kind: int, height: int, width: int, rate: int) -> Path:
    """Writes a clip T x H x W x 3 with each frame several times, as one of `KINDS`; returns where."""
    suffix, encoder, options, pixels = KINDS[kind]
    path = path.with_suffix(suffix)
    with av.open(f"file:{path}", "w") as container:
        stream = container.add_stream(encoder, rate=rate, options=options)
        stream.height, stream.width, stream.pix_fmt = height, width, pixels
        for drawn in np.repeat(clip, REPEATS, axis=0):
            frame = av.VideoFrame.from_ndarray(drawn, format="rgb24")
            container.mux(stream.encode(frame.reformat(width, height, format=pixels)))
        container.mux(stream.encode())
    return path


def make_videos(folder: Path, number: int) -> None:
    """Writes a folder per class, each with the same share of the videos; the same ones for the same number."""
    rng = np.random.default_rng(0)
    for index in range(number):
        direction = DIRECTIONS[index % len(DIRECTIONS)]
        own = folder / CLASSES[direction]
        own.mkdir(parents=True, exist_ok=True)
        height, width = SIZES[rng.integers(len(SIZES))]
        clip = draw_clip(SHAPES[rng.integers(len(SHAPES))], direction, rng)
        kind = index // len(DIRECTIONS) % len(KINDS)  # each class has all
        write_video(own / f"vidéo {index:05d}", clip, kind, height, width, int(RATES[rng.integers(len(RATES))]))
    whole = next(folder.rglob("*.mp4"))
    (whole.parent / "cut short.mp4").write_bytes(whole.read_bytes()[:200])
    (folder / CLASSES["up"] / "notes.txt").write_text("no video\n")


def command(*words: str) -> float:
    """Runs a command of ours; returns how many seconds it took."""
    started = time.monotonic()
    subprocess.run([sys.executable, "-m", "lightning_multigrid", *words], check=True)
    return time.monotonic() - started


def table(comparison: Comparison, before: float) -> str:
    """The wall clock of each variant with what came before its training, in seconds."""
    runs = {variant: comparison.seconds(variant) for variant in comparison.runs if comparison.runs[variant]}
    baseline = runs["baseline"] + before
    rows = [
        [variant, f"{before:.0f}", f"{took:.0f}", f"{before + took:.0f}", f"{baseline / (before + took):.2f}x"]
        for variant, took in runs.items()
    ]
    return text_table(["", "init", "training", "together", "faster"], rows)


def main(args: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--videos", type=int, default=60)
    parser.add_argument("--folder", type=Path, required=True, help="for the videos, the config and the runs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--callback", action="store_true", help="hand `--callback` to `init`")
    given, to_compare = parser.parse_known_args(args)
    videos, name = given.folder / "videos", "with_callback" if given.callback else "as_init_writes"
    config, took = given.folder / f"{name}.yaml", given.folder / f"{name}.json"
    made = given.folder / "videos_are_made"
    if not made.exists():
        make_videos(videos, given.videos)
        made.touch()
    if not config.exists():
        forced = ["--callback"] if given.callback else []
        took.write_text(json.dumps(command("init", str(videos), f"--output={config}", *forced)))
    runs = given.folder / name
    command("compare", f"--config={config}", f"--output={runs}", f"--seeds={given.seeds}", *to_compare)
    print(f"\nSeconds, with those of `init`:\n{table(Comparison(runs), json.loads(took.read_text()))}")


if __name__ == "__main__":
    main()
