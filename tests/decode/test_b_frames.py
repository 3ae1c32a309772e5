"""B-frames of MPEG streams, against FFmpeg: which they are, when they are shown, and that nobody misses them."""

from __future__ import annotations

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_multigrid.decode.b_frames import BFrames
from lightning_multigrid.decode.packet_index import DROPPABLE
from lightning_multigrid.decode.reader import VideoReader, build_index
from tests.helpers.videos import decode_all, numbered_frames, write_video

STREAMS = {"mpeg1video": "ts", "mpeg2video": "ts", "mpeg4": "mp4"}


@pytest.fixture(params=STREAMS)
def stream(request, tmp_path):
    options = {"g": "12", "bf": "2"}
    return write_video(
        tmp_path / f"b.{STREAMS[request.param]}", numbered_frames(60), codec=request.param, options=options
    )


def test_types_and_orders_are_those_that_ffmpeg_finds(stream):
    with av.open(str(stream)) as container:
        codec = container.streams.video[0].codec_context
        looked = BFrames(codec.name)
        packets = [packet for packet in container.demux(video=0) if packet.size]
        droppable = {packet.pts for packet in packets if looked.look(bytes(packet)) & DROPPABLE}
        times = [packet.pts for packet in packets]
        container.seek(0)
        frames = list(container.decode(video=0))
    assert droppable == {frame.pts for frame in frames if frame.pict_type == av.video.frame.PictureType.B}
    assert len(droppable) > 30
    shown = sorted(range(len(times)), key=looked.orders.__getitem__)
    assert [times[number] for number in shown] == [frame.pts for frame in frames]


def test_a_clip_needs_no_other_b_frames(stream):
    expected, index = decode_all(stream), build_index(stream)
    for wanted in ([9], [10], [11], [3, 20, 31], [59]):
        with VideoReader(stream, index) as reader:
            assert np.array_equal(reader.read(wanted).numpy(), expected[wanted]), wanted
    with VideoReader(stream, index) as reader:
        reader.read([11])
        assert reader.packets_fed <= 6  # an I-frame, P-frames and itself, of twelve


def test_if_the_times_are_of_another_order_frames_are_counted(tmp_path):
    """From one packet on, the times of B-frames are those of the order in which they are stored."""
    path = write_video(tmp_path / "b.mp4", numbered_frames(60), codec="mpeg4", options={"g": "12", "bf": "2"})
    data, packets = bytearray(path.read_bytes()), 0
    table = data.index(b"ctts") + 8
    for entry in range(int.from_bytes(data[table : table + 4], "big")):
        at = table + 4 + 8 * entry
        if packets >= 30:
            data[at + 4 : at + 8] = (512).to_bytes(4, "big")
        packets += int.from_bytes(data[at : at + 4], "big")
    path.write_bytes(data)
    expected = decode_all(path)
    assert not len(build_index(path).times)  # frames are counted
    with VideoReader(path) as reader:
        for number in range(60):
            assert np.array_equal(reader.read([number])[0].numpy(), expected[number]), number


@pytest.mark.parametrize("codec", STREAMS)
@given(packets=st.lists(st.binary(max_size=12).map(lambda data: b"\0\0\1\0" * (len(data) % 2) + data), max_size=9))
def test_no_packet_is_too_strange(codec, packets):
    looked = BFrames(codec)
    for packet in packets:
        looked.look(packet)
    assert len(set(looked.orders)) == len(packets)
