"""What `prepare` costs, and what it loses, by x264's settings: bytes, CPU time and PSNR of each file.

    python benchmarks/benchmark_prepare.py FOLDER [FOLDER ...] --json prepare.json

The first frames of each video, scaled down, are kept without loss, and `prepare`'s own function encodes these by each
setting. PSNR is that of the luma of all frames against those that the encoder was given. Settings are compared at equal
bytes: on the line through the points of a setting, log bytes against PSNR, where today's default has its bytes.
Times are CPU times of one thread: of the encoding with its frame table, and of a clip of 16 frames at a stride of 4.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice, pairwise
from pathlib import Path
from statistics import median

import av
import numpy as np
import torch
from measuring import machine, machine_line, write_json

from lightning_multigrid.decode import FullDecode, VideoError, VideoReader
from lightning_multigrid.prepare import Encoding
from lightning_multigrid.prepare.transcode import TranscodeJob, transcode

# Name: the preset, and further parameters of x264.
SETTINGS = {
    "medium": ("medium", ""),
    "medium, refs=1": ("medium", "ref=1"),
    "medium, partitions=none": ("medium", "partitions=none"),
    "veryfast": ("veryfast", ""),
}
FEWEST = 16  # frames of a video
CLIPS, SPAN, STRIDE = 5, 64, 4


@dataclass(frozen=True)
class Setting(Encoding):
    """`prepare`'s encoding with further parameters of x264."""

    parameters: str = ""

    def options(self) -> dict[str, str]:
        options = super().options()
        return options | {"x264-params": ":".join(filter(None, (options["x264-params"], self.parameters)))}


def keep_lossless(source: Path, target: Path, short_side: int, frames: int) -> tuple[int, int]:
    """Writes the first frames of a video, scaled down, without loss; returns their number and their short side."""
    number = 0
    with FullDecode(source) as decode, av.open(str(target), "w") as container:
        stream = container.add_stream("libx264", rate=30, options={"qp": "0", "preset": "ultrafast", "threads": "1"})
        for number, frame in enumerate(islice(decode, frames), 1):
            if number == 1:
                height, width = Encoding(short_side).size(frame.height, frame.width)
                stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
            scaled = frame.reformat(width, height, "yuv420p", interpolation="BICUBIC", dst_color_range="MPEG")
            scaled.pts, scaled.time_base, scaled.pict_type = number, Fraction(1, 30), 0
            container.mux(stream.encode(scaled))
        container.mux(stream.encode())
        if decode.damage:
            raise VideoError(str(source), str(decode.damage))  # as `prepare` leaves it out
    return number, min(height, width)


def lumas(path: Path) -> Iterator[np.ndarray]:
    """The luma of each frame."""
    with av.open(str(path)) as container:
        for frame in container.decode(video=0):
            yield frame.to_ndarray(format="yuv420p")[: frame.height]


def psnr(path: Path, reference: Path) -> float:
    """The PSNR of a video, in dB, over all frames together."""
    pairs = zip(lumas(path), lumas(reference), strict=True)
    errors = [np.mean((one.astype(np.float32) - other) ** 2) for one, other in pairs]
    return float(10 * np.log10(255**2 / max(float(np.mean(errors)), 1e-3)))


def encoded(reference: Path, target: Path, setting: Setting) -> dict[str, float]:
    """Encodes a video as `prepare` does, and measures."""
    start = time.process_time()
    transcode(TranscodeJob(str(reference), str(target), setting))
    seconds, draw, spent = time.process_time() - start, random.Random(0), []
    for _ in range(CLIPS):
        with VideoReader(target) as reader:
            frames = range(draw.randint(0, max(0, len(reader) - SPAN)), len(reader), STRIDE)[: SPAN // STRIDE]
        start = time.process_time()
        with VideoReader(target) as reader:
            reader.read(frames)
        spent.append(time.process_time() - start)
    found = {"crf": setting.crf, "bytes": target.stat().st_size, "psnr": psnr(target, reference)}
    return found | {"encode_s": seconds, "clip_ms": 1000 * median(spent)}


def at(x: float, points: Sequence[tuple[float, float]]) -> float:
    """The line through some points, continued at both ends."""
    points = sorted(points)
    (x0, y0), (x1, y1) = next((pair for pair in pairwise(points) if x <= pair[1][0]), points[-2:])
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def compared(of: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Each setting against today's default: PSNR at equal bytes, bytes at equal PSNR, and times at the same `crf`."""
    default = next(row for row in of[Encoding.preset] if row["crf"] == Encoding.crf)
    size = float(np.log(default["bytes"]))
    ratios = {}
    for name, rows in of.items():
        curve = [(float(np.log(row["bytes"])), row["psnr"]) for row in rows]
        same = next(row for row in rows if row["crf"] == Encoding.crf)
        ratios[name] = {
            "psnr_at_equal_bytes": at(size, curve) - default["psnr"],
            "bytes_at_equal_psnr": float(np.exp(at(default["psnr"], [(y, x) for x, y in curve]) - size)),
            "encode": same["encode_s"] / default["encode_s"],
            "clip": same["clip_ms"] / default["clip_ms"],
        }
    return ratios


def by_crf(files: dict[str, dict]) -> dict[str, dict[str, float]]:
    """What another `crf` of the default preset does: bytes, times and PSNR against the default's, medians of files."""
    found: dict[str, dict[str, float]] = {}
    crfs = sorted({row["crf"] for file in files.values() for row in file["settings"][Encoding.preset]})
    for crf in crfs:
        pairs = []
        for file in files.values():
            rows = {row["crf"]: row for row in file["settings"][Encoding.preset]}
            pairs.append((rows[crf], rows[Encoding.crf]))
        ratios = {
            name: median(one[name] / other[name] for one, other in pairs) for name in ("bytes", "encode_s", "clip_ms")
        }
        found[f"{crf:g}"] = ratios | {"psnr": median(one["psnr"] - other["psnr"] for one, other in pairs)}
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="videos")
    parser.add_argument("--short-sides", nargs="+", type=int, default=[128, 256], help="default: %(default)s")
    parser.add_argument("--crf", nargs="+", type=float, default=[18, 21, 24], help="with 21; default: %(default)s")
    parser.add_argument("--frames", type=int, default=75, help="first ones of each video (default: %(default)s)")
    parser.add_argument("--most", type=int, default=13, help="videos of each folder (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="file to write")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(machine_line(machine(torch.device("cpu"))))
    files: dict[str, dict] = {}
    with tempfile.TemporaryDirectory() as folder:
        reference, target = Path(folder, "reference.mkv"), Path(folder, "target.mp4")
        for path in (path for given in options.folders for path in sorted(given.iterdir())[: options.most]):
            for short_side in options.short_sides:
                try:
                    number, side = keep_lossless(path, reference, short_side, options.frames)
                except VideoError as error:
                    print(error)
                    break
                name = f"{path.name} at {side}"
                if number < FEWEST or name in files:
                    continue
                of = {
                    setting: [encoded(reference, target, Setting(side, crf, *given)) for crf in options.crf]
                    for setting, given in SETTINGS.items()
                }
                files[name] = {"frames": number, "settings": of, "against": compared(of)}
                against = files[name]["against"]["veryfast"]
                print(name, " ".join(f"{key} {value:.2f}" for key, value in against.items()), flush=True)
                write_json(options, "prepare", {"files": files, "by_crf": by_crf(files)}, ["av"])
    for crf, row in by_crf(files).items():
        print(f"crf {crf}", " ".join(f"{name} {value:.2f}" for name, value in row.items()))


if __name__ == "__main__":
    main()
