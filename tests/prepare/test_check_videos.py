import math
import re
from collections import Counter
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from lightning_multigrid.decode import Damage, FullDecode, VideoError, make_table, open_video
from lightning_multigrid.prepare import check, index_in_subprocess, kind_of, look_at, prepare
from lightning_multigrid.sources import VideoList
from lightning_multigrid.sources.builder import ManifestBuilder
from tests.helpers.broken_files import broken_files
from tests.helpers.codings import CODINGS, written
from tests.helpers.preparing import FAST, videos
from tests.helpers.rare_files import cases
from tests.helpers.videos import numbered_frames, write_video


def manifest(folder, names, stretches=((0, math.inf),), frame_rate=None):
    builder = ManifestBuilder(folder / "list.csv", frame_rate=frame_rate)
    for name in names:
        for stretch in stretches:
            builder.add(name, where=name, stretch=stretch)
    return builder.build()


@pytest.fixture
def tables(tmp_path):
    return tmp_path / "tables"


def test_broken_videos_are_told_from_good_ones(tmp_path, tables):
    broken = broken_files(tmp_path)
    good = ["a.mp4", "b.avi"]
    for name in good:
        write_video(tmp_path / name, numbered_frames(10))
    found = check(manifest(tmp_path, [*good, *broken, *good]), tables)
    assert set(found) == {str(tmp_path / name) for name in broken}
    assert found[str(tmp_path / "gone.mp4")] == "cannot be read (No such file or directory)"
    assert found[str(tmp_path / "folder.mp4")] == "cannot be read (not an ordinary file)"


def test_a_second_check_and_a_training_decode_no_video_again(tmp_path, tables, monkeypatch):
    """Neither a good, nor a damaged, nor a broken one; a stretch that is new is told from the table."""
    names = ["good.mp4", "broken.mp4", "damaged.avi"]
    write_video(tmp_path / "good.mp4", numbered_frames(10), rate=25)
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    write_video(tmp_path / "damaged.avi", numbered_frames(10))
    rows = manifest(tmp_path, names)
    damage = property(lambda self: Damage(int("damaged" in self.file.path)), lambda self, found: None)
    monkeypatch.setattr(FullDecode, "damage", damage)
    found = check(rows, tables)
    assert list(found) == [str(tmp_path / name) for name in names[1:]]
    assert re.match("not a video", found[str(tmp_path / "broken.mp4")])
    assert found[str(tmp_path / "damaged.avi")].startswith("damaged (frames that FFmpeg conceals: 1")
    monkeypatch.setattr(FullDecode, "__iter__", None)
    monkeypatch.setattr(FullDecode, "__init__", None)
    assert check(rows, tables) == found
    late = "ends at 0.4 s before 1 of its stretches start, the last at 1 s"
    assert check(manifest(tmp_path, names[:1], [(1, 2)]), tables) == {str(tmp_path / "good.mp4"): late}
    assert index_in_subprocess([rows], tables) == ""


def test_a_video_that_ends_before_its_stretches_start_is_named(tmp_path, tables):
    """An end that is too late is that of the video: 10 frames at 25 per second are 0.4 s."""
    write_video(tmp_path / "a.mp4", numbered_frames(10), rate=25)
    (tmp_path / "frames").mkdir()
    for number in range(10):
        Image.new("RGB", (8, 8)).save(tmp_path / "frames" / f"{number}.png")
    late = "ends at 0.4 s before 2 of its stretches start, the last at 2 s"
    for name, rate in (("a.mp4", None), ("frames", 25)):
        stretches = [(0, 9), (0.3, 9), (0.4, 9), (2, 3)]
        assert check(manifest(tmp_path, [name], stretches, rate), tables) == {str(tmp_path / name): late}
        assert check(manifest(tmp_path, [name], stretches[:2], rate), tables) == {}
    looks, broken = look_at(manifest(tmp_path, ["a.mp4"], stretches))
    assert len(looks) == 2
    assert ["ends at 0.4 s before its stretch from" in one for one in broken] == [True, True]


def test_folders_of_frames(tmp_path, tables):
    for name in ("good", "broken"):
        (tmp_path / name).mkdir()
        for number in range(3):
            Image.new("RGB", (8, 8)).save(tmp_path / name / f"{number}.png")
    (tmp_path / "broken" / "2.png").write_bytes(b"no image")
    found = check(manifest(tmp_path, ["good", "broken"], frame_rate=24.0), tables)
    assert list(found) == [str(tmp_path / "broken")]
    assert "2.png is not an image" in found[str(tmp_path / "broken")]
    assert not (tmp_path / "tables").exists()


def test_prepared_videos_are_decoded_each_time(tmp_path, tables):
    """Their own tables are in them, of the day when they were made."""
    prepare(videos(tmp_path / "in", ["a.mp4", "b.mp4"]), tmp_path / "out", FAST)
    rows = VideoList(tmp_path / "out").read()
    assert check(rows, tables) == {}
    with open(rows.path(1), "r+b") as file:
        file.seek(1000)
        file.write(bytes(2000))
    assert list(check(rows, tables)) == [rows.path(1)]
    assert not (tmp_path / "tables").exists()


def test_a_prepared_video_in_which_any_bit_has_flipped_is_named_if_a_frame_has_changed(tmp_path, tables):
    """FFmpeg takes most for good, and a training would meet them."""
    prepare(videos(tmp_path / "in", ["a.mp4"]), tmp_path / "out", FAST)
    rows = VideoList(tmp_path / "out").read()
    path, told = Path(rows.path(0)), "changed since `prepare` made it. Remove it, and run `prepare`"
    whole, table = path.read_bytes(), make_table(path)
    start, end = (int(place) for place in (table.positions.min(), (table.positions + table.sizes).max()))
    silent = 0
    for place in range(start + 100, end, (end - start) // 12):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        try:
            changed = make_table(path)
            same = not changed.damage and np.array_equal(changed.checksums, table.checksums)
        except VideoError:
            same = False
        found = check(rows, tables).get(str(path))
        assert (found is None) == same
        silent += found == told
    assert silent
    path.write_bytes(whole)
    assert check(rows, tables) == {}


@pytest.mark.parametrize("name", ["mpeg4.avi", "gop_12.flv", "wmv2.wmv"])
def test_a_check_names_a_file_that_is_cut_short(tmp_path, tables, name):
    path = written(tmp_path, name)
    assert check(manifest(tmp_path, [path.name]), tables) == {}
    with av.open(str(path)) as container:  # within a packet: an encoder's threads change its bytes from run to run
        packets = [packet for packet in container.demux(video=0) if packet.size]
        cut = packets[int(0.6 * len(packets))]
        end = cut.pos + cut.size // 2
    path.write_bytes(path.read_bytes()[:end])
    assert re.match("cut short|damaged", check(manifest(tmp_path, [path.name]), tables)[str(path)])


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("a.avi", {"codec": "mpeg4", "options": {"g": "12"}}, r"its header counts 60 frames, it ends after [23]\d"),
        ("a.flv", {"codec": "flv1", "options": {"g": "1"}}, r"it has no frame for 0\.[5-9] s from 0\.[3-9] s on"),
        ("a.ts", {"options": {"g": "1"}}, r"it has no frame for 0\.[5-9] s from 0\.[3-9] s on"),
        ("a.gif", {"codec": "gif", "pix_fmt": "rgb8"}, r"its last frame has \d+ bytes, the others have about \d+"),
    ],
)
def test_a_file_whose_middle_is_missing_is_named_where_its_container_tells(tmp_path, tables, name, options, told):
    """FFmpeg reads on as if nothing had been there; whether it conceals something is told by the damage."""
    path = write_video(tmp_path / name, numbered_frames(60), **options)
    rows = manifest(tmp_path, [name])
    assert check(rows, tables) == {}
    data = path.read_bytes()
    path.write_bytes(data[: int(0.3 * len(data))] + data[int(0.65 * len(data)) :])
    table = make_table(path)
    assert re.fullmatch(told, table.lacks)
    fault = str(table.damage) if table.damage else f"seems to be cut: {table.lacks}"
    assert check(rows, tables) == {str(path): fault}


@pytest.mark.parametrize(
    ("name", "options", "kept", "told"),
    [
        ("a.avi", {"codec": "mjpeg", "pix_fmt": "yuvj420p"}, 0.8, r"its header counts 60 frames, it ends after [45]\d"),
        ("a.gif", {"codec": "gif", "pix_fmt": "rgb8"}, -1, "it ends without the mark of an end"),
        ("a.flv", {"codec": "flv1"}, 0.8, "its last tag is not all there"),
        ("a.flv", {"codec": "flv1"}, -2, "its last tag is not all there"),
    ],
)
def test_a_file_that_is_cut_is_named(tmp_path, tables, name, options, kept, told):
    path = write_video(tmp_path / name, numbered_frames(60), **options)
    data = path.read_bytes()
    path.write_bytes(data[: kept if kept < 0 else int(kept * len(data))])
    assert re.search(told + "|cut short|damaged", check(manifest(tmp_path, [name]), tables)[str(path)])


def test_a_video_that_pauses_lacks_nothing(tmp_path, tables):
    """Where its container shows that on purpose: AVI has places without a frame, mp4 an index."""
    pts = [number + (200 if number > 30 else 0) for number in range(60)]
    for name, codec in (("a.avi", "mpeg4"), ("b.mp4", "libx264")):
        write_video(tmp_path / name, numbered_frames(60), codec=codec, pts=pts)
    assert check(manifest(tmp_path, ["a.avi", "b.mp4"]), tables) == {}


def test_no_whole_file_lacks_anything(tmp_path, tables):
    names = [written(tmp_path, name).name for name in CODINGS]
    assert check(manifest(tmp_path, names), tables) == {}


@pytest.mark.parametrize("name", ["a.webm", "a.mkv", "a.mp4", "a.ts"])
def test_frames_and_rates_are_counted_where_a_header_states_those_of_its_clock(tmp_path, name):
    """As browsers record: 90 frames in three seconds, by a clock of milliseconds."""
    pts = [33 * frame for frame in range(90)]
    codec = "libvpx-vp9" if name == "a.webm" else "libx264"
    path = write_video(tmp_path / name, numbered_frames(90, 32, 32), codec=codec, rate=1000, pts=pts)
    rows = manifest(tmp_path, [name])
    [look], _ = look_at(rows)
    assert (look.frames, look.rate) == (90, pytest.approx(1000 / 33, rel=0.02))
    [short], _ = look_at(manifest(tmp_path, [name], [(1.0, 2.0)]))
    assert short.frames in (30, 31)
    with open_video(path) as video:
        assert (len(video), video.rate) == (90, pytest.approx(1000 / 33))


def test_codec_and_size_are_read_off_a_header(tmp_path):
    video = write_video(tmp_path / "a.avi", numbered_frames(3, 64, 96), codec="mpeg4")
    (tmp_path / "b.mp4").write_bytes(b"no video")
    paths = video, tmp_path / "b.mp4", tmp_path, tmp_path / "missing.mp4"
    assert [kind_of(str(path)) for path in paths] == ["mpeg4 96 x 64", "", "", ""]


def told_by_ffmpeg(path):
    """By PyAV alone: how many frames FFmpeg marks as corrupt, and how many packets it refuses."""
    told = Counter()
    with av.open(f"file:{path}") as container:
        container.streams.video[0].codec_context.thread_count = 1
        packets = container.demux(video=0)
        while True:
            try:
                packet = next(packets)
                if packet.size or packet.dts is None:  # an empty one would end decoding
                    told["corrupt"] += sum(frame.is_corrupt for frame in packet.decode())
            except StopIteration:
                return told
            except av.FFmpegError:
                told["refused"] += 1


def test_a_check_agrees_with_ffmpeg_on_damaged_files(tmp_path, tables):
    agreed = 0
    for case in cases():
        if case.damaged:
            path = case.write(tmp_path)
            reason = check(manifest(tmp_path, [path.name]), tables).get(str(path), "")
            said = re.fullmatch(r"damaged \(frames that FFmpeg conceals: (\d+), packets .* decode: (\d+)\)", reason)
            if reason and not said:
                continue  # it isn't read at all
            told = told_by_ffmpeg(path)
            assert (tuple(map(int, said.groups())) if said else (0, 0)) == (told["corrupt"], told["refused"]), case.name
            agreed += 1
    assert agreed > 20
