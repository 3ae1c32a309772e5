"""How many clips per second and core video decoders give, on ordinary and on prepared H.264 files.

    python benchmarks/benchmark_decode.py
    python benchmarks/benchmark_decode.py --videos FOLDER --rounds 5 --json decode.json

Clips are as in training: 8 frames at a stride of 2 to 8, 16 at 2 to 4, 32 at 2, starting anywhere. All methods take
turns at every clip, in random order, and all but the second give the same frames as RGB bytes:

- `ours`: `VideoReader` with the index of the file, unpacked for each clip;
- `ours, YUV`: the same, but returns the planes unconverted, as training on a GPU uses them (colours within 3 of 255);
- `pyslowfast`: PyAV as PySlowFast uses it: seek to the clip, decode its whole span, convert every frame of it;
- `pyav`: PyAV from the first frame on;
- `torchcodec exact`, `torchcodec approximate`: a `VideoDecoder` with one thread;
- `decord`, `opencv`: with one thread.

Methods that are not installed are left out, and named. Times are process times of all threads, which other jobs on the
machine disturb least; the files are in the page cache. Trust the ratios, which are taken within a round, not the times.

Without `--videos` the script draws the footage: moving shapes over drifting textures, with noise. `ordinary` files have
x264's defaults, with a keyframe every 250 frames; `prepared` ones are what `lightning-multigrid prepare` makes of them.

The last row of a table is libavcodec's part of our time: the same packets, in memory, through the same decoder, and
nothing done with the frames.
"""

import argparse
import importlib
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from statistics import mean, median

import av
import numpy as np
import torch
from measuring import machine, machine_line, prepared_copy, write_json
from torch import Tensor

from lightning_multigrid.decode import PacketIndex, VideoError, VideoReader, build_index
from lightning_multigrid.decode.ranges import packet_ranges
from lightning_multigrid.decode.thread_cache import ThreadCache
from lightning_multigrid.pixels import YuvClip

GRIDS = {"8 frames": (8, 2, 8), "16 frames": (16, 2, 4), "32 frames": (32, 2, 2)}  # frames, least and greatest stride
SIZES = ["340x256", "640x360", "1920x1080"]
ORDINARY = {"g": "250", "preset": "medium", "crf": "23", "x264-params": "log-level=none"}
SEEK_MARGIN = 1024  # PySlowFast seeks to so many ticks before the clip
PACKAGES = ["av", "torchcodec", "decord", "cv2"]
LIBAVCODEC = "of ours, libavcodec"

Frames = np.ndarray
Method = Callable[[Path, list[int]], "Frames | YuvClip | Tensor"]


def footage(count: int, height: int, width: int, seed: int) -> Iterator[Frames]:
    """Frames H x W x 3: a texture with the spectrum of photographs drifts, textured shapes cross it, noise is added."""
    draw = np.random.default_rng(seed)

    def texture(rows: int, columns: int) -> np.ndarray:
        y, x = np.fft.fftfreq(rows)[:, None], np.fft.rfftfreq(columns)[None]
        spectrum = draw.normal(size=(3, *np.broadcast_shapes(y.shape, x.shape), 2)) @ [1, 1j]
        planes = np.fft.irfft2(spectrum / np.maximum(np.hypot(x, y), 1 / columns) ** 1.3, s=(rows, columns))
        planes = 0.6 * planes.mean(0) + 0.4 * planes
        planes = (planes - planes.min()) / np.ptp(planes)
        return (255 * planes).astype(np.float32).transpose(1, 2, 0)

    margin = height // 2
    ground = texture(height + 2 * margin, width + 2 * margin)
    shapes = [texture(height // 3, width // 4) for _ in range(3)]
    phases = draw.uniform(0, 6, (len(shapes) + 1, 2))
    for number in range(count):
        wave = np.sin(phases + number * np.array([0.031, 0.023]))
        top, left = (margin * (1 + 0.9 * wave[0])).astype(int)
        frame = ground[top : top + height, left : left + width].copy()
        for shape, place in zip(shapes, wave[1:], strict=True):
            rows, columns, _ = shape.shape
            y, x = ((1 + place) / 2 * (height - rows, width - columns)).astype(int)
            frame[y : y + rows, x : x + columns] = shape
        noise = draw.normal(0, 2.5, (height, width, 1))
        yield np.clip(frame + noise, 0, 255).astype(np.uint8)


def make_footage(path: Path, seconds: float, height: int, width: int, seed: int, rate: int = 30) -> None:
    """Writes footage as an ordinary H.264 file."""
    with av.open(str(path), "w", options={"movflags": "+faststart"}) as container:
        stream = container.add_stream("libx264", rate=rate, options=ORDINARY)
        stream.height, stream.width, stream.thread_count = height, width, 1
        for number, pixels in enumerate(footage(round(rate * seconds), height, width, seed)):
            frame = av.VideoFrame.from_ndarray(pixels, "rgb24").reformat(format="yuv420p")
            frame.pts, frame.time_base = number, Fraction(1, rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def make_files(folder: Path, sizes: list[str], seconds: float, videos: Path | None, seed: int) -> dict[str, Path]:
    """Returns the files by name: every source as it is (ordinary), and prepared."""
    sources: dict[str, Path] = {}
    if videos is not None:
        sources = {path.stem: path for path in sorted(videos.glob("*.mp4")) if is_h264(path)}
    else:
        for number, size in enumerate(sizes):
            width, height = map(int, size.split("x"))
            path = sources[size] = folder / f"{size}.mp4"
            make_footage(path, seconds, height, width, seed + number)
    files = {}
    for name, path in sources.items():
        files[f"{name} ordinary"] = path
        files[f"{name} prepared"] = prepared_copy(path, folder / f"{name}_prepared.mp4")
    return files


def is_h264(path: Path) -> bool:
    try:
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            long_enough = stream.frames >= 8 * GRIDS["8 frames"][2]
            return stream.codec_context.name == "h264" and long_enough and build_index(path).direct
    except (av.FFmpegError, IndexError, VideoError):
        return False


def ours(indices_of: dict[Path, bytes]) -> Method:
    def read(path: Path, indices: list[int]) -> Frames:
        with VideoReader(path, PacketIndex.from_bytes(indices_of[path])) as reader:
            return reader.read(indices).numpy()

    return read


def ours_yuv(indices_of: dict[Path, bytes]) -> Callable[[Path, list[int]], YuvClip | Tensor]:
    def read(path: Path, indices: list[int]) -> YuvClip | Tensor:
        with VideoReader(path, PacketIndex.from_bytes(indices_of[path])) as reader:
            return reader.read_yuv(indices)

    return read


def agree(frames: Frames | YuvClip | Tensor, expected: Frames) -> bool:
    """Whether frames are as expected: RGB to the bit, YUV within 3 of 255."""
    if isinstance(frames, YuvClip):
        return bool(np.abs(frames.rgb().permute(1, 2, 3, 0).round().numpy() - expected).max() <= 3)
    return np.array_equal(frames, expected)


def libavcodec(path: Path) -> Callable[[list[int]], float]:
    """Measures libavcodec's part of a read of ours: process time, with a decoder that is kept from clip to clip."""
    index, data, cache = build_index(path), path.read_bytes(), ThreadCache()

    def seconds(indices: list[int]) -> float:
        spent = 0.0
        for packet_range in packet_ranges(index, indices):
            packets = []
            for number in packet_range.packets:
                start = index.positions[number]
                packets.append(av.Packet(data[start : start + index.sizes[number]]))
                packets[-1].pts = packets[-1].dts = number
            with cache.decoder(index) as codec:
                began = time.process_time()
                for packet in [*packets, None]:
                    codec.decode(packet)
                spent += time.process_time() - began
        return spent

    return seconds


def pyav_from_start(path: Path, indices: list[int]) -> Frames:
    wanted, frames = set(indices), {}
    with av.open(str(path)) as container:
        for number, frame in enumerate(container.decode(video=0)):
            if number in wanted:
                frames[number] = frame.to_ndarray(format="rgb24")
            if number == indices[-1]:
                break
    return np.stack([frames[index] for index in indices])


def pyslowfast(times_of: dict[Path, list[int]]) -> Method:
    """Seeks to before the clip, decodes its span with PyAV's defaults, converts all of it, then takes the frames."""

    def read(path: Path, indices: list[int]) -> Frames:
        times = times_of[path]
        start, end = times[indices[0]], times[indices[-1]]
        span = {}
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            container.seek(max(start - SEEK_MARGIN, 0), any_frame=False, backward=True, stream=stream)
            for frame in container.decode(video=0):
                if frame.pts >= start:
                    span[frame.pts] = frame
                if frame.pts > end:
                    break
            converted = np.stack([span[time].to_rgb().to_ndarray() for time in sorted(span)])
        return converted[[index - indices[0] for index in indices]]

    return read


def torchcodec(mode: str) -> Method:
    decoders = importlib.import_module("torchcodec.decoders")
    try:
        decoders.VideoDecoder(b"no video")
    except Exception as error:  # some versions look for FFmpeg's libraries only now
        if "libtorchcodec" in str(error):
            raise ImportError(str(error)) from error

    def read(path: Path, indices: list[int]) -> Frames:
        decoder = decoders.VideoDecoder(str(path), dimension_order="NHWC", num_ffmpeg_threads=1, seek_mode=mode)
        return decoder.get_frames_at(indices).data.numpy()

    return read


def decord() -> Method:
    module = importlib.import_module("decord")
    return lambda path, indices: module.VideoReader(str(path), num_threads=1).get_batch(indices).asnumpy()


def opencv() -> Method:
    cv2 = importlib.import_module("cv2")
    cv2.setNumThreads(1)

    def read(path: Path, indices: list[int]) -> Frames:
        capture = cv2.VideoCapture(str(path), cv2.CAP_FFMPEG, [cv2.CAP_PROP_N_THREADS, 1])
        capture.set(cv2.CAP_PROP_POS_FRAMES, indices[0])
        frames, place = [], indices[0]
        for index in indices:
            while place <= index:
                capture.grab()
                place += 1
            frames.append(cv2.cvtColor(capture.retrieve()[1], cv2.COLOR_BGR2RGB))
        capture.release()
        return np.stack(frames)

    return read


def methods(files: dict[str, Path]) -> tuple[dict[str, Method], list[str]]:
    """Methods by name, and the names of those that are not installed."""
    indices = {path: build_index(path) for path in files.values()}
    packed = {path: index.to_bytes() for path, index in indices.items()}
    found: dict[str, Method] = {
        "ours": ours(packed),
        "ours, YUV": ours_yuv(packed),
        "pyslowfast": pyslowfast({path: index.shown_times.tolist() for path, index in indices.items()}),
        "pyav": pyav_from_start,
    }
    missing = []
    others = {
        "torchcodec exact": lambda: torchcodec("exact"),
        "torchcodec approximate": lambda: torchcodec("approximate"),
        "decord": decord,
        "opencv": opencv,
    }
    for name, make in others.items():
        try:
            found[name] = make()
        except (ImportError, OSError, RuntimeError) as error:
            missing.append(f"{name} ({type(error).__name__})")
    return found, missing


def draw_clip(length: int, grid: tuple[int, int, int], draw: random.Random) -> list[int]:
    frames, least, most = grid
    stride = max(1, min(draw.randint(least, most), (length - 1) // (frames - 1)))
    start = draw.randrange(length - (frames - 1) * stride)
    return [start + point * stride for point in range(frames)]


def measure(path: Path, found: dict[str, Method], rounds: int, clips: int, draw: random.Random) -> dict[str, dict]:
    """For each grid and method the milliseconds of a clip in each round, and whether its frames are those of `pyav`."""
    length = len(build_index(path))
    times = {grid: {name: [] for name in [*found, LIBAVCODEC]} for grid in GRIDS}
    alone = libavcodec(path)
    same = dict.fromkeys(found, True)
    for grid, shape in GRIDS.items():
        if length < shape[0] * shape[1]:
            raise SystemExit(f"{path} has {length} frames; at least {shape[0] * shape[1]} are needed")
        clip = draw_clip(length, shape, draw)
        expected = pyav_from_start(path, clip)
        for name, read in found.items():  # and a warm-up
            same[name] &= agree(read(path, clip), expected)
        alone(clip)
        for _ in range(rounds):
            spent = dict.fromkeys(times[grid], 0.0)
            for _ in range(clips):
                clip = draw_clip(length, shape, draw)
                for name in draw.sample(sorted(found), len(found)):
                    began = time.process_time()
                    found[name](path, clip)
                    spent[name] += time.process_time() - began
                spent[LIBAVCODEC] += alone(clip)
            for name, seconds in spent.items():
                times[grid][name].append(1000 * seconds / clips)
    return {"ms": times, "same": same}


def summary(times: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    """For each method the median milliseconds per grid, their mean, and how many times as long as ours it takes."""
    table = {}
    for name in next(iter(times.values())):
        row = {grid: median(times[grid][name]) for grid in times}
        rounds = range(len(next(iter(times.values()))[name]))
        ratios = [
            mean(times[grid][name][r] for grid in times) / mean(times[grid]["ours"][r] for grid in times)
            for r in rounds
        ]
        table[name] = row | {"mean": mean(row.values()), "x ours": median(ratios)}
    return table


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Clips per second and core of video decoders, as ratios in one run.")
    parser.add_argument("--videos", type=Path, metavar="FOLDER", help="H.264 files (*.mp4) to use; made if not given")
    parser.add_argument("--sizes", nargs="+", default=SIZES, help="of files that are made (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=10, help="of files that are made (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--clips", type=int, default=6, help="per grid, file and round (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of footage and clips (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers there")
    options = parser.parse_args(args)
    torch.set_num_threads(1)
    draw = random.Random(options.seed)
    about = machine(torch.device("cpu"), PACKAGES)
    print(", ".join([machine_line(about), *(f"{name} {about[name]}" for name in PACKAGES if about[name])]))
    report = {}
    with tempfile.TemporaryDirectory() as folder:
        files = make_files(Path(folder), options.sizes, options.seconds, options.videos, options.seed)
        if not files:
            parser.error(f"--videos {options.videos}: no H.264 file of 64 frames or more in mp4 there")
        found, missing = methods(files)
        if missing:
            print("not installed:", ", ".join(missing))
        for name, path in files.items():
            result = measure(path, found, options.rounds, options.clips, draw)
            table = summary(result["ms"])
            size = path.stat().st_size
            report[name] = {"bytes": size, "table": table, **result}
            print(f"\n{name}, {size / 1e6:.2f} MB: CPU ms per clip")
            print(f"{'':<24}" + "".join(f"{column:>12}" for column in [*GRIDS, "mean", "clips/s/core", "x ours"]))
            for method, row in table.items():
                cells = [*(row[grid] for grid in GRIDS), row["mean"], 1000 / row["mean"], row["x ours"]]
                note = "" if result["same"].get(method, True) else "   other pixels than PyAV's"
                print(f"{method:<24}" + "".join(f"{cell:>12.2f}" for cell in cells) + note, flush=True)
    given = {"device": "cpu"} | {name: vars(options)[name] for name in ("sizes", "seconds", "rounds", "clips", "seed")}
    write_json(options.json, "decode", given, {"files": report}, PACKAGES)


if __name__ == "__main__":
    main()
