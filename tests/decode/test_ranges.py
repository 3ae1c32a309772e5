"""Ranges of packets: what they hold, what they cost, and that a wrong index never means a wrong frame."""

from __future__ import annotations

import dataclasses
import os
import random
from contextlib import suppress
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from hypothesis import given

from lightning_multigrid.decode import reader as decode
from lightning_multigrid.decode import thread_cache
from lightning_multigrid.decode.packet_index import DROPPABLE, ENTRY, PacketIndex
from lightning_multigrid.decode.ranges import packet_ranges
from lightning_multigrid.decode.reader import VideoReader, build_index
from lightning_multigrid.decode.video_file import VideoError
from tests.helpers.codings import CODINGS, COUNT, PREPARED, real_videos, requests, written
from tests.helpers.indices import FLAGS, INDEX, KEY, REFERENCE, TIMES, B, make_index
from tests.helpers.mutations import seeds
from tests.helpers.videos import decode_all, number_of, numbered_frames, write_video


@pytest.mark.parametrize(
    ("frames", "packets", "shown"),
    [
        ([0], [0], [0]),
        ([3], [0, 1], [0, 1]),  # the frame of the second packet
        ([2], [0, 1, 3], [0, 3, 1]),
        ([5, 6], [0, 1, 4, 6], [0, 1, 6, 4]),
        ([6], [0, 1, 4], [0, 1, 4]),
    ],
)
def test_a_range_ends_with_the_last_packet_needed_and_leaves_out_what_nobody_needs(frames, packets, shown):
    (found,) = packet_ranges(INDEX, frames)
    assert (found.packets, found.shown) == (packets, shown)
    assert sorted(found.wanted.values()) == frames


def test_ranges_begin_at_the_last_entry_and_go_on_where_nothing_lies_between():
    found = packet_ranges(INDEX, [0, 8])
    assert [part.packets for part in found] == [[0], [7, 8, 9]]
    found = packet_ranges(INDEX, [5, 7])
    assert [part.packets for part in found] == [[0, 1, 4, 6, 7]]
    assert [part.wanted for part in found] == [{6: 5, 7: 7}]


@given(seeds())
def test_ranges_hold_what_their_definition_says(seed):
    draw = random.Random(seed)
    wanted = sorted(draw.sample(range(11), draw.randint(1, 11)))
    by_time = np.argsort(TIMES).tolist()
    needed = set()
    for frame in wanted:
        packet = by_time[frame]
        entry = max(p for p in (0, 7) if TIMES[p] <= TIMES[packet])
        needed |= {p for p in range(entry, packet + 1) if FLAGS[p] != B} | {packet}
    found = packet_ranges(INDEX, wanted)
    assert sorted(p for part in found for p in part.packets) == sorted(needed)
    assert {p: frame for part in found for p, frame in part.wanted.items()} == {
        by_time[frame]: frame for frame in wanted
    }


def test_pictures_that_lead_an_open_gop_are_decoded_from_the_entry_before():
    index = make_index([KEY, REFERENCE, KEY, REFERENCE, REFERENCE], [0, 1, 4, 2, 3])
    (found,) = packet_ranges(index, [2])
    assert found.packets == [0, 1, 2, 3]
    (found,) = packet_ranges(index, [4])
    assert (found.packets, found.shown) == ([2], [2])


# --- What a clip costs ---

GRIDS = [(8, 2, 8), (16, 2, 4), (32, 2, 2)]  # frames, least and greatest stride
# Three of four frames are B-frames, the middle one of which is referred to, as x264 makes them unless told otherwise.
KINETICS = {"g": "250", "keyint_min": "25", "x264-params": "bframes=3:b-adapt=0:b-pyramid=normal:log-level=none"}


def long_video(folder: Path, name: str, options: dict[str, str], suffix: str = "mp4") -> Path:
    path = folder / f"long_{name}.{suffix}"
    return path if path.exists() else write_video(path, numbered_frames(250, 48, 64), options=options)


def clips(length: int, grid: tuple[int, int, int], count: int) -> list[list[int]]:
    frames, least, most = grid
    draw = random.Random(frames)
    strides = [draw.randint(least, most) for _ in range(count)]
    starts = [draw.randrange(length - (frames - 1) * stride) for stride in strides]
    return [[start + point * stride for point in range(frames)] for start, stride in zip(starts, strides, strict=True)]


def packets_fed(path: Path, index: PacketIndex, grid: tuple[int, int, int], count: int = 100) -> float:
    drawn = clips(len(index), grid, 100)[:count]
    fed = 0
    with VideoReader(path, index) as reader:
        for clip in drawn:
            for _ in reader._find(clip):
                pass
        fed = reader.packets_fed
    return fed / len(drawn)


def span_packets(path: Path, index: PacketIndex, grid: tuple[int, int, int]) -> float:
    """What it takes to seek and to decode the whole span, counted by PyAV alone."""
    with av.open(str(path)) as container:
        packets = [(packet.pts, packet.is_keyframe) for packet in container.demux(video=0) if packet.size]
    times = sorted(time for time, _ in packets)
    fed = 0
    drawn = clips(len(index), grid, 100)
    for clip in drawn:
        first, last = times[clip[0]], times[clip[-1]]
        start = max(n for n, (time, key) in enumerate(packets) if key and time <= first)
        fed += 1 + max(n for n, (time, _) in enumerate(packets) if time <= last) - start
    return fed / len(drawn)


@pytest.mark.parametrize(("grid", "most"), list(zip(GRIDS, (0.62, 0.65, 0.75), strict=True)))
@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_a_clip_of_an_ordinary_file_costs_few_packets(folder, grid, most, suffix):
    path = long_video(folder, "kinetics", KINETICS, suffix)
    index = build_index(path)
    assert packets_fed(path, index, grid) < most * span_packets(path, index, grid)


@pytest.mark.parametrize(("grid", "most"), list(zip(GRIDS, (17, 26, 42), strict=True)))
def test_a_clip_of_a_prepared_file_costs_about_two_packets_per_frame_or_fewer(folder, grid, most):
    path = long_video(folder, "prepared", PREPARED)
    assert packets_fed(path, build_index(path), grid) < most


@pytest.mark.parametrize(("grid", "most"), list(zip(GRIDS, (75, 87, 109), strict=True)))
def test_a_clip_of_a_kinetics_file_costs_what_was_found_possible(grid, most):
    found = [path for path in real_videos() if path.name == "arm_wrestling_340x256.mp4"]
    if not found:
        pytest.skip("the video is not here")
    assert packets_fed(found[0], build_index(found[0]), grid, count=25) < most


def test_an_index_given_spares_scanning_and_probing(folder, monkeypatch):
    path = long_video(folder, "prepared", PREPARED)
    index = PacketIndex.from_bytes(build_index(path).to_bytes())
    expected = decode_all(path)

    def fail(*args, **options):
        raise AssertionError

    monkeypatch.setattr(av, "open", fail)
    monkeypatch.setattr(decode, "index_of", fail)
    with VideoReader(path, index) as reader:
        assert (len(reader), reader.height, reader.width, reader.rate) == (250, 48, 64, 30)
        assert np.array_equal(reader.read([200, 3, 77]).numpy(), expected[[200, 3, 77]])


@pytest.mark.parametrize("name", ["gop_12.mkv", "h265.mp4", "vp9.webm", "times_lost.avi", "mpeg4_b.avi", "gop_12.ts"])
def test_an_index_given_serves_other_files_too(folder, monkeypatch, name):
    path = written(folder, name)
    index = PacketIndex.from_bytes(build_index(path).to_bytes())
    monkeypatch.setattr(decode, "index_of", lambda file: pytest.fail("built anew"))
    with VideoReader(path, index) as reader:
        assert [number_of(frame) for frame in reader.read([59, 0, 31]).numpy()] == [59, 0, 31]


def test_a_decoder_serves_all_files_of_one_kind_and_no_other(folder, monkeypatch):
    made = []
    make = thread_cache._decoder
    monkeypatch.setattr(thread_cache, "_decoder", lambda index: made.append(index.width) or make(index))
    paths = [
        write_video(folder / f"kind_{number}.mp4", numbered_frames(40, 48, width, first=100 * number), options=PREPARED)
        for number, width in enumerate((208, 208, 240))
    ]
    for number in (0, 1, 0, 1, 1):
        for indices in ([39], [0], [7, 30], [12, 13, 14]):
            frames = decode.read_frames(paths[number], indices).numpy()
            assert [number_of(frame) for frame in frames] == [100 * number + index for index in indices]
    assert made == [208]
    assert number_of(decode.read_frames(paths[2], [20])[0].numpy()) == 220
    assert number_of(decode.read_frames(paths[1], [20])[0].numpy()) == 120
    assert made == [208, 240]
    # Room for one of them: each now takes the other's place.
    monkeypatch.setattr(thread_cache, "_MOST_PIXELS", 48 * 240)
    for number in (2, 2, 1, 1, 2):
        assert number_of(decode.read_frames(paths[number], [20])[0].numpy()) == 100 * number + 20
    assert made == [208, 240, 208, 240]


def assert_right(path: Path, index: PacketIndex, expected: np.ndarray) -> None:
    """Every frame is right, or there is an error; and the number of frames is right if they come out."""
    with VideoReader(path, index) as reader:
        for indices in [*requests(len(reader), 6), list(range(len(reader)))]:
            try:
                frames = reader.read(indices)
            except VideoError:
                continue
            assert len(reader) == len(expected)
            assert np.array_equal(frames.numpy(), expected[indices]), indices


@pytest.mark.parametrize("name", ["gop_12.mp4", "gop_12.mkv", "vp9.webm", "mjpeg.avi"])
@pytest.mark.parametrize("other", ["pyramid.mp4", "no_b.mov", "h265.mp4", "gop_12.ts", "times_lost.avi"])
def test_the_index_of_another_file_is_not_believed(folder, name, other):
    path = written(folder, name)
    index = build_index(written(folder, other))
    with VideoReader(path, index) as reader:
        frames = reader.read(range(COUNT))
    assert np.array_equal(frames.numpy(), decode_all(path))


def test_an_index_of_the_file_as_it_was_is_not_believed(folder, tmp_path):
    """The file has changed, and has kept its name, its size and its time of change; reads of what changed see it."""
    before = written(folder, "gop_12.mp4")
    first, index, times = before.read_bytes(), build_index(before), os.stat(before)
    # The same table, and other pictures: two packets of one size change places. Of some such files not all frames come
    # out, and which packets have one size is not the same for each build of x264.
    sizes = index.sizes.tolist()
    tried = 0
    for one, two in ((n, m) for n in range(60) for m in range(n)):
        if sizes[one] != sizes[two] or not index.flags[one] & DROPPABLE:
            continue
        changed = bytearray(first)
        places = [slice(int(index.positions[n]), int(index.positions[n]) + sizes[n]) for n in (one, two)]
        changed[places[0]], changed[places[1]] = first[places[1]], first[places[0]]
        path = tmp_path / f"{one}_{two}.mp4"  # a process remembers what it has found out about a path
        path.write_bytes(changed)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        expected = decode_all(path)
        if len(expected) == COUNT:
            for wanted in ([index.by_time.tolist().index(one)], [index.by_time.tolist().index(two)], [*range(COUNT)]):
                with suppress(VideoError), VideoReader(path, index) as reader:
                    assert np.array_equal(reader.read(wanted).numpy(), expected[wanted]), wanted
            tried += 1
    assert tried


def forged(index: PacketIndex, draw: random.Random) -> PacketIndex:
    """An index of which a value or two are not those of the file, and the checksum is right."""
    columns = {name: getattr(index, name).copy() for name in ("positions", "sizes", "times", "decoding_times", "flags")}
    for _ in range(draw.randint(1, 3)):
        name = draw.choice(sorted(columns))
        column = columns[name]
        one, two = draw.sample(range(len(column)), 2)
        if name == "flags":
            column[one] ^= draw.choice([ENTRY, DROPPABLE])
        elif draw.random() < 0.5:
            column[one], column[two] = column[two], column[one]
        else:
            column[one] += draw.choice([-512, -1, 1, 512])
    return dataclasses.replace(index, **columns)


@pytest.mark.parametrize("name", ["gop_12.mp4", "pyramid.mp4", "gop_12.mkv", "h265.mp4"])
def test_a_forged_index_never_gives_wrong_frames(folder, name):
    path = written(folder, name)
    index, expected = build_index(path), decode_all(path)
    draw = random.Random(name)
    tried = 0
    while tried < 25:
        try:
            wrong = forged(index, draw)
        except ValueError:
            continue  # it contradicts itself
        tried += 1
        assert_right(path, wrong, expected)


def random_requests(folder: Path, count: int, seed: int) -> int:
    """Draws files and clips, and compares the frames. Returns the number of wrong ones."""
    draw = random.Random(seed)
    paths = [written(folder, name) for name in CODINGS] + real_videos()
    wrong = 0
    draw.shuffle(paths)
    for turn, path in enumerate(paths):
        try:
            expected = decode_all(path)
        except av.FFmpegError:
            assert path.parent != folder
            continue
        index = build_index(path)
        for _ in range(count // len(paths) + (turn < count % len(paths))):
            frames, least, most = draw.choice([(1, 1, 1), (2, 1, 30), (5, 1, 9), (8, 2, 8), (16, 2, 4), (32, 1, 2)])
            stride = draw.randint(least, most)
            start = draw.randrange(max(1, len(expected) - (frames - 1) * stride))
            clip = [min(start + point * stride, len(expected) - 1) for point in range(frames)]
            with VideoReader(path, draw.choice([None, index])) as reader:
                wrong += len(reader) != len(expected)
                wrong += int((reader.read(clip) != torch.from_numpy(expected[clip])).flatten(1).any(1).sum())
    return wrong


def test_random_requests_give_no_wrong_frame(folder):
    assert random_requests(folder, 100, seed=0) == 0


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_many_random_requests_give_no_wrong_frame(folder):
    """20,000 clips take half an hour."""
    assert random_requests(folder, 20_000, seed=1) == 0
