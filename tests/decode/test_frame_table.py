"""The table of a file, and what a reader does with one that is wrong, or with a decoder that is."""

import json
import os
import random
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
import torch
import xxhash

from lightning_multigrid.decode import FullDecode, VideoError, VideoFile, VideoReader, append_table, make_table, packets
from lightning_multigrid.decode import reader as reading
from lightning_multigrid.decode.frame_table import Damage, FrameTable, Orientation, checksum
from tests.helpers.codings import CODINGS, COUNT, FRAMES, H264, HEIGHT, WIDTH, requests, written
from tests.helpers.videos import decode_all, number_of, numbered_frames, write_video

COLUMNS = ("packets", "entries", "checksums", "times", "positions", "sizes", "droppable", "clock")


def same(table, other):
    values = [name for name in FrameTable.__dataclass_fields__ if name not in COLUMNS]
    columns = all(np.array_equal(getattr(table, name), getattr(other, name)) for name in COLUMNS)
    return columns and all(getattr(table, name) == getattr(other, name) for name in values)


@pytest.mark.parametrize("name", ["gop_12.mp4", "gop_12.ts", "vp9.webm", "h265_open_gop.mkv", "mjpeg.avi"])
def test_a_table_survives_as_bytes(folder, name):
    table = make_table(written(folder, name))
    assert same(table, FrameTable.from_bytes(table.to_bytes()))
    assert len(table.to_bytes()) < 20 * COUNT + 5_000


def test_a_table_of_a_file_of_many_gigabytes_survives_as_bytes(folder):
    """Where a packet lies is unknown of some, and far behind of others: -1 and 2^33 in one column."""
    table = make_table(written(folder, "gop_12.mp4"))
    positions = table.positions.astype(np.int64) + 2**33
    positions[1] = -1
    large = replace(table, positions=positions, file_size=2**34, direct=False, clock=np.arange(len(positions)))
    assert same(large, FrameTable.from_bytes(large.to_bytes()))


def test_bytes_that_are_no_table_are_a_value_error(folder):
    data = make_table(written(folder, "gop_12.mp4")).to_bytes()
    draw = random.Random(0)
    broken = [b"", b"no table", data[:-1], data + b"\0"]
    for _ in range(100):
        changed = bytearray(data)
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
        broken.append(bytes(changed))
    for given in broken:
        with pytest.raises(ValueError, match="they are not a frame table, or a damaged one: their checksum is wrong"):
            FrameTable.from_bytes(given)


def test_a_table_whose_column_claims_more_numbers_than_there_can_be_is_a_value_error(folder):
    """With the right checksum, which any program can compute."""
    data = make_table(written(folder, "gop_12.mp4")).to_bytes()[:-8]
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    header["packets"]["shape"] = [2**70]
    head = json.dumps(header).encode()
    data = len(head).to_bytes(8, "little") + head + data[end:]
    with pytest.raises(ValueError, match="they are not a frame table"):
        FrameTable.from_bytes(data + xxhash.xxh3_64_digest(data))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rate", "x"),
        ("rate", -1.0),
        ("rate", float("nan")),
        ("start", float("inf")),
        ("stored_height", -48),
        ("stored_height", 0),
        ("stored_width", 2**31 - 1),
        ("square_width", 2**20),
        ("square_width", 64.0),
        ("file_size", None),
        ("file_size", -1),
        ("codec", 5),
        ("lacks", ["x"]),
        ("direct", "yes"),
        ("orientation", Orientation(2, False, False)),
        ("damage", Damage(-1, 0)),
        *(("coding", change) for change in ({"width": -1}, {"bits": "x"}, {"width": 2**30})),
        *(("coding", change) for change in ({"colours": (1, 2)}, {"colours": (1, 2, 3, "x")})),
        *(("coding", {"decoder": name}) for name in ("x" * 100, "aac", "")),
        ("coding", {"decoder": 5}),
        ("packets", np.arange(0)),
        ("packets", np.arange(COUNT) + 1),
        ("packets", np.arange(COUNT) - 1),
        ("packets", np.arange(COUNT) / 2),
        ("packets", np.zeros((COUNT, 1), np.int64)),
        ("entries", np.zeros(COUNT - 1, np.int64)),
        ("entries", np.full(COUNT, -1)),
        ("entries", np.full(COUNT, COUNT - 1)),
        ("checksums", np.zeros(1, np.int64)),
        ("times", np.zeros(COUNT, np.int64)),
        ("times", np.arange(2)),
        ("positions", np.full(COUNT, -1)),
        ("positions", np.full(COUNT, 2**63 - 1)),
        ("positions", np.zeros(1, np.int64)),
        ("sizes", np.full(COUNT, 2**40)),
        ("sizes", np.full(COUNT, 2**64 - 1, np.uint64)),
        ("droppable", np.zeros(3, np.uint8)),
        ("clock", np.zeros(3, np.uint8)),
    ],
)
def test_a_table_with_values_of_no_video_is_damaged(folder, tmp_path, monkeypatch, name, value):
    path = written(folder, "gop_12.mp4")
    table = make_table(path)
    value = table.coding._replace(**value) if name == "coding" else value
    wrong = replace(table, **{name: value})
    monkeypatch.setattr("lightning_multigrid.decode.frame_table._narrow", np.ascontiguousarray)
    said = r"a damaged frame table: no video has such|not a frame table .(KeyError|ValueErr)"
    with pytest.raises(ValueError, match=said):
        FrameTable.from_bytes(wrong.to_bytes())
    if name != "file_size":  # a file that holds it is read as one without a table
        (tmp_path / "a.mp4").write_bytes(path.read_bytes())
        with (tmp_path / "a.mp4").open("r+b") as file:
            append_table(file, wrong)
        with VideoReader(tmp_path / "a.mp4") as video:
            assert video.slow_because == "has no frame table"
            assert number_of(video.read([7])[0].numpy()) == 7


@pytest.mark.parametrize("name", CODINGS)
def test_an_entry_is_the_last_keyframe_from_which_a_new_decoder_gives_the_frame(folder, name):
    path = written(folder, name)
    table = make_table(path)
    with av.open(str(path)) as container:
        keys = [n for n, packet in enumerate(p for p in container.demux(video=0) if p.size) if packet.is_keyframe]
    assert set(table.entries.tolist()) <= {0, *keys}
    with VideoReader(path, table) as reader:
        for entry in sorted(set(table.entries.tolist())):
            frames = np.flatnonzero(table.entries == entry)
            numbers = range(entry, int(table.packets[frames].max()) + 1)
            out = {n: checksum(frame) for n, frame in packets.decode_packets(reader.file, table, numbers)}
            assert all(out[int(table.packets[n])] == table.checksums[n] for n in frames)


@pytest.mark.parametrize(
    ("name", "entries", "direct"),
    [
        *(("gop_12.mp4", 5, True), ("vp9.webm", 5, True), ("mpeg4_b.avi", 5, True), ("gop_12.ts", 5, False)),
        *(("intra_refresh.mp4", 3, True), ("open_gop.mp4", 5, True), ("mjpeg.avi", COUNT, True)),
    ],
)
def test_most_files_have_many_entries_and_need_no_container(folder, name, entries, direct):
    table = make_table(written(folder, name))
    assert len(set(table.entries.tolist())) >= entries
    assert table.direct is direct


@pytest.mark.parametrize(("options", "entries"), [({"g": "1"}, COUNT), (H264, 5)])
def test_a_container_is_not_opened_for_each_keyframe(tmp_path, monkeypatch, options, entries):
    """To open one, FFmpeg decodes some of it. Whatever begins with the first packet opens one."""
    opened, own = [], VideoFile.open
    monkeypatch.setattr(VideoFile, "open", lambda self: opened.append(self) or own(self))
    path = write_video(tmp_path / "video.ts", FRAMES, options=options)
    table = make_table(path)
    assert (len(set(table.entries.tolist())), table.direct) == (entries, False)
    assert len(opened) <= 4
    opened.clear()
    with VideoReader(path, table) as reader:
        for indices in requests(COUNT, 6):
            reader.read(indices)
        assert reader.fallbacks == 0


def test_frames_come_out_at_once(folder):
    """Nearly: the rest is decoded again, and is right, too."""
    reads = fallbacks = 0
    for name in CODINGS:
        path = written(folder, name)
        table = make_table(path)
        for indices in requests(COUNT, 6):
            with VideoReader(path, table) as reader:
                reader.read(indices)
                reads, fallbacks = reads + 1, fallbacks + (reader.fallbacks > 0)
    assert reads > 400
    assert fallbacks <= reads // 50


def test_a_reader_without_a_table_decodes_the_file_once(folder, monkeypatch):
    path, decoded = written(folder, "gop_12.mp4"), []
    monkeypatch.setattr(reading, "decode_packets", lambda *given, **named: decoded.append(given) or iter(()))
    with VideoReader(path) as reader:
        assert number_of(reader.read([41])[0].numpy()) == 41
    assert not decoded
    monkeypatch.undo()
    monkeypatch.setattr(reading, "_HELD_BYTES", 0)  # of a file that is too large to keep
    with VideoReader(path) as reader:
        assert number_of(reader.read([41])[0].numpy()) == 41
        assert 0 < reader.packets_fed <= 42


def test_a_table_of_another_size_or_another_ffmpeg_is_not_used(folder, tmp_path):
    path = written(folder, "mpeg4.avi")
    table = make_table(path)
    assert table.is_current
    older = replace(table, made_by="libavcodec 1.0 none", checksums=table.checksums[::-1])
    assert not older.is_current
    with VideoReader(path, older) as reader:
        assert number_of(reader.read([7])[0].numpy()) == 7
    exact = make_table(written(folder, "gop_12.mp4"))
    assert replace(exact, made_by="libavcodec 1.0 none").is_current  # each pixel of H.264 is defined
    shorter = write_video(tmp_path / "other.mp4", FRAMES[:20], options=H264)
    with VideoReader(shorter, exact) as reader:
        assert len(reader) == 20


# Lies


def lie(monkeypatch, change):
    """Makes decoders give out frames as `change` says, of those that they decoded."""
    decode = reading.decode_packets

    def lying(*given, **named):
        yield from change(list(decode(*given, **named)))

    monkeypatch.setattr(reading, "decode_packets", lying)


def neighbours(decoded):
    numbers = [number for number, _ in decoded]
    return zip(numbers, [frame for _, frame in decoded[1:] + decoded[:1]], strict=True)


@pytest.mark.parametrize("change", [neighbours, lambda decoded: decoded[:1], lambda decoded: []])
def test_a_decoder_that_lies_is_found_out(folder, monkeypatch, change):
    path = written(folder, "gop_12.mp4")
    table, expected = make_table(path), decode_all(path)
    lie(monkeypatch, change)
    with VideoReader(path, table) as reader:
        for index in (5, 17, 40):
            assert np.array_equal(reader.read([index])[0].numpy(), expected[index])
        assert reader.fallbacks >= 4


def test_a_frame_that_nothing_gives_is_an_error(folder):
    path = written(folder, "gop_12.mp4")
    table = make_table(path)
    wrong = table.checksums.copy()
    wrong[30] ^= 1
    with VideoReader(path, replace(table, checksums=wrong)) as reader:
        with pytest.raises(VideoError, match=r"changed: frame 30 of 60 is not the one .* `lightning-multigrid index`"):
            reader.read([29, 30])
        assert number_of(reader.read([29])[0].numpy()) == 29


def test_no_bit_of_a_packet_can_flip_unnoticed(folder, tmp_path):
    """What is read of a file that has changed since its table was made is what it was, or an error."""
    source, path = written(folder, "gop_12.mp4"), tmp_path / "flipped.mp4"
    table, expected, draw = make_table(source), decode_all(source), random.Random(3)
    errors = 0
    for _ in range(40):
        data = bytearray(source.read_bytes())
        packet = draw.randrange(COUNT)
        data[int(table.positions[packet]) + draw.randrange(int(table.sizes[packet]))] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        with VideoReader(path, table) as reader:
            for index in range(0, COUNT, 7):
                try:
                    assert np.array_equal(reader.read([index])[0].numpy(), expected[index])
                except VideoError:
                    errors += 1
    assert errors > 10


def test_a_file_that_is_replaced_by_another_of_the_same_size_and_time_is_found_out(folder, tmp_path):
    path = write_video(tmp_path / "video.mp4", FRAMES, options=H264)
    table, status = make_table(path), path.stat()
    write_video(path, numbered_frames(COUNT, HEIGHT, WIDTH, first=100), options=H264)
    with path.open("r+b") as file:
        file.truncate(status.st_size)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    for index in (0, 33, 59):
        with VideoReader(path, table) as reader, pytest.raises(VideoError, match="changed: frame"):
            reader.read([index])


# What a frame is


def test_pixels_that_are_not_square_are_shown_as_a_player_does(tmp_path):
    path = write_video(tmp_path / "wide.mp4", FRAMES[:10], options={"x264-params": "sar=3/2:log-level=none"})
    expected = decode_all(path)
    assert expected.shape[1:3] == (HEIGHT, WIDTH * 3 // 2)
    for table in (make_table(path), None):
        with VideoReader(path, table) as reader:
            assert (reader.height, reader.width) == (HEIGHT, WIDTH * 3 // 2)
            assert np.array_equal(reader.read(range(10)).numpy(), expected)
            assert isinstance(reader.read_yuv([3]), torch.Tensor)


def test_of_several_tracks_the_one_that_ffmpeg_takes_for_the_best_is_read(tmp_path):
    path = tmp_path / "two.mp4"
    with av.open(str(path), "w") as container:
        small, large = (container.add_stream("libx264", rate=30, options=H264) for _ in range(2))
        for stream, scale in ((small, 1), (large, 2)):
            stream.disposition = scale - 1  # the second is the default
            stream.height, stream.width, stream.pix_fmt = HEIGHT * scale, WIDTH * scale, "yuv420p"
        for number in range(10):
            for stream, scale in ((small, 1), (large, 2)):
                pixels = numbered_frames(1, HEIGHT * scale, WIDTH * scale, first=number + 100 * (scale - 1))[0]
                container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        for stream in (small, large):
            container.mux(stream.encode())
    table = make_table(path)
    with VideoReader(path, table) as reader:
        assert [number_of(frame) for frame in reader.read([0, 9]).numpy()] == [100, 109]


def test_a_full_decode_tells_size_rate_and_damage(folder):
    with FullDecode(written(folder, "gop_12.mp4")) as decode:
        frames = [frame.pts for frame in decode]
        assert (decode.height, decode.width, decode.rate) == (HEIGHT, WIDTH, 30.0)
        assert decode.orientation == Orientation()
        assert (len(frames), *decode.counted()) == (COUNT, COUNT, 30.0)
        assert not decode.damage
        assert decode.table(entries=False).times.tolist() == frames


def test_the_padding_of_what_decoders_get_is_zero(folder):
    """PyAV leaves what is in memory behind a packet of given bytes, which decoders of MPEG-4 read."""
    path = written(folder, "mpeg4.avi")
    table, given, junk = make_table(Path(path)), set(), []
    with VideoReader(path, table) as reader:
        for turn in range(12):
            junk.append(os.urandom(1000 * turn))
            decoded = packets.decode_packets(reader.file, table, range(12))
            given.add(tuple(checksum(frame) for _, frame in decoded))
    assert len(given) == 1


def test_numbers_of_packets_survive_in_a_decoder_that_is_kept(folder):
    """PyAV forgets an object that two packets share when the first packet goes."""
    path = written(folder, "mjpeg.avi")
    table = make_table(path)
    with VideoReader(path, table) as reader:
        for _ in range(5):
            decoded = packets.decode_packets(reader.file, table, [0], new=False)
            assert [number for number, _ in decoded] == [0]
