"""A stretch of a video is the frames that are shown within it, read as those of the video."""

import itertools
import os
import unicodedata
from bisect import bisect_left
from contextlib import nullcontext
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import av
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from lightning_multigrid.clips import ClipSampling, VideoDataset, opening
from lightning_multigrid.clips.opening import WHOLE, Stretch, open_row
from lightning_multigrid.decode import TableError, TableStore, VideoError, VideoReader, make_table
from lightning_multigrid.pixels import YuvClip
from lightning_multigrid.prepare import Encoding, Planes, index, prepare
from lightning_multigrid.sources.builder import ManifestBuilder
from lightning_multigrid.sources.video_list import VideoList
from tests.helpers.videos import number_of, numbered_frames, write_video

FRAMES = 30
RATE = 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Thirty frames in three seconds, as a video and as a folder of images."""
    folder = tmp_path_factory.mktemp("videos")
    frames = numbered_frames(FRAMES)
    write_video(folder / "a.mp4", frames, rate=RATE)
    (folder / "a").mkdir()
    for number, frame in enumerate(frames):
        Image.fromarray(frame).save(folder / "a" / f"{number:02}.png")
    return folder


def manifest(folder, *stretches, images=False, name="a.mp4"):
    builder = ManifestBuilder(folder / "list.csv", frame_rate=RATE if images else None)
    for stretch in stretches:
        builder.add("a" if images else name, [0], where="row", stretch=stretch)
    return builder.build()


def numbers(frames):
    return [number_of(frame) for frame in frames.numpy()]


@pytest.mark.parametrize("images", [False, True])
@pytest.mark.parametrize(
    ("stretch", "shown"),
    [
        ((0, 0.5), range(5)),
        ((0.54, 1.0), range(5, 10)),  # the frame of 0.5 s is shown until 0.6 s
        ((0.56, 1.0), range(6, 10)),
        ((0.58, 0.62), range(5, 6)),
        ((2.97, 99.0), range(29, 30)),
        ((0, float("inf")), range(30)),
    ],
)
def test_a_stretch_has_the_frames_that_are_shown_within_it(folder, images, stretch, shown):
    with open_row(manifest(folder, stretch, images=images), 0) as video:
        assert len(video) == len(shown)
        assert numbers(video.read(range(len(video)))) == list(shown)
        assert video.time_of(0) == 0
        assert video.time_of(len(video)) == pytest.approx(len(shown) / RATE)
        assert (video.rate, video.height, video.width, bool(video.video.damage)) == (RATE, 48, 64, False)
        assert video.time_in_video(0) == shown[0] / RATE
        with pytest.raises(IndexError):
            video.read([0, len(video)])


@pytest.mark.parametrize("name", ["late.mp4", "late.mkv"])
def test_seconds_count_from_the_files_start(name, tmp_path):
    """As in a player: the sound begins two seconds before the picture."""
    frames, shown_at = numbered_frames(FRAMES), range(2 * RATE, 2 * RATE + FRAMES)
    write_video(tmp_path / name, frames, rate=RATE, pts=shown_at, audio=True)
    rows = manifest(tmp_path, (0, 1), (2.5, 3.5), (0, 9), name=name)
    copies = prepare(rows, tmp_path / "small", Encoding(short_side=48)).folder
    for opened in (rows, VideoList(copies).read()):
        for row, shown in enumerate((range(1), range(5, 15), range(30))):
            with open_row(opened, row) as video:
                assert len(video) == len(shown)
                assert numbers(video.read(range(len(video)))) == list(shown)
                assert video.time_in_video(0) == pytest.approx(2 + shown[0] / RATE, abs=0.03)  # sound comes in pieces


class Shown(SimpleNamespace):
    """A video whose frames are shown from some times on, in s; the last of them is its end."""

    rate, start, height, width = 30.0, 0.0, 4, 6

    def __len__(self):
        return len(self.times) - 1

    def time_of(self, frame):
        return self.times[frame]


@given(st.lists(st.integers(1, 3), min_size=1, max_size=8), st.integers(0, 24), st.integers(1, 24))
def test_frames_of_a_variable_rate(lasting, start, seconds):
    """Moments are seconds; where a frame begins and ends, too, so its middle is one or lies between two."""
    times, end = [0, *itertools.accumulate(lasting)], start + seconds
    if start >= times[-1]:
        with pytest.raises(VideoError, match=rf"ends at {times[-1]} s, before its stretch from {start} to {end}"):
            Stretch(Shown(times=times), "a.mp4", (start, end))
        return
    frames = list(itertools.pairwise(times))
    within = [frame for frame in frames if 2 * start <= sum(frame) < 2 * end]
    expected = within or [frame for frame in frames if start in range(*frame)]
    stretch = Stretch(Shown(times=times), "a.mp4", (start, end))
    assert [stretch.time_in_video(frame) for frame in range(len(stretch))] == [begins for begins, _ in expected]
    assert stretch.time_of(len(stretch)) == expected[-1][1] - expected[0][0]


@given(st.lists(st.integers(1, 3), min_size=1, max_size=8), st.data())
def test_stretches_without_a_gap_share_no_frame_and_leave_none_out(lasting, data):
    times = [0, *itertools.accumulate(lasting)]
    cuts = sorted(data.draw(st.sets(st.sampled_from(times[1:-1] or [0]), max_size=4)) - {0})
    rounded = [0, *(cut + data.draw(st.floats(-0.4, 0.4)) for cut in cuts), times[-1]]  # no frame lasts less than 1
    stretches = [Stretch(Shown(times=times), "a.mp4", pair) for pair in itertools.pairwise(rounded)]
    shown = [stretch.time_in_video(frame) for stretch in stretches for frame in range(len(stretch))]
    assert shown == times[:-1]
    assert [stretch.time_in_video(0) for stretch in stretches] == [0, *cuts]


def test_a_stretch_needs_a_known_rate():
    with pytest.raises(VideoError, match=r"has no known frame rate, which its stretch from 1 to 2 s needs"):
        Stretch(Shown(times=[0, 1], rate=0.0), "a.mp4", (1, 2))


def test_stored_planes_of_a_stretch_are_those_of_the_video(folder):
    rows = manifest(folder, (1.0, 2.0), WHOLE)
    with open_row(rows, 0) as stretch, open_row(rows, 1) as video:
        part, whole = stretch.read_yuv([3, 0]), video.read_yuv([13, 10])
        assert isinstance(part, YuvClip)
        assert torch.equal(part.data, whole.data)
    with open_row(manifest(folder, (1.0, 2.0), images=True), 0) as stretch:
        assert numbers(stretch.read_yuv([3, 0])) == [13, 10]


@pytest.mark.parametrize("name", ["stays.mp4", "stays.mkv"])
def test_the_last_picture_of_a_recording_stays_as_long_as_its_packet_says(tmp_path, name):
    """A screen on which nothing moves after three seconds: players show it for 20 s."""
    moving = write_video(tmp_path / "a.mp4", numbered_frames(FRAMES), rate=RATE, options={"bf": "0"})
    with av.open(str(moving)) as given, av.open(str(tmp_path / name), "w") as made:
        stream = made.add_stream_from_template(given.streams.video[0])
        packets = [packet for packet in given.demux(video=0) if packet.size]
        packets[-1].duration = int(Fraction(171, 10) / packets[-1].time_base)
        for packet in packets:
            packet.stream = stream
            made.mux(packet)
    moving.unlink()
    builder = ManifestBuilder(tmp_path / "list.csv")
    for stretch in ((5.0, 10.0), (2.0, 20.0), (0.0, 1.0), (20.5, 21.0)):
        builder.add(name, where="", stretch=stretch)
    rows = builder.build()
    prepare(rows, tmp_path / "copies", Encoding(preset="ultrafast"))
    prepare(rows, tmp_path / "planes", Planes())
    for opened in (rows, VideoList(tmp_path / "copies").read(), VideoList(tmp_path / "planes").read()):
        for row, shown in enumerate(([29], list(range(20, 30)), list(range(10)))):
            with open_row(opened, row) as video:
                assert numbers(video.read(range(len(video)))) == shown
        with pytest.raises(VideoError, match=r"ends at 20 s, before its stretch"), open_row(opened, 3):
            raise AssertionError


@pytest.mark.parametrize(("listed", "there"), [("NFC", "NFD"), ("NFD", "NFC"), ("NFD", "NFD")])
@pytest.mark.parametrize("existing_only", [False, True])
def test_names_are_found_in_either_form_of_unicode(tmp_path, listed, there, existing_only):
    """A list that was written on Linux, and videos that were unpacked on a Mac."""
    list_of, disk = (unicodedata.normalize(form, "été/vidéo") for form in (listed, there))
    (tmp_path / disk).parent.mkdir()
    write_video(tmp_path / f"{disk}.mp4", numbered_frames(FRAMES), rate=RATE)
    (tmp_path / disk).mkdir()
    Image.fromarray(numbered_frames(1)[0]).save(tmp_path / disk / "1.png")
    for name, rate, length in ((f"{list_of}.mp4", None, FRAMES), (list_of, 5.0, 1)):
        builder = ManifestBuilder(tmp_path / "list.csv", existing_only=existing_only, frame_rate=rate)
        builder.add(name, where="")
        rows = builder.build()
        with open_row(rows, 0) as video:
            assert len(video) == length
        assert rate or index([(rows.root, rows.paths())], tmp_path / "tables").broken == {}


def test_a_video_is_closed_whatever_happens(folder, monkeypatch):
    closed, close = [], VideoReader.close
    monkeypatch.setattr(VideoReader, "close", lambda self: (closed.append(self), close(self))[1])
    rows = manifest(folder, (1.0, 2.0), (5.0, 6.0))
    with open_row(rows, 0):
        assert not closed
    with pytest.raises(VideoError, match=r"ends at 3 s, before its stretch from 5 to 6 s begins"), open_row(rows, 1):
        raise AssertionError
    with pytest.raises(KeyError), open_row(rows, 0):
        raise KeyError
    assert len(closed) == 3


# --- Frame tables ---


@pytest.fixture
def indexed(tmp_path):
    path = write_video(tmp_path / "a.mp4", numbered_frames(FRAMES), rate=RATE, options={"g": "5"})
    assert TableStore(tmp_path / "tables", str(tmp_path)).make(str(path))
    return replace(manifest(tmp_path, WHOLE, (1.0, 2.0)), tables=str(tmp_path / "tables"))


def test_a_video_is_opened_with_its_table(indexed):
    made = make_table(indexed.path(0)).to_bytes()
    for row in (0, 1):
        with open_row(indexed, row) as video:
            assert video.video.table.to_bytes() == made
    for row, shown in ((0, 27), (1, 17)):
        with open_row(indexed, row) as video:
            assert numbers(video.read([bisect_left(range(FRAMES), shown) - 10 * row])) == [shown]
    with open_row(indexed, 0) as video:
        assert video.video.table.entries[27] == 25  # the reader's own would begin with the first packet
    for tables in ("", str(Path(indexed.path(0)).parent / "none")):
        with open_row(replace(indexed, tables=tables), 0) as video:
            assert video.video.slow_because == "has no frame table"


def test_a_table_that_does_not_fit_is_made_again_by_the_next_index(indexed):
    """Of a video whose frames are not those of the table, or are found only in a decode of the whole file."""
    path, rows, store = indexed.path(0), indexed, TableStore(indexed.tables, indexed.root)
    [file], table = Path(rows.tables).rglob("*.table"), store.find(path)
    other, late = table.checksums.copy(), table.entries.copy()
    other[27], late[28] = other[27] ^ 1, table.packets[28]
    for wrong, told in ((replace(table, checksums=other), "changed: frame 27"), (replace(table, entries=late), None)):
        for made in Path(rows.tables).rglob("*.table"):
            made.unlink()
        file.write_bytes(wrong.to_bytes())
        with open_row(rows, 0) as video:
            video.read([3])
        assert store.known([path]).missing == []  # it fits as far as it was read
        with pytest.raises(TableError, match=told) if told else nullcontext(), open_row(rows, 0) as video:
            assert numbers(video.read([28 if told is None else 27])) == [28]
            assert video.video.slow_because == "is not decoded as its frame table says"
        assert store.known([path]).missing == [path]
        assert [index([(rows.root, [path])], rows.tables).made for _ in range(2)] == [1, 0]
        assert store.find(path).to_bytes() == table.to_bytes()


def test_a_clip_of_a_video_whose_table_does_not_fit_is_read_without_it(indexed, tmp_path):
    """Another video of the same name and size, as where two lists begin at different roots."""
    rows, [file] = indexed, Path(indexed.tables).rglob("*.table")
    write_video(tmp_path / "other.mp4", numbered_frames(FRAMES, first=100), rate=RATE, options={"g": "5"})
    table = replace(make_table(tmp_path / "other.mp4"), file_size=os.path.getsize(rows.path(0)))
    file.write_bytes(table.to_bytes())
    dataset = VideoDataset(rows, ClipSampling(4, 16, 2))
    for _ in range(2):
        clip = dataset[0]
        assert [video.reason for video in clip.broken] == ["has no frame table"]
        assert (clip.index, clip.broken[0].used_anyway) == (0, True)
    assert index([(rows.root, [rows.path(0)])], rows.tables).made == 1
    assert dataset[0].broken == ()


def test_a_video_that_is_known_to_be_broken_is_not_opened(indexed, monkeypatch):
    Path(indexed.path(0)).write_bytes(b"no video")
    index([(indexed.root, [indexed.path(0)])], indexed.tables)
    with pytest.raises(VideoError, match="not a video") as opened, open_row(replace(indexed, tables=""), 0):
        pass
    monkeypatch.setattr(opening, "open_video", None)
    with pytest.raises(VideoError, match="not a video") as known, open_row(indexed, 0):
        pass
    assert (known.value.path, known.value.reason) == (opened.value.path, opened.value.reason)
