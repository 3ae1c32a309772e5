"""What H.264 packets tell, against FFmpeg: the order in which frames come out, and what they are without some."""

from __future__ import annotations

import random

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_multigrid.decode.nal import H264Packets, H265Packets, nal_units
from lightning_multigrid.decode.packet_index import DROPPABLE, ENTRY
from tests.helpers.videos import numbered_frames, write_video

# Name -> options of x264. The suffix tells how units are kept apart.
STREAMS = {
    "default.mp4": {},
    "default.ts": {},
    "pyramid.mp4": {"x264-params": "b-pyramid=normal:bframes=8:b-adapt=0:log-level=none"},
    "long.mp4": {"g": "250", "x264-params": "bframes=2:b-adapt=0:scenecut=0:log-level=none"},
    "interlaced.mp4": {"x264-params": "interlaced=1:log-level=none"},
    "quantiser.mp4": {"profile": "high", "x264-params": "cqm=jvt:log-level=none"},
    "slices.mp4": {"x264-params": "slices=4:log-level=none"},
    "no_b.mp4": {"bf": "0"},
    "chroma_444.mp4": {"crf": "20"},
}


def read_packets(path) -> tuple[bytes, list[tuple[int, bytes]]]:
    with av.open(str(path)) as container:
        extradata = bytes(container.streams.video[0].codec_context.extradata or b"")
        return extradata, [(packet.pts, bytes(packet)) for packet in container.demux(video=0) if packet.size]


@pytest.fixture(params=STREAMS)
def stream(request, tmp_path):
    options = {"g": "30", "x264-params": "log-level=none"} | STREAMS[request.param]
    layout = "yuv444p" if "444" in request.param else "yuv420p"
    return write_video(tmp_path / request.param, numbered_frames(150), options=options, pix_fmt=layout)


def test_orders_are_those_in_which_frames_come_out(stream):
    extradata, packets = read_packets(stream)
    looked = H264Packets(extradata)
    looks = [looked.look(data) for _, data in packets]
    assert looked.sure
    assert not looked.sets_in_band
    assert [sequence for sequence, _ in looked.orders] == np.cumsum([look & ENTRY for look in looks]).tolist()
    shown = sorted(range(len(packets)), key=looked.orders.__getitem__)
    assert [packets[n][0] for n in shown] == sorted(time for time, _ in packets)


def test_numbers_tell_whether_a_reference_picture_is_missing(stream):
    extradata, packets = read_packets(stream)

    def gaps(left_out: int | None = None) -> bool:
        looked = H264Packets(extradata)
        for number, (_, data) in enumerate(packets):
            if number != left_out:
                looked.look(data)
        return looked.gaps

    looked = H264Packets(extradata)
    flags = [looked.look(data) for _, data in packets]
    assert not gaps()
    assert not any(gaps(n) for n in [n for n, flag in enumerate(flags) if flag & DROPPABLE][::7])
    # Nobody misses the last reference picture before one that begins anew.
    missed = [n for n, flag in enumerate(flags[:-1]) if not (flag & (DROPPABLE | ENTRY) or flags[n + 1] & ENTRY)]
    assert missed
    assert all(gaps(n) for n in missed[::7])


def test_frames_are_the_same_without_droppable_packets(stream):
    extradata, packets = read_packets(stream)
    looked = H264Packets(extradata)
    droppable = [bool(looked.look(data) & DROPPABLE) for _, data in packets]
    assert any(droppable) == ("no_b" not in stream.name)

    def decoded(kept):
        codec = av.CodecContext.create("h264", "r")
        codec.extradata, codec.thread_count = extradata, 1
        frames = {}
        for number, (_, data) in enumerate(packets):
            if kept(number):
                packet = av.Packet(data)
                packet.pts = number
                frames |= {frame.pts: frame.to_ndarray() for frame in codec.decode(packet)}
        return frames | {frame.pts: frame.to_ndarray() for frame in codec.decode(None)}

    whole = decoded(lambda number: True)
    draw = random.Random(0)
    some = decoded(lambda number: not droppable[number] or draw.random() < 0.3)
    assert len(some) == len(whole) - (len(packets) - len(some))
    assert all(np.array_equal(frame, whole[number]) for number, frame in some.items())
    assert len(decoded(lambda number: not droppable[number])) == droppable.count(False)


class Bits:
    """Bits of a parameter set, written as 7.3 and 9.1 of the standard say."""

    def __init__(self):
        self.text = ""

    def put(self, value, count):
        self.text += f"{value:0{count}b}"
        return self

    def golomb(self, *values):
        for value in values:
            digits = f"{value + 1:b}"
            self.text += "0" * (len(digits) - 1) + digits
        return self

    def signed(self, *values):
        return self.golomb(*(2 * value - 1 if value > 0 else -2 * value for value in values))

    def bytes(self):
        text = self.text + "1"
        text += "0" * (-len(text) % 8)
        plain = int(text, 2).to_bytes(len(text) // 8, "big")
        return b"\0\0\1" + plain


def sequence(*, frames_only, lists=(), offsets=None):
    """A sequence parameter set of the High profile, with scaling lists, and with orders of type 1 if it has offsets."""
    bits = Bits().put(0x67, 8).put(100, 8).put(0, 16).golomb(0, 1, 0, 0).put(0, 1)
    bits.put(bool(lists), 1)
    for place in range(8 if lists else 0):
        bits.put(place in lists, 1)
        if place in lists:
            bits.signed(*lists[place])
    bits.golomb(0)
    if offsets is None:
        bits.golomb(0, 0)
    else:
        bits.golomb(1).put(0, 1).signed(-7, 9).golomb(len(offsets)).signed(*offsets)
    return bits.golomb(4).put(0, 1).golomb(3, 2).put(frames_only, 1).put(1, 1).put(0, 2).bytes()


@pytest.mark.parametrize("frames_only", [False, True])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"lists": {0: [1] * 16}},
        {"lists": {0: [3, -11], 6: [5] * 64}},  # 8 + 3 - 11 is 0: the rest of the list is as its last number
        {"offsets": []},
        {"offsets": [1, -1, 300, -7]},
    ],
)
def test_a_parameter_set_is_read_to_its_end(more, frames_only):
    assert H264Packets(sequence(frames_only=frames_only, **more))._sequence.frames_only == frames_only


def test_orders_of_type_1_are_unsure():
    looked = H264Packets(sequence(frames_only=True, offsets=[1]))
    assert looked.sure
    looked.look(b"\0\0\1\x65\x88\x84\0\x21")
    assert not looked.sure


@pytest.mark.parametrize("bottom", [0, 1])
def test_the_order_of_a_field_stands_behind_its_parity(bottom):
    looked = H264Packets(sequence(frames_only=False))
    for idr, frame, order in ((1, 0, 0), (0, 1, 6)):
        unit = Bits().put(0x65 if idr else 0x41, 8).golomb(0, 7, 0).put(frame, 4).put(1, 1).put(bottom, 1)
        looked.look((unit.golomb(0) if idr else unit).put(order, 4).put(0, 16).bytes())
    assert looked.sure
    assert looked.orders == [(1, 0), (1, 6)]


def test_a_new_parameter_set_makes_orders_unsure(tmp_path):
    first, second = (
        write_video(tmp_path / f"{side}.ts", numbered_frames(5, side, side), options={"x264-params": "log-level=none"})
        for side in (48, 64)
    )
    extradata, packets = read_packets(first)
    looked = H264Packets(extradata)
    for _, data in packets + read_packets(second)[1]:
        looked.look(data)
    assert looked.sets_in_band
    assert not looked.sure


def test_a_packet_is_droppable_only_if_nothing_in_it_is_referred_to():
    def packet(*headers: int) -> bytes:
        return b"".join(b"\0\0\1" + bytes([header, 0x88, 0x84, 0, 0x21]) for header in headers)

    looks = [
        bool(H264Packets(b"").look(data) & DROPPABLE)
        for data in (packet(0x01), packet(0x01, 0x01), packet(0x01, 0x41), packet(0x06), packet(0x67, 0x01), packet())
    ]
    assert looks == [True, True, False, False, False, False]


@given(st.binary(max_size=80), st.sampled_from([b"", b"\1\x64\0\x0d\xff\xe1", b"\1" * 40]))
def test_no_packet_is_too_strange(data, extradata):
    looked = H264Packets(extradata + data)
    look = looked.look(data)
    assert len(looked.orders) == 1
    assert not (look & ENTRY and look & DROPPABLE and looked.sure)
    assert H265Packets(extradata).is_entry(data) in (True, False)
    assert all(0 <= start <= end <= len(data) for length in (0, 1, 2, 4) for start, end in nal_units(data, length))


def test_sets_of_h265_that_the_extradata_have_change_nothing():
    def packet(*kinds: int) -> bytes:
        return b"".join(b"\0\0\0\1" + bytes([kind << 1, 1, kind, 0x80]) for kind in kinds)

    looked = H265Packets(packet(32, 33, 34))
    assert [looked.is_entry(data) for data in (packet(32, 33, 34, 19), packet(1), packet(21), packet(34, 16))] == [
        True,
        False,
        True,
        True,
    ]
    assert not looked.sets_in_band
    assert looked.whole == [0]
    looked.is_entry(packet(33).replace(b"\x80", b"\x90") + packet(1))
    assert looked.sets_in_band
