"""Indices as plain data: round trips, contradictions, hostile bytes."""

from __future__ import annotations

import dataclasses
import random
import zlib
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_multigrid.decode.packet_index import SHOWN, PacketIndex, Seal
from lightning_multigrid.decode.ranges import packet_ranges
from tests.helpers.indices import FLAGS, INDEX, KEY, TIMES, make_index
from tests.helpers.mutations import fuzzed, mutate


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
    ("changes", "message"),
    [
        ({"sizes": np.array([1])}, "the columns differ in length"),
        ({"stored_height": 0}, "the size of the frames is impossible"),
        ({"stored_height": 2**15, "stored_width": 2**12}, "the size of the frames is impossible"),
        ({"frames": 10}, "there are more or fewer frames than packets that are shown"),
        ({"rate": float("nan")}, "the rate is impossible"),
        ({"file_size": 500}, "a packet lies beyond the end"),
        ({"digest": b""}, "the digest is missing"),
        ({"file_size": 50}, "a seal lies beyond the end"),
        ({"file_size": 2**40, "seals": (Seal(0, 2**24),)}, "the seals are too large"),
        ({"sizes": np.zeros(11, np.int64)}, "a packet lies beyond the end"),
        ({"times": np.zeros(11, np.int64)}, "two frames are shown at the same time"),
        ({"flags": np.full(11, SHOWN)}, "the entries are not in order"),
        ({"times": np.array(TIMES) * 2**61}, "a number is too large|shown at the same time"),
    ],
)
def test_values_that_contradict_each_other_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(INDEX, **changes)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "These 0 bytes are no packet index"),
        (b"text" * 100, "they don't begin as an index does, or are of another version"),
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


def try_mutated(seed):
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
            found = packet_ranges(index, range(len(index)))
            assert sorted(frame for part in found for frame in part.wanted.values()) == list(range(len(index)))


@fuzzed(some=400)
def test_mutated_bytes_are_a_value_error_or_an_index(numbers):
    for seed in numbers:
        try_mutated(seed)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_value_error(data):
    for content in (data, sealed(data)):
        with pytest.raises(ValueError, match="are no packet index"):
            PacketIndex.from_bytes(content)
