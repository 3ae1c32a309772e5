"""Indices as plain data: round trips, hostile bytes, and plans checked against their definition."""

from __future__ import annotations

import dataclasses
import random
import zlib
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_multigrid.decode.index import DROPPABLE, ENTRY, SHOWN, Orientation, PacketIndex, Seal
from tests.helpers.mutations import mutate, seeds


def make_index(flags: list[int], times: list[int], **changes) -> PacketIndex:
    count = len(flags)
    sizes = np.arange(100, 100 + count)
    values = {
        "frames": sum(flag & SHOWN > 0 for flag in flags),
        "rate": 29.97,
        "stored_height": 48,
        "stored_width": 64,
        "orientation": Orientation(True, False, True),
        "direct": True,
        "extradata": b"\1sets",
        "colours": (2, 0, 2, -1),
        "file_size": 10**6,
        "seals": (Seal(8, 90), Seal(400, 1)),
        "digest": b"0123456789abcdef",
        "positions": np.cumsum(sizes) - sizes + 48,
        "sizes": sizes,
        "times": np.array(times, np.int64),
        "decoding_times": np.arange(count) - 2,
        "flags": np.array(flags, np.int64),
        "checksums": np.arange(count) * (2**32 - 1) // max(1, count - 1),
    }
    return PacketIndex(**(values | changes))


# Two GOPs as they are stored: I P b b P b b, then I P b b. Nobody refers to b.
KEY, REFERENCE, B = ENTRY | SHOWN, SHOWN, SHOWN | DROPPABLE
FLAGS = [KEY, REFERENCE, B, B, REFERENCE, B, B, KEY, REFERENCE, B, B]
TIMES = [0, 3, 1, 2, 6, 4, 5, 7, 10, 8, 9]
INDEX = make_index(FLAGS, TIMES)


def test_a_round_trip_changes_nothing():
    again = PacketIndex.from_bytes(INDEX.to_bytes())
    for field in dataclasses.fields(PacketIndex):
        assert np.array_equal(getattr(again, field.name), getattr(INDEX, field.name)), field.name
    assert again == INDEX
    assert hash(again) == hash(INDEX)
    assert (len(again), again.height, again.width, again.rate) == (11, 64, 48, 29.97)
    assert PacketIndex.from_bytes(memoryview(INDEX.to_bytes())) == INDEX


@settings(max_examples=50)
@given(
    st.lists(st.integers(-(2**40), 2**40), unique=True, min_size=1, max_size=40),
    st.sampled_from([1, 2**7, 2**20, 2**33]),
)
def test_a_round_trip_of_any_times_and_sizes(times, scale):
    times.sort()
    sizes = np.arange(1, len(times) + 1) * scale
    index = make_index(
        [KEY] * len(times),
        times,
        sizes=sizes,
        positions=np.cumsum(sizes)[::-1].copy(),
        decoding_times=np.array(times) * 3,
        file_size=2**50,
    )
    assert PacketIndex.from_bytes(index.to_bytes()) == index


def test_the_digest_is_of_the_sealed_bytes_and_of_all_values():
    digest = INDEX.digest_for([b"table"])
    assert digest == PacketIndex.from_bytes(INDEX.to_bytes()).digest_for([b"table"])
    others = [{"rate": 30.0}, {"extradata": b"\1"}, {"seals": ()}, {"checksums": INDEX.checksums[::-1].copy()}]
    changed = [dataclasses.replace(INDEX, **change).digest_for([b"table"]) for change in others]
    assert len({digest, INDEX.digest_for([b"tables"]), *changed}) == 6


def test_an_index_of_counted_frames_has_no_packets():
    none = np.empty(0, np.int64)
    columns = dict.fromkeys(["positions", "sizes", "decoding_times", "checksums"], none)
    index = make_index([], [], frames=17, **columns)
    assert PacketIndex.from_bytes(index.to_bytes()) == index
    assert len(index) == 17


def test_frames_are_shown_at_their_times():
    index = make_index(FLAGS, [10 * time + 100 * (time > 5) for time in TIMES], rate=10 / 20.0)
    # 200 ticks from the first to the last in 20 s; a break of 10 s before frame 6.
    assert [round(index.time_of(frame), 6) for frame in (0, 1, 5, 6, 10)] == [0, 1, 5, 16, 20]
    assert index.time_of(11) == 22  # as long as a frame is shown on average
    counted = dict.fromkeys(["positions", "sizes", "decoding_times", "checksums"], np.empty(0, np.int64))
    assert make_index([], [], frames=17, rate=2.0, **counted).time_of(5) == 2.5


def test_an_index_takes_few_bytes():
    count = 300
    index = make_index([KEY] * count, list(range(count)))
    assert len(index.to_bytes()) < 13 * count


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
def test_a_run_ends_with_the_last_packet_needed_and_leaves_out_what_nobody_needs(frames, packets, shown):
    (run,) = INDEX.runs(frames)
    assert (run.packets, run.shown) == (packets, shown)
    assert sorted(run.wanted.values()) == frames


def test_runs_begin_at_the_last_entry_and_go_on_where_nothing_lies_between():
    runs = INDEX.runs([0, 8])
    assert [run.packets for run in runs] == [[0], [7, 8, 9]]
    runs = INDEX.runs([5, 7])
    assert [run.packets for run in runs] == [[0, 1, 4, 6, 7]]
    assert [run.wanted for run in runs] == [{6: 5, 7: 7}]


@given(seeds())
def test_runs_hold_what_their_definition_says(seed):
    draw = random.Random(seed)
    wanted = sorted(draw.sample(range(11), draw.randint(1, 11)))
    by_time = np.argsort(TIMES).tolist()
    needed = set()
    for frame in wanted:
        packet = by_time[frame]
        entry = max(p for p in (0, 7) if TIMES[p] <= TIMES[packet])
        needed |= {p for p in range(entry, packet + 1) if FLAGS[p] != B} | {packet}
    runs = INDEX.runs(wanted)
    assert sorted(p for run in runs for p in run.packets) == sorted(needed)
    assert {p: frame for run in runs for p, frame in run.wanted.items()} == {by_time[frame]: frame for frame in wanted}


def test_pictures_that_lead_an_open_gop_are_decoded_from_the_entry_before():
    index = make_index([KEY, REFERENCE, KEY, REFERENCE, REFERENCE], [0, 1, 4, 2, 3])
    (run,) = index.runs([2])
    assert run.packets == [0, 1, 2, 3]
    (run,) = index.runs([4])
    assert (run.packets, run.shown) == ([2], [2])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sizes": np.array([1])}, "the columns differ in length"),
        ({"stored_height": 0}, "no frames of a possible size"),
        ({"stored_height": 2**15, "stored_width": 2**12}, "no frames of a possible size"),
        ({"frames": 10}, "the number of frames is not that of the packets shown"),
        ({"rate": float("nan")}, "no possible rate"),
        ({"file_size": 500}, "a packet lies beyond the end"),
        ({"digest": b""}, "no digest"),
        ({"file_size": 50}, "a seal lies beyond the end"),
        ({"file_size": 2**40, "seals": (Seal(0, 2**24),)}, "the seals are too large"),
        ({"sizes": np.zeros(11, np.int64)}, "a packet lies beyond the end"),
        ({"times": np.zeros(11, np.int64)}, "two frames are shown at one time"),
        ({"flags": np.full(11, SHOWN)}, "the entries are not in order"),
        ({"times": np.array(TIMES) * 2**61}, "a number is too large|shown at one time"),
    ],
)
def test_values_that_contradict_each_other_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(INDEX, **changes)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "These 0 bytes are no packet index"),
        (b"text" * 100, "they begin otherwise, or are of another version"),
        (INDEX.to_bytes()[:-1], "their checksum is wrong"),
        (INDEX.to_bytes() + b"\0", "their checksum is wrong"),
    ],
)
def test_what_is_no_index_is_refused(data, message):
    with pytest.raises(ValueError, match=message):
        PacketIndex.from_bytes(data)


def sealed(content: bytes) -> bytes:
    """The content with a checksum that fits, as an attacker would make it."""
    head = INDEX.to_bytes()[:6]
    return head + zlib.crc32(content).to_bytes(4, "little") + content


@settings(max_examples=400, deadline=None)
@given(seeds())
def test_hostile_bytes_are_a_value_error_or_an_index(seed):
    draw = random.Random(seed)
    content = bytearray(INDEX.to_bytes()[10:])
    if draw.random() < 0.5:
        for _ in range(draw.randint(1, 4)):
            content[draw.randrange(len(content))] = draw.choice([0, 1, 127, 128, 255, draw.randrange(256)])
    else:
        content = bytearray(mutate(bytes(content), draw))
    with suppress(ValueError):
        index = PacketIndex.from_bytes(sealed(bytes(content)))
        if len(index.times):
            runs = index.runs(range(len(index)))
            assert sorted(frame for run in runs for frame in run.wanted.values()) == list(range(len(index)))


@given(st.binary(max_size=300))
def test_any_bytes_are_a_value_error(data):
    for content in (data, sealed(data)):
        with pytest.raises(ValueError, match="are no packet index"):
            PacketIndex.from_bytes(content)
