"""How much CPU time a clip costs with several video decoders, on ordinary and on prepared files; everything counts.

    python benchmarks/benchmark_decode.py
    python benchmarks/benchmark_decode.py --videos FOLDER --long 60 --json decode.json

Clips are as in training: 8 frames at a stride of 2 to 8, 16 at 2 to 4, 32 at 2, starting anywhere. Each is read from
a file that its process has not seen before (a hard link), as videos in training are mostly met again long after they
were forgotten. All methods take turns at every clip, in random order, and give the same frames as RGB bytes:

- `ours`: `VideoReader` with the table that is kept of the file, unpacked for each clip;
- `ours, YUV`: the same, but returns the planes unconverted, as training on a GPU uses them (colours within 3 of 255);
- `ours, without a table`: each file is decoded from its beginning to its end (`index: false`);
- `pyslowfast`: PyAV as PySlowFast uses it: seek to the clip, decode its whole span, convert every frame of it;
- `pyav`: PyAV from the first frame on;
- `torchcodec exact`: a `VideoDecoder`, which scans each file; `torchcodec, frame mappings`: with what this scan finds,
  made once and kept; `torchcodec approximate`: without a scan;
- `decord`, `opencv`.

All use one thread. Methods that are not installed are left out, and named. Times are process times, which other jobs on
the machine disturb least; the files are in the page cache. Trust the ratios, which are taken within a round, not the
times. A file whose pixels are not square is wider in ours and in `pyav`: the others show it narrower than a player.

Without `--videos` the script draws the footage: moving shapes over drifting textures, with noise. `ordinary` files have
x264's defaults, with a keyframe every 250 frames; `prepared` ones are what `lightning-multigrid prepare` makes of them.
`--long MINUTES` adds the first file, repeated for so long, to the ordinary ones.
"""

import argparse
import importlib
import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import count
from pathlib import Path
from statistics import mean, median
from typing import Any

import av
import numpy as np
import torch
from measuring import machine, machine_line, prepared_copy, write_json
from torch import Tensor

from lightning_multigrid.decode import FrameTable, VideoError, VideoReader, make_table
from lightning_multigrid.pixels import YuvClip

GRIDS = {"8 frames": (8, 2, 8), "16 frames": (16, 2, 4), "32 frames": (32, 2, 2)}  # frames, least and greatest stride
SIZES = ["340x256", "640x360", "1920x1080"]
ORDINARY = {"g": "250", "preset": "medium", "crf": "23", "x264-params": "log-level=none"}
SEEK_MARGIN = 1024  # PySlowFast seeks to so many ticks before the clip
PACKAGES = ["av", "torchcodec", "decord", "cv2"]
WHOLE = ("ours, without a table", "pyav")  # they decode a file from its beginning: of an hour, nobody would

Frames = np.ndarray
Read = Callable[[Path, list[int]], "Frames | YuvClip | Tensor"]


@dataclass
class Video:
    """A file, what is kept of it, and what it cost to make that."""

    path: Path
    table: FrameTable
    table_seconds: float
    mappings: str  # for torchcodec
    repeats: "Video | None" = None  # the one that this one holds many times

    @property
    def minutes(self) -> float:
        return len(self.table) / self.table.rate / 60

    def costs(self) -> dict[str, float]:
        """What the table costs."""
        return {
            "CPU s to make it": self.table_seconds,
            "CPU s for a minute of video": self.table_seconds / self.minutes,
        }


def opened(path: Path, repeats: Video | None = None) -> Video:
    began = time.process_time()
    table = make_table(path)
    seconds = time.process_time() - began
    frames = []
    with av.open(str(path)) as container:
        for packet in container.demux(container.streams.best("video")):
            if packet.size:
                frames.append({"pts": packet.pts, "duration": packet.duration, "key_frame": int(packet.is_keyframe)})
    frames.sort(key=lambda frame: frame["pts"])
    return Video(path, table, seconds, json.dumps({"frames": frames}), repeats)


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


def make_files(folder: Path, sizes: list[str], seconds: float, videos: Path | None) -> dict[str, Video]:
    """Returns the files by name: every source as it is (ordinary), and prepared."""
    sources: dict[str, Path] = {}
    if videos is not None:
        for path in sorted(videos.glob("*.mp4")):
            # A copy, as there may be no hard links from the folder to the scratch disk.
            (copy := folder / path.name).write_bytes(path.read_bytes())
            if is_fit(copy):
                sources[path.stem] = copy
    else:
        for number, size in enumerate(sizes):
            width, height = map(int, size.split("x"))
            sources[size] = folder / f"{size}.mp4"
            make_footage(sources[size], seconds, height, width, number)
    files = {}
    for name, path in sources.items():
        prepared_copy(path, folder / f"{name}_prepared.mp4")
        files[f"{name} ordinary"] = opened(path)
        files[f"{name} prepared"] = opened(folder / f"{name}_prepared.mp4")
    return files


def is_fit(path: Path) -> bool:
    """Whether a file is H.264, undamaged, long enough for the clips, and of one track, as readers choose other ones."""
    try:
        table = make_table(path)
    except VideoError:
        return False
    with av.open(str(path)) as container:
        tracks = len(container.streams.video)
    long_enough = len(table) >= GRIDS["8 frames"][0] * GRIDS["8 frames"][2]
    return table.codec == "h264" and not table.damage and long_enough and tracks == 1


def repeated(path: Path, target: Path, times: int, options: dict[str, str] | None = None) -> Path:
    """Writes the video of a file many times, one after the other, without encoding it again."""
    with av.open(str(path)) as source, av.open(str(target), "w", options=options or {}) as container:
        stream = source.streams.video[0]
        packets = [packet for packet in source.demux(stream) if packet.size]
        stamps = [(packet.pts, packet.dts) for packet in packets]
        length = max(packet.pts + packet.duration for packet in packets) - min(packet.pts for packet in packets)
        out = container.add_stream_from_template(stream, opaque=True)  # also of a decoder that encodes not, as dav1d
        for number in range(times):
            for packet, (shown, decoded) in zip(packets, stamps, strict=True):
                copy = av.Packet(bytes(packet))
                copy.pts, copy.dts = shown + number * length, decoded + number * length
                copy.duration, copy.time_base, copy.stream = packet.duration, stream.time_base, out
                copy.is_keyframe = packet.is_keyframe
                container.mux(copy)
    return target


def ours(video: Video, yuv: bool = False) -> Read:
    kept = video.table.to_bytes()

    def read(path: Path, indices: list[int]) -> Frames | YuvClip | Tensor:
        with VideoReader(path, FrameTable.from_bytes(kept)) as reader:
            return reader.read_yuv(indices) if yuv else reader.read(indices).numpy()

    return read


def ours_without_a_table(path: Path, indices: list[int]) -> Frames:
    with VideoReader(path) as reader:
        return reader.read(indices).numpy()


def agree(frames: "Frames | YuvClip | Tensor", expected: Frames) -> bool:
    """Whether frames are as expected: RGB to the bit, YUV within 3 of 255."""
    if isinstance(frames, YuvClip):
        return bool(np.abs(frames.rgb().permute(1, 2, 3, 0).round().numpy() - expected).max() <= 3)
    return np.array_equal(frames, expected)


def pyav(video: Video) -> Read:
    """Decodes from the first frame on."""
    width = video.table.square_width

    def read(path: Path, indices: list[int]) -> Frames:
        wanted, frames = set(indices), {}
        with av.open(str(path)) as container:
            for number, frame in enumerate(container.decode(container.streams.best("video"))):
                if number in wanted:
                    frames[number] = frame.to_ndarray(format="rgb24", width=width, height=frame.height)
                if number == max(indices):
                    break
        return np.stack([frames[index] for index in indices])

    return read


def pyslowfast(video: Video) -> Read:
    """Seeks to before the clip, decodes its span with PyAV's defaults, converts all of it, then takes the frames."""
    times = video.table.times.tolist()

    def read(path: Path, indices: list[int]) -> Frames:
        start, end = times[indices[0]], times[indices[-1]]
        span = {}
        with av.open(str(path)) as container:
            stream = container.streams.best("video")
            container.seek(max(start - SEEK_MARGIN, 0), any_frame=False, backward=True, stream=stream)
            for frame in container.decode(stream):
                if frame.pts >= start:
                    span[frame.pts] = frame
                if frame.pts > end:
                    break
            converted = np.stack([span[time].to_rgb().to_ndarray() for time in sorted(span)])
        return converted[[index - indices[0] for index in indices]]

    return read


def torchcodec(mode: str = "exact", mappings: str | None = None) -> Read:
    decoders = importlib.import_module("torchcodec.decoders")
    try:
        decoders.VideoDecoder(b"no video")
    except Exception as error:  # some versions look for FFmpeg's libraries only now
        if "libtorchcodec" in str(error):
            raise ImportError(str(error)) from error
    way = {"seek_mode": mode} if mappings is None else {"custom_frame_mappings": mappings}

    def read(path: Path, indices: list[int]) -> Frames:
        decoder = decoders.VideoDecoder(str(path), dimension_order="NHWC", num_ffmpeg_threads=1, **way)
        return decoder.get_frames_at(indices).data.numpy()

    return read


def decord() -> Read:
    module = importlib.import_module("decord")
    return lambda path, indices: module.VideoReader(str(path), num_threads=1).get_batch(indices).asnumpy()


def opencv() -> Read:
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


def methods(video: Video) -> tuple[dict[str, Read], list[str]]:
    """Methods for a file by name, and the names of those that are not installed."""
    ways: dict[str, Callable[[], Read]] = {
        "ours": lambda: ours(video),
        "ours, YUV": lambda: ours(video, yuv=True),
        "ours, without a table": lambda: ours_without_a_table,
        "pyslowfast": lambda: pyslowfast(video),
        "pyav": lambda: pyav(video),
        "torchcodec exact": torchcodec,
        "torchcodec, frame mappings": lambda: torchcodec(mappings=video.mappings),
        "torchcodec approximate": lambda: torchcodec("approximate"),
        "decord": decord,
        "opencv": opencv,
    }
    found, missing = {}, []
    for name, make in ways.items():
        if video.repeats is not None and name in WHOLE:
            continue
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


def truth(video: Video, indices: list[int]) -> Frames:
    """The frames of a decode from the beginning; of a file that repeats another one, of that."""
    if video.repeats is not None:
        return truth(video.repeats, [index % len(video.repeats.table) for index in indices])
    return np.asarray(pyav(video)(video.path, indices))


def measure(video: Video, found: dict[str, Read], rounds: int, clips: int, draw: random.Random) -> dict[str, dict]:
    """For each grid and method the milliseconds of a clip in each round, and whether its frames are those of `pyav`."""
    length = len(video.table)
    times = {grid: {name: [] for name in found} for grid in GRIDS}
    same = dict.fromkeys(found, True)

    def read(name: str, clip: list[int]) -> tuple[float, Any]:
        link = video.path.with_name(f"link_{next(_numbers)}.mp4")
        os.link(video.path, link)
        began = time.process_time()
        frames = found[name](link, clip)
        seconds = time.process_time() - began
        link.unlink()
        return seconds, frames

    for grid, shape in GRIDS.items():
        clip = draw_clip(length, shape, draw)
        expected = truth(video, clip)
        for name in found:  # and a warm-up
            same[name] &= agree(read(name, clip)[1], expected)
        for _ in range(rounds):
            spent = dict.fromkeys(found, 0.0)
            for _ in range(clips):
                clip = draw_clip(length, shape, draw)
                for name in draw.sample(sorted(found), len(found)):
                    spent[name] += read(name, clip)[0]
            for name, seconds in spent.items():
                times[grid][name].append(1000 * seconds / clips)
    return {"ms": times, "same": same}


_numbers = count()


def summary(times: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    """For each method the median milliseconds per grid, their mean, and how many times as long as ours it takes."""
    table = {}
    first, *_ = times.values()
    means = {name: [mean(of) for of in zip(*(grid[name] for grid in times.values()), strict=True)] for name in first}
    for name, rounds in means.items():
        row = {grid: median(of[name]) for grid, of in times.items()}
        ratios = [ms / ours for ms, ours in zip(rounds, means["ours"], strict=True)]
        table[name] = row | {"mean": mean(row.values()), "x ours": median(ratios)}
    return table


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="CPU time of a clip with video decoders, as ratios in one run.")
    parser.add_argument("--videos", type=Path, metavar="FOLDER", help="H.264 files (*.mp4) to use; made if not given")
    parser.add_argument("--sizes", nargs="+", default=SIZES, help="of files that are made (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=10, help="of files that are made (default: %(default)s)")
    parser.add_argument("--long", type=float, metavar="MINUTES", help="also repeat the first file for so long")
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--clips", type=int, default=6, help="per grid, file and round (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers there")
    options = parser.parse_args(args)
    torch.set_num_threads(1)
    draw = random.Random(0)
    about = machine(torch.device("cpu"), PACKAGES)
    print(", ".join([machine_line(about), *(f"{name} {about[name]}" for name in PACKAGES if about[name])]))
    report = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        files = make_files(folder, options.sizes, options.seconds, options.videos)
        if not files:
            parser.error(f"--videos {options.videos}: no H.264 file of 64 frames or more in mp4 there")
        if options.long:
            name, first = next(iter(files.items()))
            path = repeated(first.path, folder / "long.mp4", round(options.long / first.minutes))
            files[f"{name}, {options.long:g} minutes"] = opened(path, repeats=first)
        for name, video in files.items():
            found, missing = methods(video)
            result, costs = measure(video, found, options.rounds, options.clips, draw), video.costs()
            rows = summary(result["ms"])
            size = video.path.stat().st_size
            report[name] = {"bytes": size, "costs of its table": costs, "table": rows, **result}
            print(f"\n{name}, {size / 1e6:.2f} MB: CPU ms per clip")
            print(f"{'':<28}" + "".join(f"{column:>12}" for column in [*GRIDS, "mean", "clips/s/core", "x ours"]))
            for method, row in rows.items():
                cells = [*(row[grid] for grid in GRIDS), row["mean"], 1000 / row["mean"], row["x ours"]]
                note = "" if result["same"][method] else "   other pixels than PyAV's"
                print(f"{method:<28}" + "".join(f"{cell:>12.2f}" for cell in cells) + note)
            told = ", ".join(f"{value:,.3g} {what}" for what, value in costs.items())
            print(f"Its table: {told}", flush=True)
        if missing:
            print("not installed:", ", ".join(missing))
    write_json(options, "decode", {"files": report}, PACKAGES)


if __name__ == "__main__":
    main()
