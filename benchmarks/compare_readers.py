"""Whether video readers return the frames that they are asked for: right, wrong or error, on the same files.

    python benchmarks/compare_readers.py
    python benchmarks/compare_readers.py --files 400 --videos FOLDER --json readers.json

Files are those that the tests make (`tests/helpers/rare_files.py`): many codecs and containers, whole and damaged,
most of them rarer and nastier than a dataset's; and the videos of a folder, if one is given. Requests are single
frames and clips of 5 and 8 frames, each by a reader opened for it; the first of a file is the first thing that its
process reads.

- `ours`: `VideoReader`;
- `torchcodec`: `VideoDecoder(seek_mode="exact")`, its default;
- `decord`: `VideoReader.get_batch`, which seeks to the frame;
- `opencv, seeking`: sets `CAP_PROP_POS_FRAMES`, then reads;
- `opencv, from the start`: reads all frames up to the one asked for.

Readers that are not installed are left out, and named. Each file is read by a process of its own for each reader, so
a crash, and a hang of 60 seconds, is an error of that file's requests.

The truth is a decode from the beginning by PyAV alone, turned as the file says. Readers convert colours by other code
and other rules, so pixels can't be compared bit for bit. A frame is *right* if no frame of the whole sequential
decode is nearer to it than the one asked for, and if it differs from that one by at most 32 of 255 on average: more
than any conversion of colours does, and less than a grey, torn or other picture. A request is right if all its frames
are. Of damaged files only frames are asked for that FFmpeg gives out before an error and does not mark, and a reader
may number frames by their packets or by what comes out. An error is an honest answer there.
"""

import argparse
import importlib
import multiprocessing
import os
import random
import select
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import av
import numpy as np
import torch
from benchmark_decode import decord, torchcodec
from measuring import machine, machine_line, write_json

from lightning_multigrid.decode import VideoReader

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.decode.test_matrix import Truth, decoded, turned
from tests.helpers.rare_files import cases, sample

PACKAGES = ["av", "torchcodec", "decord", "cv2"]
SECONDS = 60
LARGEST_DIFFERENCE = 32
SINGLES = 6  # requests of one frame for each file, beside two of clips
Read = Callable[[Path, list[int]], np.ndarray]


def ours(path: Path, indices: list[int]) -> np.ndarray:
    with VideoReader(path) as reader:
        return reader.read(indices).numpy()


def opencv(seeks: bool) -> Read:
    cv2 = importlib.import_module("cv2")
    cv2.setNumThreads(1)

    def read(path: Path, indices: list[int]) -> np.ndarray:
        capture = cv2.VideoCapture(str(path), cv2.CAP_FFMPEG, [cv2.CAP_PROP_N_THREADS, 1])
        frames: dict[int, np.ndarray] = {}
        place = 0
        for index in sorted(set(indices)):
            if seeks and index != place:
                capture.set(cv2.CAP_PROP_POS_FRAMES, index)
                place = index
            for _ in range(index + 1 - place):
                given, frame = capture.read()
                if not given:
                    raise ValueError("no frame")
            place, frames[index] = index + 1, frame[..., ::-1]
        capture.release()
        return np.stack([frames[index] for index in indices])

    return read


READERS: dict[str, Callable[[], Read]] = {
    "ours": lambda: ours,
    "torchcodec": torchcodec,
    "decord": decord,
    "opencv, seeking": partial(opencv, seeks=True),
    "opencv, from the start": partial(opencv, seeks=False),
}


@dataclass
class Asked:
    """What is asked of a file: frames, and for each number the frames of the sequential decode that it may be."""

    path: Path
    kind: str
    requests: list[list[int]]
    places: dict[int, set[int]]
    shape: tuple[int, ...]
    square: tuple[int, ...]  # the shape if pixels are made square, as some readers do


def ask(path: Path, kind: str, matrix: tuple[int, int, int, int]) -> Asked | None:
    """Writes the truth of a file beside it; None if it has no frames, or not one video."""
    aspect = Fraction(1)
    with suppress(av.FFmpegError), av.open(f"file:{path}") as container:
        if len(container.streams.video) != 1:
            return None
        aspect = container.streams.video[0].sample_aspect_ratio or aspect
    truth = Truth([], 0, [], "")
    pictures: list[np.ndarray] = []
    squares: list[np.ndarray] = []
    size: dict[str, int] = {}
    for frame in decoded(path, truth):
        size = size or {"width": frame.width, "height": frame.height}
        square = {**size, "width": round(size["width"] * aspect)}
        if frame.is_corrupt:
            truth.corrupt.append(len(pictures))
        for shapes, of in ((pictures, size), (squares, square)):
            shapes.append(turned(frame.reformat(format="rgb24", **of).to_ndarray(), matrix))
        truth.times.append(frame.pts)
        truth.sure += not truth.error
    allowed = [number for number in range(truth.sure) if number not in truth.corrupt]
    if not allowed:
        return None
    for suffix, shapes in ((".npy", pictures), (".square.npy", squares)):
        np.save(path.with_suffix(suffix), np.stack(shapes)[(slice(None), *_some(shapes[0]))])
    places = {number: {number} for number in allowed}
    if not truth.error and not truth.corrupt and kind != "damaged":
        assert len(allowed) == len(pictures)
    else:
        times: list[int] = []
        with suppress(av.FFmpegError), av.open(f"file:{path}") as container:
            times += (packet.pts for packet in container.demux(video=0) if packet.size and packet.pts is not None)
        times.sort()
        for number in allowed:
            places[number] |= {place for place, time in enumerate(truth.times) if time in times[number : number + 1]}
    draw = random.Random(f"0 {path.name}")
    singles = [[number] for number in draw.sample(allowed, min(len(allowed), SINGLES))]
    start = draw.randrange(max(1, len(allowed) - 14))
    clips = [draw.choices(allowed, k=5), [allowed[min(start + 2 * point, len(allowed) - 1)] for point in range(8)]]
    return Asked(path, kind, [*singles, *clips], places, pictures[0].shape, squares[0].shape)


def _some(picture: np.ndarray) -> tuple[slice, slice]:
    """Every n-th row and column, of which there are at least 48: enough to tell pictures apart."""
    step = max(1, min(picture.shape[:2]) // 48)
    return slice(None, None, step), slice(None, None, step)


def verdicts(read: Read, asked: Asked) -> list[str]:
    """Whether each request is right, wrong or an error."""
    truths = {
        shape: np.load(asked.path.with_suffix(suffix)).astype(np.int16)
        for shape, suffix in ((asked.square, ".square.npy"), (asked.shape, ".npy"))
    }
    found = []
    for request in asked.requests:
        try:
            clip = np.asarray(read(asked.path, request))
        except Exception:
            found.append("error")
            continue
        right = len(clip) == len(request)
        for index, frame in zip(request, clip, strict=False):
            frame = np.ascontiguousarray(frame)
            if frame.shape not in truths:  # of a stream whose size changes, readers scale frames or don't
                own = av.VideoFrame.from_ndarray(frame, format="rgb24")
                frame = own.reformat(width=asked.shape[1], height=asked.shape[0]).to_ndarray()
            apart = np.abs(truths[frame.shape] - frame[_some(frame)]).mean(axis=(1, 2, 3))
            right &= min(apart[place] for place in asked.places[index]) <= min(apart.min(), LARGEST_DIFFERENCE)
        found.append("right" if right else "wrong")
    return found


def in_child(read: Read, asked: Asked) -> list[str]:
    """The verdicts of a fork of this process: all errors if it dies or hangs."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # FFmpeg's own complaints
        with os.fdopen(writing, "w") as pipe:
            pipe.write(" ".join(verdicts(read, asked)))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        found = pipe.read() if select.select([pipe], [], [], SECONDS)[0] else ""
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return found.split() or ["error"] * len(asked.requests)


def serve(name: str, pipe: Connection) -> None:
    """A process that has imported a reader, but never reads a file itself."""
    try:
        read = READERS[name]()
    except (ImportError, OSError, RuntimeError) as error:
        pipe.send(f"{name} ({type(error).__name__})")
        return
    pipe.send(None)
    while (asked := pipe.recv()) is not None:
        pipe.send(in_child(read, asked))


def table(counts: dict[str, dict[str, Counter[str]]], files: Counter[str]) -> str:
    """Markdown: a row for each kind of file, right / wrong / error for each reader."""
    names = list(counts)
    lines = ["| files | | " + " | ".join(names) + " |", "| --- | --- |" + " --- |" * len(names)]
    for kind in sorted(files, key=lambda kind: (kind == "damaged", -files[kind])):
        rows = (counts[name][kind] for name in names)
        cells = (" / ".join(str(row.get(verdict, 0)) for verdict in ("right", "wrong", "error")) for row in rows)
        lines.append(f"| {kind} | {files[kind]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Right, wrong and refused frames of video readers.")
    parser.add_argument("--files", type=int, default=200, help="of the tests' files (default: %(default)s)")
    parser.add_argument("--videos", type=Path, metavar="FOLDER", help="also all files of this folder")
    parser.add_argument("--readers", nargs="+", choices=READERS, default=list(READERS), help="(default: all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers there")
    options = parser.parse_args(args)
    about = machine(torch.device("cpu"), PACKAGES)
    print(", ".join([machine_line(about), *(f"{name} {about[name]}" for name in PACKAGES if about[name])]))
    context = multiprocessing.get_context("spawn")
    pipes = {}
    for name in options.readers:
        pipes[name], there = context.Pipe()
        context.Process(target=serve, args=(name, there), daemon=True).start()
    missing = {name: reason for name, pipe in pipes.items() if (reason := pipe.recv())}
    servers = {name: pipe for name, pipe in pipes.items() if name not in missing}
    if missing:
        print("not installed:", ", ".join(missing.values()))
    counts: dict[str, dict[str, Counter[str]]] = {name: {} for name in servers}
    files: Counter[str] = Counter()
    of_files: dict[str, dict[str, list[str]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        given = sorted(path for path in options.videos.iterdir() if path.is_file()) if options.videos else []
        for case in [*given, *sample(cases(), options.files)]:
            if isinstance(case, Path):
                path, kind, matrix = Path(folder) / case.name, "of the folder", _matrix_of(case)
                path.write_bytes(case.read_bytes())
            else:
                path, kind, matrix = case.write(Path(folder)), case.kind, case.matrix
            asked = ask(path, kind, matrix)
            if asked is None:
                continue
            files[kind] += 1
            for server in servers.values():
                server.send(asked)
            of_files[path.name] = {name: server.recv() for name, server in servers.items()}
            for name, found in of_files[path.name].items():
                counts[name].setdefault(kind, Counter()).update(found)
            for left in (path, path.with_suffix(".npy"), path.with_suffix(".square.npy")):
                left.unlink(missing_ok=True)
    for server in servers.values():
        server.send(None)
    total = sum(files.values())
    print(f"\n{total} files, {SINGLES + 2} requests or fewer of each; right / wrong / error\n")
    print(table(counts, files))
    verdicts_of = {name: {reader: " ".join(found) for reader, found in of.items()} for name, of in of_files.items()}
    rows = {"kinds": files, "counts": counts, "files": verdicts_of}
    write_json(options, "readers", rows, PACKAGES)


def _matrix_of(path: Path) -> tuple[int, int, int, int]:
    """The display matrix of a video in four numbers, for one that is only turned."""
    try:
        with av.open(f"file:{path}") as container:
            angle = round(next(container.decode(video=0)).rotation / 90) % 4
    except (av.FFmpegError, StopIteration, IndexError):
        angle = 0
    return [(1, 0, 0, 1), (0, -1, 1, 0), (-1, 0, 0, -1), (0, 1, -1, 0)][angle]


if __name__ == "__main__":
    main()
