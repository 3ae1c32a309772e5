"""What a clip costs by the codec, the keyframes and the container of its file: CPU time of readers, bytes of a range.

    python benchmarks/benchmark_codecs.py --json codecs.json
    python benchmarks/benchmark_codecs.py --video video.mp4 --minutes 10

All files hold the same video, with a short side of 256 pixels, repeated for some minutes: one as `prepare` makes it,
the others at the encoders' own quality. A clip is 16 frames at a stride of 2 that begin anywhere. Each reader opens the
file for each clip, on one thread, and times are process times; all take turns at each clip. The bytes are those of the
bodies that a server on this machine is asked for, without what a process asks of a file that it meets first.
"""

import argparse
import random
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from statistics import median

import av
import torch
from benchmark_decode import draw_clip, make_footage, opened, ours, pyslowfast, repeated, torchcodec
from measuring import prepared_copy, write_json

from lightning_multigrid.decode import VideoReader

sys.path.insert(0, str(Path(__file__).parents[1]))  # in which `tests` are

from tests.helpers.video_server import serving

X265 = "keyint=250:log-level=none"
PREPARED = "H.264, a keyframe every 33 frames (`prepare`)"
# Encoder, its options, suffix, and options of the container; without an encoder, the frames of `PREPARED` as they are.
KINDS = {
    PREPARED: (None, {}, ".mp4", {}),
    "the same, in Matroska": (None, {}, ".mkv", {}),
    "the same, in Matroska without an index": (None, {}, ".mkv", {"live": "1"}),
    "H.264, a keyframe every 250 frames": ("libx264", {"g": "250", "crf": "23"}, ".mp4", {}),
    "H.264, only keyframes": ("libx264", {"g": "1", "crf": "23"}, ".mp4", {}),
    "H.265, a keyframe every 250 frames": ("libx265", {"crf": "28", "x265-params": X265}, ".mp4", {}),
    "AV1, a keyframe every 160 frames": ("libsvtav1", {"g": "160", "crf": "35", "preset": "8"}, ".mp4", {}),
}
CLIP = 16, 2, 2  # frames, least and greatest stride


def encoded(source: Path, target: Path, encoder: str, options: dict[str, str]) -> Path:
    """Writes the frames of a file by another encoder."""
    with av.open(str(source)) as given, av.open(str(target), "w") as container:
        video = given.streams.video[0]
        stream = container.add_stream(encoder, rate=video.average_rate, options=options)
        stream.width, stream.height, stream.pix_fmt = video.width, video.height, "yuv420p"
        for number, frame in enumerate(given.decode(video)):
            frame.pts, frame.time_base, frame.pict_type = number, Fraction(1) / video.average_rate, 0
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return target


def measure(path: Path, folder: Path, clips: int, draw: random.Random) -> dict:
    video, ms, sizes = opened(path), {}, []
    readers = {"ours": ours(video), "PyAV, seeking": pyslowfast(video), "torchcodec": torchcodec()}
    drawn = [draw_clip(len(video.table), CLIP, draw) for _ in range(clips + 1)]
    for clip in drawn:
        for name in draw.sample(sorted(readers), len(readers)):
            began = time.process_time()
            readers[name](path, clip)
            ms.setdefault(name, []).append(1000 * (time.process_time() - began))
    with serving(folder, folder / f"{path.name}.told") as server:
        for clip in drawn:
            server.forget()
            with VideoReader(f"{server.url}/{path.name}", video.table) as reader:
                reader.read(clip)
            spans = [map(int, re.findall(r"bytes=(\d+)-(\d+)", line)[0]) for line in server.ranges]
            sizes.append([end + 1 - start for start, end in spans])
    return {
        "bytes_per_minute": path.stat().st_size / video.minutes,
        "ms": {name: median(of[1:]) for name, of in ms.items()},  # the first is a warm-up
        "bytes": median(sum(of) for of in sizes[1:]),
        "requests": max(len(of) for of in sizes[1:]),
    }


def main(args: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--video", type=Path, metavar="FILE", help="an mp4 file; made if not given")
    parser.add_argument("--minutes", type=float, default=10, help="of each file (default: %(default)s)")
    parser.add_argument("--clips", type=int, default=30, help="of each file (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=10, help="of a video that is made (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers there")
    options = parser.parse_args(args)
    torch.set_num_threads(1)
    rows, draw = {}, random.Random(0)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        source, prepared = options.video or folder / "made.mp4", folder / "prepared.mp4"
        if options.video is None:
            make_footage(source, options.seconds, 360, 640, seed=0)
        prepared_copy(source, prepared)
        times = max(1, round(options.minutes / opened(prepared).minutes))
        for number, (kind, (encoder, given, suffix, of_container)) in enumerate(KINDS.items()):
            once = prepared if encoder is None else encoded(prepared, folder / f"{number}_once{suffix}", encoder, given)
            path = repeated(once, folder / f"{number}{suffix}", times, of_container)
            row = rows[kind] = measure(path, folder, options.clips, draw)
            told = ", ".join(f"{name} {ms:.1f}" for name, ms in row["ms"].items())
            print(f"{kind}: CPU ms {told}; {row['bytes'] / 1e3:.0f} KB, {row['requests']} requests at most", flush=True)
    write_json(options, "codecs", {"rows": rows}, ["av", "torchcodec"])


if __name__ == "__main__":
    main()
