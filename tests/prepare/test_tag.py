"""A tag says what a video is, or there is none."""

import av
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_multigrid.decode.frame_table import FrameTable
from lightning_multigrid.decode.full_decode import make_table
from lightning_multigrid.prepare.tag import Tag, append_tag, read_tag
from tests.helpers.videos import numbered_frames, write_video


@pytest.fixture(scope="module")
def tagged(tmp_path_factory):
    path = write_video(tmp_path_factory.mktemp("tag") / "a.mp4", numbered_frames(20))
    plain = path.read_bytes()
    append_tag(str(path), Tag('of "a"', True, ("it is odd", "é")), make_table(path))
    return plain, path.read_bytes()


def test_a_tag_is_read_as_it_was_written(tagged, tmp_path):
    (tmp_path / "a.mp4").write_bytes(tagged[1])
    tag, table = read_tag(str(tmp_path / "a.mp4"))
    assert tag == Tag('of "a"', True, ("it is odd", "é"))
    assert FrameTable.from_bytes(table).file_size == len(tagged[1])


def test_players_skip_it(tagged, tmp_path):
    for name, data in zip("ab", tagged, strict=True):
        (tmp_path / name).write_bytes(data)
    with av.open(str(tmp_path / "a")) as one, av.open(str(tmp_path / "b")) as other:
        packets = [[bytes(packet) for packet in file.demux(video=0)] for file in (one, other)]
    assert packets[0] == packets[1]


def test_what_has_none(tagged, tmp_path):
    assert read_tag(str(tmp_path / "none.mp4")) is None
    assert read_tag(str(tmp_path)) is None
    for data in (b"", b"1234567", tagged[0], tagged[1] + b"\0", tagged[1][:-1], tagged[1][1:], bytes(100)):
        (tmp_path / "a.mp4").write_bytes(data)
        found = read_tag(str(tmp_path / "a.mp4"))
        assert found is None or data == tagged[1][1:]  # its box is all there


@given(st.data())
def test_any_byte_of_the_box_may_be_wrong(tagged, tmp_path_factory, data):
    plain, whole = tagged
    place = data.draw(st.integers(len(plain), len(whole) - 1))
    path = tmp_path_factory.mktemp("changed") / "a.mp4"
    path.write_bytes(whole[:place] + bytes([data.draw(st.integers(0, 255))]) + whole[place + 1 :])
    found = read_tag(str(path))
    assert found is None or isinstance(found[0], Tag)
