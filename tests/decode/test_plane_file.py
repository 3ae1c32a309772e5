"""A file of planes gives what the encoder of a prepared copy would get, or an error that names the file."""

import os
import struct
from contextlib import suppress
from fractions import Fraction
from itertools import pairwise

import av
import numpy as np
import pytest
import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from lightning_multigrid.clips.opening import Stretch
from lightning_multigrid.decode import Box, PlaneFile, VideoError, open_video, open_whole, planes_bytes
from lightning_multigrid.pixels import YuvClip
from lightning_multigrid.prepare.transcode import Encoding, Planes, TranscodeJob, transcode
from tests.helpers.videos import numbered_frames, write_video

SIDE = 48
ODD = numbered_frames(9, 97, 131)
KINDS = {
    "larger": {"frames": numbered_frames(9, 96, 128)},
    "smaller": {"frames": numbered_frames(9, 34, 46)},
    "odd, 4:4:4": {"frames": ODD, "pix_fmt": "yuv444p"},
    "10 bits": {"frames": ODD, "pix_fmt": "yuv444p10le"},
    "full range": {"frames": numbered_frames(9, 96, 128), "pix_fmt": "yuvj420p"},
    "BT.709": {"frames": numbered_frames(9, 96, 128), "options": {"x264-params": "colormatrix=bt709"}},
    "BT.2020": {"frames": numbered_frames(9, 96, 128), "options": {"x264-params": "colormatrix=bt2020nc"}},
    "wide pixels": {"frames": numbered_frames(9, 96, 64), "options": {"x264-params": "sar=2/1"}},
    "variable rate": {"frames": numbered_frames(9, 96, 128), "pts": [0, 1, 2, 10, 11, 40, 41, 42, 90]},
    "turned": {"frames": numbered_frames(9, 96, 128), "rotation": 90},
    "upside down": {"frames": numbered_frames(9, 96, 128), "rotation": "upside down"},
    "a fraction": {"frames": numbered_frames(9, 96, 128), "rate": Fraction(30000, 1001)},
    "after its sound": {"frames": numbered_frames(9, 96, 128), "audio": True, "pts": [*range(40, 49)]},
    "RGB": {"frames": numbered_frames(9, 96, 128), "codec": "ffv1", "pix_fmt": "bgr0", "name": "a.mkv"},
    "one frame": {"frames": numbered_frames(1, 96, 128)},
}


def both(folder, name="a.mp4", **video):
    """A video as planes, and as H.264 without loss, which is decoded."""
    source = write_video(folder / name, video.pop("frames"), **video)
    for target, encoding in (("b.planes", Planes(SIDE)), ("b.mp4", Encoding(SIDE, crf=0, preset="ultrafast"))):
        transcode(TranscodeJob(str(source), str(folder / target), encoding, made_from="of a"))
    return folder / "b.planes", folder / "b.mp4"


def same(one, other):
    if isinstance(one, YuvClip):
        return one.format == other.format and torch.equal(one.data, other.data)
    return torch.equal(one, other)


@pytest.mark.parametrize("kind", KINDS)
def test_planes_are_those_of_a_copy_without_loss(tmp_path, kind):
    planes, copy = both(tmp_path, **KINDS[kind])
    with open_video(planes) as one, open_video(copy) as other:
        assert isinstance(one, PlaneFile)
        shape = len(one), one.height, one.width
        assert shape == (len(other), other.height, other.width)
        assert (one.rate, one.start, one.made_from) == (other.rate, other.start, "of a")
        assert [one.time_of(frame) for frame in range(len(one) + 1)] == pytest.approx(
            [other.time_of(frame) for frame in range(len(other) + 1)], rel=1e-12
        )
        every = [*range(len(one)), 0]
        boxes = [None, Box(0, 0, one.height, one.width), Box(15, 3, 2, 5), Box(16, 2, 1, 1), Box(5, 7, 28, 20)]
        for box in boxes:
            assert same(one.read(every, box), other.read(every, box)), box
            assert same(one.read_yuv(every, box), other.read_yuv(every, box)), box
        for stretch in [(0.0, 0.1), (0.05, 0.2), (0.1, 9.0)] if len(one) > 1 else []:
            seconds = one.start + stretch[0], one.start + stretch[1]
            assert len(Stretch(one, "", seconds)) == len(Stretch(other, "", seconds))
    with open_whole(planes) as one, open_whole(copy) as other:
        for mine, decoded in zip(one, other, strict=True):
            assert np.array_equal(mine.to_ndarray(), decoded.to_ndarray())
            assert mine.pts * mine.time_base == decoded.pts * decoded.time_base


def test_planes_are_those_of_ordinary_scaling(tmp_path):
    """By PyAV alone: limited range, bicubic."""
    planes, _ = both(tmp_path, **KINDS["larger"])
    with av.open(str(tmp_path / "a.mp4")) as container:
        frames = [frame.reformat(64, SIDE, "yuv420p", interpolation="BICUBIC") for frame in container.decode(video=0)]
    with open_whole(planes) as video:
        pairs = zip(video, frames, strict=True)
        assert all(np.array_equal(mine.to_ndarray(), frame.to_ndarray()) for mine, frame in pairs)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A file of 9 frames of 48 x 64 pixels, each of 3 bands."""
    return both(tmp_path_factory.mktemp("stored"), frames=numbered_frames(9, 96, 128))[0]


def test_its_size_is_said_beforehand(stored):
    end = 9 * 8 + len("of a") + 80 + 8 + 8
    assert stored.stat().st_size == planes_bytes(9, 48, 64) + end == 9 * 3 * (16 * 64 * 3 // 2 + 8) + end


def altered(stored, folder, data):
    (path := folder / "c.planes").write_bytes(data)
    return path


def read_all(path):
    with open_video(path) as video:
        return video.read_yuv(range(len(video)))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.99, 1.0])
def test_a_flipped_bit_anywhere_is_an_error(stored, tmp_path, share):
    data = bytearray(stored.read_bytes())
    data[round(share * (len(data) - 1))] ^= 4
    with pytest.raises(VideoError, match=r"c.planes: .*Remove it, and run `lightning-multigrid prepare` again"):
        read_all(altered(stored, tmp_path, data))


def test_a_flipped_bit_is_named_where_it_is_read(stored, tmp_path):
    data = bytearray(stored.read_bytes())
    data[(4 * 3 + 1) * (16 * 64 * 3 // 2 + 8) + 99] ^= 1
    with open_video(altered(stored, tmp_path, data)) as video:
        with pytest.raises(VideoError, match="c.planes: damaged: rows 16 to 31 of frame 4 are not those written"):
            video.read_yuv([3, 4], Box(20, 0, 8, 8))
        assert same(video.read_yuv([4], Box(0, 0, 16, 64)), open_video(stored).read_yuv([4], Box(0, 0, 16, 64)))


def test_rows_of_another_frame_are_an_error(stored, tmp_path):
    data, frame = bytearray(stored.read_bytes()), 3 * (16 * 64 * 3 // 2 + 8)
    data[:frame], data[frame : 2 * frame] = data[frame : 2 * frame], data[:frame]
    with pytest.raises(VideoError, match="c.planes: damaged: rows 0 to 15 of frame 0"):
        read_all(altered(stored, tmp_path, data))


def test_a_file_that_is_cut_while_it_is_open_is_an_error(stored, tmp_path):
    path = altered(stored, tmp_path, stored.read_bytes())
    with open_video(path) as video:
        os.truncate(path, 5 * (16 * 64 * 3 // 2 + 8) + 7)  # in the third band of frame 1
        assert same(video.read_yuv([1, 0], Box(0, 0, 32, 64)), open_video(stored).read_yuv([1, 0], Box(0, 0, 32, 64)))
        for frame, rows in ((1, "32 to 47"), (4, "0 to 15")):
            with pytest.raises(VideoError, match=f"c.planes: damaged: rows {rows} of frame {frame} are not"):
                video.read([0, frame])


@pytest.mark.parametrize("kept", [0, 1, 79, 80, 5000, -1])
def test_a_cut_file_is_an_error(stored, tmp_path, kept):
    with pytest.raises(VideoError, match=r"c.planes: cut short, or not a file of planes. Remove it"):
        open_video(altered(stored, tmp_path, stored.read_bytes()[:kept]))


def test_another_file_in_its_place_is_an_error(stored, tmp_path):
    with pytest.raises(VideoError, match=r"c.planes: cut short, or not a file of planes"):
        open_video(altered(stored, tmp_path, stored.with_suffix(".mp4").read_bytes()))
    with pytest.raises(VideoError, match=r"no.planes: cannot be read \(No such file"):
        open_video(tmp_path / "no.planes")


def with_end(stored, times, *values):
    """The file with another end, whose checksum is right; `values` are those of the head behind its name."""
    end = np.array(times, "<i8").tobytes() + struct.pack("<8s7Q3d", b"LMplane2", *values)
    return stored.read_bytes()[: planes_bytes(9, 48, 64)] + end + xxhash.xxh3_64_digest(end)


HEAD = 0, 9, 48, 64, 2, 1, 30, 30.0, 0.0, 0.0  # text, frames, height, width, matrix, clock, rate, start, last


def test_the_end_of_these_tests_is_that_of_the_file(stored, tmp_path):
    assert same(read_all(altered(stored, tmp_path, with_end(stored, range(9), *HEAD))), read_all(stored))


@pytest.mark.parametrize(
    ("place", "value"),
    [(0, 2**63), (1, 2**62), (1, 0), (2, 0), (2, 47), (2, 2**40), (3, 2**63), (3, 62), (4, 300), (5, 0), (6, 2**32)]
    + [(7, value) for value in (0.0, -1.0, float("nan"), float("inf"))]
    + [(8, value) for value in (-1.0, float("nan"), float("inf"))],
)
def test_a_hostile_end_is_an_error(stored, tmp_path, place, value):
    values = [*HEAD[:place], value, *HEAD[place + 1 :]]
    with pytest.raises(VideoError, match=r"c.planes: damaged: its end does not fit the file. Remove it"):
        open_video(altered(stored, tmp_path, with_end(stored, range(9), *values)))


def test_times_that_do_not_ascend_are_an_error(stored, tmp_path):
    with pytest.raises(VideoError, match=r"c.planes: damaged: its times do not ascend. Remove it"):
        open_video(altered(stored, tmp_path, with_end(stored, [0, 1, 2, 3, 3, 5, 6, 7, 8], *HEAD)))


@given(st.data())
def test_any_end_is_a_file_or_an_error(stored, tmp_path_factory, data):
    values = [data.draw(st.integers(0, 2**64 - 1) | st.just(known)) for known in HEAD[:7]]
    values += [data.draw(st.floats() | st.just(known)) for known in HEAD[7:]]
    times = data.draw(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=9, max_size=9) | st.just([*range(9)]))
    path = altered(stored, tmp_path_factory.mktemp("hostile"), with_end(stored, times, *values))
    moments: list[int] = []
    with suppress(VideoError), open_whole(path) as video:
        moments += [frame.pts for frame in video]
    assert len(moments) in (0, 9)
    assert all(one < other for one, other in pairwise(moments))


def test_planes_of_planes_are_the_same(stored, tmp_path):
    transcode(TranscodeJob(str(stored), str(tmp_path / "c.planes"), Planes(SIDE), made_from="of a"))
    assert (tmp_path / "c.planes").read_bytes() == stored.read_bytes()
