"""A prepared folder holds what its source holds, whatever happens on the way."""

import csv
import os
import random
import re
import shutil
import signal
import time
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from lightning_multigrid.clips import ClipSampling, VideoDataset
from lightning_multigrid.decode import BrokenVideosError, VideoReader
from lightning_multigrid.files.durable import OutputError, new_file, remove_partial, temporary_name
from lightning_multigrid.loading import ClipRequest
from lightning_multigrid.pixels import YuvClip
from lightning_multigrid.prepare import Encoding, Planes, bytes_of_planes, check, originals, prepare_videos
from lightning_multigrid.prepare.prepare_videos import names_of, prepare
from lightning_multigrid.prepare.processes import run_tasks
from lightning_multigrid.sources import Charades, VideoList
from tests.helpers.broken_files import broken_files
from tests.helpers.preparing import FAST, check_whole, contents, start, videos
from tests.helpers.sampling import sampled
from tests.helpers.videos import number_of, numbered_frames, write_video

STRANGE = ["a b.mp4", "-i.mp4", "line\nbreak.mp4", '"quoted".mp4', "été/漢.mp4", "%05d.mp4", "x:y.mp4"]
STRANGE.append(os.fsdecode(b"\xff.mp4"))


def listed(folder, text, **arguments):
    (folder / "list.csv").write_text(text)
    return VideoList(folder / "list.csv", **arguments).read()


def first_numbers(manifest):
    """The number in the first frame of each video."""
    found = []
    for row in range(len(manifest)):
        with VideoReader(manifest.path(row)) as video:
            assert len(video) == 20
            found.append(number_of(video.read([0])[0].numpy()))
    return found


def report(folder):
    with open(folder / "report.csv", encoding="utf-8", errors="surrogateescape", newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["path", "reason"]
    return dict(rows[1:])


@pytest.mark.parametrize("workers", sampled([0, 2], 0))
def test_every_video_comes_out_under_its_name(tmp_path, workers):
    source = videos(tmp_path / "in", STRANGE)
    summary = prepare(source, tmp_path / "out", FAST, workers=workers)
    assert (summary.made, summary.there, summary.broken) == (len(STRANGE), 0, {})
    made = VideoList(tmp_path / "out").read()
    assert made.paths() == [str(tmp_path / "out" / "videos" / name) for name in STRANGE]
    assert [made.label(row) for row in range(len(made))] == [0, 1, 0, 1, 0, 1, 0, 1]
    assert made.classes == ("run", "swim")
    assert first_numbers(made) == first_numbers(source)
    assert report(tmp_path / "out") == {}
    assert summary.bytes == sum(os.path.getsize(made.path(row)) for row in range(len(made)))


def test_of_several_labels_each_keeps_its_time(tmp_path):
    (tmp_path / "in").mkdir()
    write_video(tmp_path / "in" / "AB1.mp4", numbered_frames(20))
    (tmp_path / "Charades_v1_classes.txt").write_text("c000 Hold\nc001 Run\n")
    (tmp_path / "train.csv").write_text("id,actions,length\nAB1,c001 0.1 0.3;c000 0.4 0.6,0.7\n")
    source = Charades(tmp_path / "train.csv", tmp_path / "in").read()
    prepare(source, tmp_path / "out", FAST)
    made = VideoList(tmp_path / "out").read()
    assert made.multi_label
    assert made.classes == source.classes
    for span in ((0, 0.2), (0.35, 0.39), (0.5, 1)):
        assert made.labels_between(0, *span) == source.labels_between(0, *span)


def test_a_video_listed_twice_is_made_once(tmp_path):
    videos(tmp_path / "in", ["a.mp4"])
    assert prepare(listed(tmp_path / "in", "a.mp4 0\n./a.mp4 3\n"), tmp_path / "out", FAST).made == 1
    assert [VideoList(tmp_path / "out").read().label(row) for row in range(2)] == [0, 3]


def test_what_is_broken_is_left_out_and_counted(tmp_path):
    source = videos(tmp_path / "in", ["a.mp4", "b.mp4", "c.mp4"])
    broken = broken_files(tmp_path / "in")
    lines = [f'"{name}" {label}' for label, name in enumerate(["a.mp4", *broken, "b.mp4", "c.mp4"])]
    summary = prepare(listed(tmp_path / "in", "\n".join(lines)), tmp_path / "out", FAST, max_bad_fraction=0.9)
    expected = {str(tmp_path / "in" / name) for name in broken}
    assert set(summary.broken) == set(report(tmp_path / "out")) == expected
    assert all(report(tmp_path / "out").values())
    made = VideoList(tmp_path / "out").read()
    assert [made.label(row) for row in range(len(made))] == [0, len(broken) + 1, len(broken) + 2]
    assert first_numbers(made) == first_numbers(source)


def test_a_name_that_the_suffix_makes_too_long_is_broken(tmp_path):
    """A name of a file has at most 255 bytes, on most disks."""
    names = [f"{'n' * (length - 4)}{suffix}" for suffix in (".mkv", ".mp4") for length in (251, 252, 255)]
    source = videos(tmp_path / "in", [*names, "d/a.mp4"])
    for made in (5, 0):
        summary = prepare(source, tmp_path / "out", FAST, max_bad_fraction=0.3)
        assert (summary.made, summary.there) == (made, 5 - made)
        assert summary.broken == report(tmp_path / "out")
        assert set(summary.broken) == {str(tmp_path / "in" / name) for name in names[1:3]}
        for path, reason in summary.broken.items():
            assert reason.startswith(f"{os.path.basename(path)}.mp4 is too long a name for the disk of {tmp_path}")
    assert len(VideoList(tmp_path / "out").read()) == 5


def test_nothing_begins_without_an_encoder(tmp_path, monkeypatch):
    source = videos(tmp_path / "in", ["a.mp4"])
    monkeypatch.setattr("lightning_multigrid.prepare.prepare_videos.ENCODER", "none")
    with pytest.raises(ValueError, match="none"):
        prepare(source, tmp_path / "out", FAST)
    assert not (tmp_path / "out").exists()


def test_too_many_broken_ones_are_an_error_and_the_good_ones_are_there(tmp_path):
    videos(tmp_path / "in", ["a.mp4"])
    source = listed(tmp_path / "in", "a.mp4 0\nb.mp4 1\n")
    with pytest.raises(BrokenVideosError, match=r"1 of the 2 videos can't be used, .*`max_bad_fraction=0.25`.*report"):
        prepare(source, tmp_path / "out", FAST)
    assert len(VideoList(tmp_path / "out").read()) == 1
    with pytest.raises(BrokenVideosError, match="1 of the 1 videos can't be used"):
        prepare(listed(tmp_path / "in", "b.mp4 1\n"), tmp_path / "none", FAST, max_bad_fraction=1)


def times(folder):
    return {path: path.stat().st_mtime_ns for path in (folder / "videos").rglob("*.mp4")}


def test_a_second_run_does_what_is_missing_only(tmp_path):
    source = videos(tmp_path / "in", ["a.mp4", "b.mp4", "c.mp4"])
    prepare(source, tmp_path / "out", FAST)
    before, files = times(tmp_path / "out"), contents(tmp_path / "out")
    assert prepare(source, tmp_path / "out", FAST).there == 3
    assert times(tmp_path / "out") == before
    assert contents(tmp_path / "out") == files
    (tmp_path / "out" / "videos" / "b.mp4").rename(temporary_name(str(tmp_path / "out" / "videos")))
    summary = prepare(source, tmp_path / "out", FAST)
    assert (summary.made, summary.there) == (1, 2)
    assert contents(tmp_path / "out") == files
    os.utime(tmp_path / "in" / "c.mp4", (1, 1))  # another source
    assert prepare(source, tmp_path / "out", FAST).made == 1
    assert prepare(source, tmp_path / "out", Encoding(preset="ultrafast", crf=30)).made == 3  # other settings
    with pytest.raises(ValueError, match=r"`max_bad_fraction` must be in \[0, 1\], got 2"):
        prepare(source, tmp_path / "out", FAST, max_bad_fraction=2)


def test_an_output_within_a_folder_of_videos_is_refused(tmp_path):
    """Its copies would be a class of the next reading."""
    videos(tmp_path / "in", ["run/a.mp4", "swim/b.mp4"])
    with pytest.raises(ValueError, match=r"`output` .*in/prepared lies in .*in, of which each folder is a class"):
        prepare(VideoList(tmp_path / "in").read(), tmp_path / "in" / "prepared", FAST)
    assert not (tmp_path / "in" / "prepared").exists()


def test_sources_under_another_mount_are_not_encoded_again(tmp_path):
    """Whose times of change are those of before, as `mv`, `rsync -a` and `tar` keep them."""
    source = videos(tmp_path / "in", ["run/a.mp4", "b.mp4"])
    (tmp_path / "in" / "list.csv").write_text("run/a.mp4 0\nb.mp4 1\n")
    prepare(source, tmp_path / "out", FAST)
    (tmp_path / "in").rename(tmp_path / "mounted")
    moved = VideoList(tmp_path / "mounted" / "list.csv").read()
    assert (moved.paths() != source.paths(), prepare(moved, tmp_path / "out", FAST).made) == (True, 0)


def test_folders_of_frames_are_made_anew_at_another_rate_or_of_other_images(tmp_path):
    (folder := tmp_path / "in" / "run" / "clip").mkdir(parents=True)

    def made(rate, shade):
        for number in range(3):
            Image.new("RGB", (32, 32), (shade,) * 3).save(folder / f"{number}.png")
            os.utime(folder / f"{number}.png", ns=(0, shade))  # a coarse clock would not tell
        summary = prepare(VideoList(tmp_path / "in", frame_rate=rate).read(), tmp_path / "out", FAST)
        with VideoReader(tmp_path / "out" / "videos" / "run" / "clip.mp4") as video:
            return summary.made, round(video.rate), int(video.read([0]).float().mean())

    assert made(30, 100) == (1, 30, 100)
    assert made(30, 100) == (0, 30, 100)
    assert made(10, 100) == (1, 10, 100)
    assert made(10, 200) == (1, 10, 200)
    (folder / ".DS_Store").touch()  # no frame
    (folder / ".#0.png").symlink_to("nowhere")
    assert made(10, 200) == (0, 10, 200)


def test_nothing_is_written_outside_the_output_folder(tmp_path):
    videos(tmp_path / "in", ["a.mp4", "b.mp4"])
    lines = f"../in/a.mp4 0\n{tmp_path}/in/../../{tmp_path.name}/in/b.mp4 1\n/dev/null 2\n"
    source = listed(tmp_path / "in", lines, root=tmp_path / "elsewhere", allow_outside_root=True)
    (tmp_path / "elsewhere").mkdir()
    before = set(tmp_path.rglob("*"))
    prepare(source, tmp_path / "out", FAST, max_bad_fraction=0.5)
    written = set(tmp_path.rglob("*")) - before - {tmp_path / "out"}
    assert written
    assert all(path.is_relative_to(tmp_path / "out") for path in written)
    made = [path.relative_to(tmp_path / "out" / "videos") for path in tmp_path.rglob("out/videos/**/*.mp4")]
    assert len(made) == 2
    assert {path.parent for path in made} == {Path("outside", *(tmp_path / "in").parts[1:])}


def test_sources_in_the_output_are_refused(tmp_path):
    source = videos(tmp_path / "out" / "videos", ["a.mp4"])
    with pytest.raises(ValueError, match="lies in the output folder .*Give a folder of its own"):
        prepare(source, tmp_path / "out", FAST)


def test_two_with_other_settings_do_not_mix_in_one_folder(tmp_path, monkeypatch):
    """The videos of one, made by the other meanwhile, are in no manifest."""
    source, output = videos(tmp_path / "in", ["a.mp4", "b.mp4"]), tmp_path / "out"

    def disturb(*given):
        for number, done in enumerate(run_tasks(*given)):
            yield done
            if given[1] and not number:
                monkeypatch.undo()
                prepare(source, output, replace(FAST, crf=30))

    monkeypatch.setattr(prepare_videos, "run_tasks", disturb)
    with pytest.raises(ValueError, match="another one, with other settings .* Give each an `output` of its own"):
        prepare(source, output, FAST)


def test_a_folder_of_another_store_is_refused(tmp_path):
    """Its planes would stay there, in no list."""
    source = videos(tmp_path / "in", ["a.mp4"])
    prepare(source, tmp_path / "out", Planes(32))
    with pytest.raises(ValueError, match=r"holds videos/a\.mp4\.planes and other videos of another `store`, .* own"):
        prepare(source, tmp_path / "out", FAST)
    assert prepare(source, tmp_path / "out", Planes(32)).there == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [("metadata.csv", "file_name,label,no\na.mp4,run,x\n"), ("classes.txt", "run\n"), ("report.csv", "day,km\n1,2\n")],
)
def test_nothing_that_a_person_wrote_is_written_over(tmp_path, name, text):
    source = videos(tmp_path / "in", ["a.mp4"])
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text(text)
    with pytest.raises(ValueError, match=rf"would write over .*{name}, which is not its own\. Give another folder"):
        prepare(source, tmp_path / "out", FAST)
    assert (tmp_path / "out" / name).read_text() == text


def test_what_a_killed_command_left_is_its_own(tmp_path):
    """The classes are written before the list."""
    source = videos(tmp_path / "in", ["a.mp4"])
    prepare(source, tmp_path / "out", FAST)
    (tmp_path / "out" / "metadata.csv").unlink()
    (tmp_path / "out" / "classes.txt").write_text("run\n")
    assert prepare(source, tmp_path / "out", FAST).there == 1


def test_a_disk_that_is_full(tmp_path):
    """A limit on the size of files stands in for a full disk: the system refuses the write, with EFBIG."""
    videos(tmp_path / "in", ["small.mp4"])
    write_video(tmp_path / "in" / "large.mp4", numbered_frames(200, 128, 160))
    (tmp_path / "in" / "list.csv").write_text("small.mp4 0\nlarge.mp4 1\n")
    run = start(tmp_path / "in" / "list.csv", tmp_path / "out", limit=20_000)
    _, errors = run.communicate()
    assert run.returncode == 1
    assert "OutputError: [Errno 27] File too large while writing to" in errors
    assert "Free some space, or write to another folder." in errors
    made = {path.name for path in (tmp_path / "out" / "videos").iterdir()}
    assert made <= {"small.mp4"}  # in any order
    assert prepare(VideoList(tmp_path / "in" / "list.csv").read(), tmp_path / "out", FAST).there == len(made)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("workers", "kills"), sampled([(0, 1), (0, 25), (2, 25)], (0, 1)))
def test_a_run_that_is_killed_and_run_again(tmp_path, workers, kills):
    """Now and then the second run is killed, too."""
    source = videos(tmp_path / "in", [f"{place}.mp4" for place in range(12)])
    prepare(source, tmp_path / "whole", FAST)
    expected, rng = contents(tmp_path / "whole"), random.Random(workers)
    for attempt in range(kills):
        output = tmp_path / f"killed {attempt}"
        for _ in range(1 + (rng.random() < 0.3)):
            run = start(source.origin, output, workers=workers)
            run.stdout.readline()
            time.sleep(rng.random() * (4 if workers else 0.5))
            run.send_signal(signal.SIGKILL)
            run.communicate()
            check_whole(output, expected)
        prepare(source, output, FAST)
        assert contents(output) == expected


def write_and_fail(path):
    with new_file(path) as file:
        file.write(b"new")
        raise KeyError


def test_a_file_that_fails_on_the_way_leaves_the_old_one(tmp_path):
    path = tmp_path / "a"
    with new_file(path) as file:
        file.write(b"old")
    with pytest.raises(KeyError):
        write_and_fail(path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]
    refused = pytest.raises(OutputError, match="No such file or directory while writing to .* Check the disk")
    with refused, new_file(tmp_path / "b" / "a"):
        pass


def test_only_what_is_partial_is_removed(tmp_path):
    (tmp_path / "inner").mkdir()
    partial = [temporary_name(str(tmp_path)), temporary_name(str(tmp_path / "inner"))]
    for name in [*partial, str(tmp_path / ".part"), str(tmp_path / "a.part")]:
        Path(name).touch()
    remove_partial(str(tmp_path))
    assert all(map(os.path.exists, partial))  # another process may be writing them
    for name in partial:
        os.utime(name, (time.time() - 90_000,) * 2)
    remove_partial(str(tmp_path))
    assert sorted(path.name for path in tmp_path.rglob("*")) == [".part", "a.part", "inner"]


def test_the_bar_counts_every_video(tmp_path, capsys):
    source = videos(tmp_path / "in", ["a.mp4", "b.mp4"])
    (tmp_path / "in" / "b.mp4").write_bytes(b"no video")
    prepare(source, tmp_path / "out", FAST, max_bad_fraction=0.5)
    assert re.search("look .* 2 of 2 videos .*prepare .* 2 of 2 videos, 1 broken", capsys.readouterr().err, re.DOTALL)


# --- Names: each its own, in every file system, and none out of the folder ---

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=60)
PARTS = TEXT.filter(lambda part: part not in (".", ".."))
PATHS = st.lists(PARTS, min_size=1, max_size=3).map(lambda parts: os.path.join("/data", *parts))


@given(st.lists(PATHS, max_size=6))
def test_names_lie_inside_and_are_different_or_refused(paths):
    try:
        names = names_of([*paths, *paths], "/data", ".mp4")
    except ValueError:  # two would share a name
        return
    assert list(names) == list(dict.fromkeys(paths))
    assert len({name.casefold() for name in names.values()}) == len(names)
    for name in names.values():
        parts = name.split(os.sep)
        assert all(part not in ("", ".", "..") for part in parts)
        assert parts[-1].lower().endswith(".mp4")


@pytest.mark.parametrize("pair", [("a.avi", "a.avi.mp4"), ("b.mp4", "B.mp4"), ("\u00e9.mp4", "e\u0301.mp4")])
def test_names_that_some_file_systems_take_for_one(pair):
    """The file system of a Mac knows no case, and one form of an accent only."""
    with pytest.raises(ValueError, match="would have one name in the output, or on some disks. Rename one"):
        names_of([f"/data/{name}" for name in pair], "/data", ".mp4")


# --- Planes ---


def test_clips_of_planes_are_those_of_copies_without_loss(tmp_path):
    """Of whole videos and of stretches, which lie in other folders; and they need no index."""
    videos(tmp_path / "in", ["a.mp4", "b.avi"])
    lines = ["path,label,start,end", "a.mp4,0,0.1,0.5", "b.avi,1,,", "a.mp4,1,0.3,"]
    source, found = listed(tmp_path / "in", "\n".join(lines)), []
    for name, encoding in (("planes", Planes(32)), ("copies", Encoding(32, crf=0, preset="ultrafast"))):
        prepare(source, tmp_path / name, encoding)
        made = VideoList(tmp_path / name).read()
        assert list(originals(made)) == []
        for pixels in ("yuv", "rgb"):
            data = VideoDataset(made, ClipSampling(frames=4, size=16, stride=2), pixels)
            for row, grid in product(range(len(made)), [(4, 16), (2, 8)]):
                found.append(data.read_clip(ClipRequest(row, *grid, seed=row + 7)))
                assert not found[-1].broken
    for clip, other in zip(found[: len(found) // 2], found[len(found) // 2 :], strict=True):
        assert (clip.labels, clip.flip) == (other.labels, other.flip)
        one, two = (crop.data if isinstance(crop, YuvClip) else crop for crop in (clip.crop, other.crop))
        assert torch.equal(one, two)


def test_what_makes_a_slow_loader_faster_is_the_next_form_of_the_videos(tmp_path):
    videos(tmp_path / "in", ["a.mp4"])
    (tmp_path / "in" / "list.csv").write_text("a.mp4 0")
    folders = [tmp_path / name for name in ("in/list.csv", "copies", "planes")]
    for folder, encoding in zip(folders[1:], (Encoding(32, preset="ultrafast"), Planes(32)), strict=True):
        prepare(VideoList(folders[0]).read(), folder, encoding)
    made = [VideoDataset(VideoList(folder).read(), ClipSampling(4, 16, stride=1)) for folder in folders]
    prepared = "`lightning-multigrid prepare`", "`lightning-multigrid prepare --store planes`", ""
    assert tuple(dataset.ways_out for dataset in made) == prepared


def test_planes_that_were_damaged_are_found_and_made_again(tmp_path):
    source = videos(tmp_path / "in", ["a.mp4", "b.mp4"])
    assert prepare(source, tmp_path / "out", Planes(32)).made == 2
    assert prepare(source, tmp_path / "out", Planes(32)).there == 2
    rows, tables = VideoList(tmp_path / "out").read(), tmp_path / "tables"
    assert check(rows, tables) == {}
    whole = Path(rows.path(0)).read_bytes()
    Path(rows.path(0)).write_bytes(whole[:2000] + b"?" + whole[2001:])
    assert "rows 16 to 31 of frame 0 are not those written" in check(rows, tables)[rows.path(0)]
    Path(rows.path(0)).write_bytes(whole[:-1])
    assert "cut short" in check(rows, tables)[rows.path(0)]
    assert prepare(source, tmp_path / "out", Planes(32)).made == 1
    assert Path(rows.path(0)).read_bytes() == whole


def test_files_of_planes_may_be_listed_as_any_videos(tmp_path):
    prepare(videos(tmp_path / "in", ["run/a.mp4", "swim/b.mp4"]), tmp_path / "out", Planes(32))
    rows = VideoList(tmp_path / "out" / "videos").read()
    assert [os.path.basename(path) for path in rows.paths()] == ["a.mp4.planes", "b.mp4.planes"]
    assert list(originals(rows)) == []
    assert check(rows, tmp_path / "tables") == {}
    assert not (tmp_path / "tables").exists()


def test_planes_are_refused_where_the_disk_has_no_room(tmp_path, monkeypatch):
    source = videos(tmp_path / "in", ["a.mp4", "b.mp4"])
    (tmp_path / "in" / "c.mp4").write_bytes(b"no video")
    needed = 20 * 48 * (64 * 3 // 2) + 20 * 3 * 8  # of a video: planes, and the checks of three bands
    paths = [*source.paths(), str(tmp_path / "in" / "c.mp4")]
    assert bytes_of_planes(paths, Planes()) == 3 * needed
    room = shutil.disk_usage(tmp_path)._replace(free=2 * needed - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: room)
    with pytest.raises(OutputError, match=r"take about 0.0 GB, and the disk of .* has 0.0 GB free. Free some space"):
        prepare(source, tmp_path / "out", Planes())
    assert list((tmp_path / "out").rglob("*.planes")) == []
    assert prepare(source, tmp_path / "out", FAST).made == 2
