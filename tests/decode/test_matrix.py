"""Rare and hostile files: what is read of them is what a decode from their beginning gives, or an error.

Each file is read by processes that are forks of one which never read any, so that nothing hides what the reader forgets
to tell the decoder: by one reader in three orders, by a reader for each request, and by a process for each request.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import random
import re
import signal
import zlib
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import av
import numpy as np
import pytest

from lightning_multigrid.decode import FrameTable, VideoError, VideoReader, make_table
from lightning_multigrid.pixels import YuvClip
from tests.helpers.rare_files import CODINGS, cases, sample

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")


# The truth


@dataclass
class Truth:
    """What PyAV alone makes of a file; `benchmarks/compare_readers.py` asks it, too.

    Args:
        times: Of all frames that come out, also of those behind an error.
        sure: How many of them come out before an error.
        corrupt: Numbers of those that FFmpeg marks.
        error: The first error, or nothing.
        undefined: Numbers of those that are other pixels for who keeps the frames before them. Of a damaged picture
            some decoders leave parts as they were in memory that they use again.
        aspect: Width of a pixel in heights of it.
    """

    times: list[int | None]
    sure: int
    corrupt: list[int]
    error: str
    undefined: set[int] = field(default_factory=set)
    aspect: float = 1.0

    @property
    def is_whole(self):
        return not self.error and not self.corrupt and bool(self.times)


def decoded(path, truth):
    """Decodes a file from its beginning, by one thread. Errors are noted, and what comes behind them is decoded."""
    try:
        with av.open(f"file:{path}") as container:
            stream = container.streams.best("video")
            stream.codec_context.thread_count = 1
            truth.aspect = float(stream.sample_aspect_ratio or 1)
            for packet in container.demux(stream):
                if not packet.size and packet.dts is not None:
                    continue  # would end decoding
                try:
                    frames = packet.decode()
                except av.FFmpegError as error:
                    truth.error = truth.error or str(error)
                    continue
                yield from frames
    except (av.FFmpegError, IndexError, AttributeError) as error:
        truth.error = truth.error or f"{type(error).__name__}: {error}"


def turned(pixels, matrix):
    """A stored frame as its display matrix shows it: each pixel is moved to where the matrix says."""
    a, b, c, d = matrix
    y, x = np.mgrid[: pixels.shape[0], : pixels.shape[1]]
    columns, rows = a * x + c * y, b * x + d * y
    shown = np.empty((np.ptp(rows) + 1, np.ptp(columns) + 1, 3), np.uint8)
    shown[rows - rows.min(), columns - columns.min()] = pixels
    return shown


def sequential_decode(path, matrix):
    """Decodes a file. Its frames go into a file beside it, as RGB of the size of the first."""
    pictures, truth, size = [], Truth([], 0, [], ""), {}
    for frame in decoded(path, truth):
        size = size or {"width": round(frame.width * truth.aspect), "height": frame.height}
        if frame.is_corrupt:
            truth.corrupt.append(len(pictures))
        pictures.append(turned(frame.reformat(format="rgb24", **size).to_ndarray(), matrix))
        truth.times.append(frame.pts)
        truth.sure += not truth.error
    held = list(decoded(path, truth))
    for place, (frame, picture) in enumerate(zip(held, pictures, strict=False)):
        if not np.array_equal(turned(frame.reformat(format="rgb24", **size).to_ndarray(), matrix), picture):
            truth.undefined.add(place)
    if pictures:
        np.save(path.with_suffix(".npy"), np.stack(pictures))
    return truth


# Reading


@dataclass(frozen=True)
class Outcome:
    """What a request gave.

    Args:
        way: How it was made.
        indices: Its frames.
        verdict: "right", "wrong", "error", "foreign" for an exception that is not ours, or "undefined" where a
            sequential decode has no pixels that are right.
        detail: What is wrong.
        checksum: Of the pixels.
    """

    way: str
    indices: tuple[int, ...]
    verdict: str
    detail: str = ""
    checksum: int = 0


class Judge:
    """Compares what is read of a file with the truth."""

    def __init__(self, path, truth):
        self.path, self.truth = path, truth
        saved = path.with_suffix(".npy")
        self.frames = np.load(saved, mmap_mode="r") if saved.exists() else []

    def verdict(self, reader, way, indices):
        """Of a request, with what is wrong, and the checksum of the pixels."""
        if len(reader) != len(self.truth.times):
            return "wrong", f"{len(reader)} frames instead of {len(self.truth.times)}"
        got = (reader.read_yuv if way.endswith("yuv") else reader.read)(indices)
        clip = got.rgb().permute(1, 2, 3, 0).numpy() if isinstance(got, YuvClip) else got.numpy()
        most = 0.0
        for pixels, index in zip(clip, indices, strict=True):
            if index in self.truth.undefined:
                return ("undefined",)
            if pixels.shape != self.frames[index].shape:
                return "wrong", f"frame {index} is of another shape"
            most = max(most, float(np.abs(pixels - self.frames[index].astype(np.float32)).max()))
        wrong = f"differs by up to {most:.0f}" if most > (3 if isinstance(got, YuvClip) else 0) else ""
        return "wrong" if wrong else "right", wrong, zlib.crc32(np.ascontiguousarray(clip).tobytes())

    def read(self, asked):
        """Reads by one reader for each way, or anew for each request."""
        outcomes = []
        reader, its_way = None, ""
        for way, indices in asked:
            try:
                if reader is None or way != its_way or way == "anew":
                    table = None if way == "own table" else FrameTable.from_bytes(table_of(self.path).read_bytes())
                    reader, its_way = VideoReader(self.path, table), way
                found = self.verdict(reader, way, indices)
            except VideoError as error:
                found = "error", error.reason
            except Exception as error:
                found = "foreign", f"{type(error).__name__}: {error}"
            outcomes.append(Outcome(way, tuple(indices), *found))
        return outcomes


def table_of(path):
    return path.with_suffix(".table")


def write_table(path):
    """Makes the table of a file, and writes it beside that. Returns why there is none, if so."""
    try:
        table_of(path).write_bytes(make_table(path).to_bytes())
    except VideoError as error:
        return error.reason
    return ""


def in_child(function, *args):
    """What a function returns in a fork of this process; a text that says how the fork ended if it did not return."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reading)
            signal.alarm(100)
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(function(*args), pipe)
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            os._exit(1)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    return pickle.loads(data) if data and not status else f"the process ended with status {status}"


def requests_of(length, draw, thorough):
    """What is asked of a file of so many frames, by each way of asking."""
    singles = [[index] for index in range(length)]
    shuffled = draw.sample(singles, length)
    shuffled.sort(key=lambda indices: indices[0] < length * 3 // 4)  # late frames first: they hide least
    many = [draw.choices(range(length), k=draw.choice([2, 5, 9])) for _ in range(8 if thorough else 4)]
    starts = [draw.randrange(max(1, length - 14)) for _ in range(3)]
    many += [[min(start + 2 * point, length - 1) for point in range(8)] for start in starts]
    step = 1 if thorough else 4
    return {
        "random": shuffled[:: 1 if thorough else 2] + many,
        "ascending": singles[::step],
        "descending": singles[::-step],
        "anew": draw.sample(shuffled, max(1, length // (2 if thorough else 4))) + many[:3],
        "own table": [*shuffled[: 4 if thorough else 2], *many[:2]],
        "yuv": shuffled[:: 2 if thorough else 4] + many[:3],
        "first": [*shuffled[: 5 if thorough else 2], many[0], shuffled[-1]][: 7 if thorough else 3],
        "first yuv": shuffled[1 : 3 if thorough else 2],
    }


@dataclass
class Report:
    """What all reads of a file gave."""

    truth: Truth
    outcomes: list[Outcome] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)


def report_on(path, matrix, thorough):
    """Reads a file in all ways, by forks of this process."""
    truth = in_child(sequential_decode, path, matrix)
    if isinstance(truth, str):
        return Report(Truth([], 0, [], truth))
    report = Report(truth)
    if reason := in_child(write_table, path):
        report.outcomes.append(Outcome("table", (), "error", reason))
        return report
    judge = Judge(path, truth)
    # At least one frame is asked for, to see that what FFmpeg can't open is an error.
    requests = requests_of(max(len(truth.times), 1), random.Random(path.name), thorough)
    for ways in ("random", "ascending", "descending", "anew"), ("own table",), ("yuv",), ("first",), ("first yuv",):
        asked = [(way, indices) for way in ways for indices in requests[way]]
        for group in [[one] for one in asked] if ways[0].startswith("first") else [asked]:
            given = in_child(judge.read, group)
            if isinstance(given, str):
                report.ends.append(f"{ways[0]} {group[0][1]}: {given}")
            else:
                report.outcomes += given
    return report


def nursery(pipe):
    """A process that never reads a file itself. Reports on those that it is told of, until there is no more."""
    gc.collect()
    gc.freeze()  # else each fork would copy what its collector touches
    while (order := pipe.recv()) is not None:
        pipe.send(report_on(*order))


# The tests


def faults_of(case, report):
    """What is wrong, a line for each way of reading and kind of fault, with one request for each."""
    truth = report.truth
    lenient = case.damaged or not truth.is_whole
    faults = [f"died: {end}" for end in report.ends]
    groups = defaultdict(list)
    for outcome in report.outcomes:
        if outcome.verdict in ("wrong", "foreign") or (outcome.verdict == "error" and not lenient):
            groups[outcome.verdict, outcome.way].append(outcome)
    for (verdict, way), outcomes in groups.items():
        asked = sum(outcome.way == way for outcome in report.outcomes)
        example = outcomes[0]
        faults.append(f"{verdict}: {way}, {len(outcomes)} of {asked}, e.g. {list(example.indices)} {example.detail}")
    given = defaultdict(set)
    for outcome in report.outcomes:
        if outcome.verdict != "undefined":
            given[outcome.way.endswith("yuv"), outcome.indices].add((outcome.verdict, outcome.checksum))
    varying = [indices for (_, indices), results in given.items() if len(results) > 1]
    if varying:
        faults.append(f"depends: {len(varying)} requests give this or that, e.g. {list(varying[0])}")
    return faults


def run_matrix(here, chosen, folder, thorough=False):
    """Makes files and has them read. Returns the faults of each, and counts."""
    faults, counts = {}, Counter()
    for case in chosen:
        path = case.write(folder)
        here.send((path, case.matrix, thorough))
        report = here.recv()
        counts.update(files=1, requests=len(report.outcomes))
        if found := faults_of(case, report):
            faults[case.name] = found
        for left in (path, path.with_suffix(".npy"), table_of(path)):
            left.unlink(missing_ok=True)
    return faults, counts


@pytest.fixture(scope="module")
def here():
    """The pipe to a `nursery`."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=nursery, args=(there,), daemon=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTEST_VERSION")  # so that it does not import Lightning: each fork would copy its tables of pages
        process.start()
    there.close()
    yield here
    here.send(None)
    here.close()
    process.join(30)
    if process.is_alive():
        process.kill()


def test_names_are_unique_and_each_file_has_a_kind():
    every = cases()
    assert all(case.kind for case in every)
    assert {case.kind for case in every if case.damaged} == {"damaged"}
    assert len({case.name for case in every}) == len(every)
    assert {case.damaged for case in sample(every, 12)} == {True, False}


CARE = [
    "h264-late_start.mkv",
    "h264-repeated_times.mkv",
    "h264-joined_other_size.ts",  # scaled to the size of the first frame
    "mpeg4-divx503b1393p.avi",  # a fault of its encoder, told by the first packet, is mended
    # Damaged files whose frames were given or refused by what was read before.
    *("h264-lost_packet.mp4", "mpeg2-zeroed.ts", "mjpeg-zeroed.avi"),
]


@pytest.mark.timeout(600)
def test_a_sample_of_the_matrix_and_files_that_need_care(here, tmp_path):
    chosen = {case.name: case for case in (*sample(cases(), 4), *(case for case in cases() if case.name in CARE))}
    faults, counts = run_matrix(here, chosen.values(), tmp_path)
    assert set(chosen) >= set(CARE)
    assert counts["files"] == len(chosen)
    assert not faults


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_whole_matrix(here, tmp_path):
    faults, counts = run_matrix(here, cases(), tmp_path, thorough=True)
    assert counts["requests"] >= 5_000
    assert not faults


def test_the_page_on_evidence_states_how_large_the_matrix_is():
    text = (Path(__file__).parents[2] / "docs" / "evidence.md").read_text()
    stated = re.search(r"([\d,]+) files of (\d+) codings in (\d+) containers", text)
    assert stated is not None
    whole = [case for case in cases() if not case.damaged]
    expected = len(whole), len(CODINGS), len({case.container for case in whole})
    assert tuple(int(number.replace(",", "")) for number in stated.groups()) == expected
