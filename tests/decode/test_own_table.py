"""A prepared video holds its table, or there is none."""

from dataclasses import replace

import av
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_multigrid.decode import FrameTable, VideoReader, append_table, make_table, own_table
from lightning_multigrid.files.input_file import InputFile
from tests.helpers.videos import number_of, numbered_frames, write_video


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """The bytes of a video without and with its table, and the table."""
    path = write_video(tmp_path_factory.mktemp("held") / "a.mp4", numbered_frames(20))
    plain = path.read_bytes()
    table = replace(make_table(path), made_from='of "é"')
    with path.open("r+b") as file:
        append_table(file, table)
    return plain, table, path.read_bytes()


def read(path, data):
    path.write_bytes(data)
    return own_table(InputFile(path))


def test_a_table_is_read_as_it_was_written(held, tmp_path):
    table = read(tmp_path / "a.mp4", held[2])
    assert table.to_bytes() == replace(held[1], file_size=len(held[2])).to_bytes()
    assert table.made_from == 'of "é"'


def test_a_reader_needs_no_other(held, tmp_path, monkeypatch):
    (tmp_path / "a.mp4").write_bytes(held[2])
    monkeypatch.setattr("lightning_multigrid.decode.full_decode.FullDecode.__init__", None)
    with VideoReader(tmp_path / "a.mp4") as video:
        assert video.table.made_from == 'of "é"'
        assert number_of(video.read([17])[0].numpy()) == 17
        assert not video.fallbacks


def test_a_clip_takes_two_reads(held, tmp_path, monkeypatch):
    """One of the table, and one of the packets of a group."""
    (tmp_path / "a.mp4").write_bytes(held[2])
    read, reads = InputFile.read, []
    monkeypatch.setattr(InputFile, "read", lambda *given: reads.append(given) or read(*given))
    with VideoReader(tmp_path / "a.mp4") as video:
        assert [number_of(frame) for frame in video.read([2, 5, 9]).numpy()] == [2, 5, 9]
    assert len(reads) == 2


def test_a_long_table_is_found(held, tmp_path):
    (tmp_path / "long.mp4").write_bytes(held[0])
    with (tmp_path / "long.mp4").open("r+b") as file:
        append_table(file, replace(held[1], made_from="é" * 20_000))
    assert own_table(InputFile(tmp_path / "long.mp4")).made_from == "é" * 20_000


def test_packets_that_lie_far_apart_are_read_one_by_one(held, tmp_path, monkeypatch):
    (tmp_path / "a.mp4").write_bytes(held[2])
    monkeypatch.setattr("lightning_multigrid.decode.packets._AT_ONCE", 0)
    with VideoReader(tmp_path / "a.mp4") as video:
        assert [number_of(frame) for frame in video.read([2, 5, 9]).numpy()] == [2, 5, 9]
        assert not video.fallbacks


def test_a_file_that_was_changed_behind_its_video_is_decoded_anew(held, tmp_path):
    (tmp_path / "a.mp4").write_bytes(held[2][len(held[0]) :])  # the table alone is no video
    assert len(read(tmp_path / "a.mp4", held[2][len(held[0]) :])) == 20
    with pytest.raises(ValueError, match="not a video, or damaged"):
        VideoReader(tmp_path / "a.mp4")
    (tmp_path / "a.mp4").write_bytes(held[0] + (12).to_bytes(4, "big") + b"free1234" + held[2][len(held[0]) :])
    with VideoReader(tmp_path / "a.mp4") as video:
        assert video.table.made_from == ""
        assert number_of(video.read([17])[0].numpy()) == 17


def test_players_skip_it(held, tmp_path):
    for name, data in (("a", held[0]), ("b", held[2])):
        (tmp_path / name).write_bytes(data)
    with av.open(str(tmp_path / "a")) as one, av.open(str(tmp_path / "b")) as other:
        packets = [[bytes(packet) for packet in file.demux(video=0)] for file in (one, other)]
    assert packets[0] == packets[1]


def test_what_has_none(held, tmp_path):
    plain, _, whole = held
    for data in (b"", b"123", b"\0\0\0\4", plain, whole + b"\0", whole[:-1], bytes(100), whole[-100:]):
        assert read(tmp_path / "a.mp4", data) is None


@given(st.data())
def test_any_byte_of_the_box_may_be_wrong(held, tmp_path_factory, data):
    plain, _, whole = held
    place = data.draw(st.integers(len(plain), len(whole) - 1))
    changed = whole[:place] + bytes([data.draw(st.integers(0, 255))]) + whole[place + 1 :]
    found = read(tmp_path_factory.mktemp("changed") / "a.mp4", changed)
    assert found is None if changed != whole else isinstance(found, FrameTable)
