import csv
import math
import re
from collections import Counter

import av
import pytest
from PIL import Image

from lightning_multigrid.decode.video_file import VideoError
from lightning_multigrid.prepare.check_videos import check, check_video
from lightning_multigrid.prepare.prepare_videos import write_report
from lightning_multigrid.sources.builder import ManifestBuilder
from tests.helpers.broken_files import broken_files
from tests.helpers.codings import written
from tests.helpers.rare_files import cases
from tests.helpers.videos import numbered_frames, write_video


def manifest(folder, names, stretches=((0, math.inf),), frame_rate=None):
    builder = ManifestBuilder(folder / "list.csv", frame_rate=frame_rate)
    for name in names:
        for stretch in stretches:
            builder.add(name, where=name, stretch=stretch)
    return builder.build()


def test_broken_videos_are_told_from_good_ones(tmp_path):
    broken = broken_files(tmp_path)
    good = ["a.mp4", "b.avi"]
    for name in good:
        write_video(tmp_path / name, numbered_frames(10))
    found = dict(check(manifest(tmp_path, [*good, *broken, *good]), workers=0))
    assert {path for path, reason in found.items() if reason} == {str(tmp_path / name) for name in broken}
    assert {path for path, reason in found.items() if reason is None} == {str(tmp_path / name) for name in good}


def test_a_video_that_ends_before_its_stretches_start_is_named(tmp_path):
    """An end that is too late is that of the video: 10 frames at 25 per second are 0.4 s."""
    write_video(tmp_path / "a.mp4", numbered_frames(10), rate=25)
    (tmp_path / "frames").mkdir()
    for number in range(10):
        Image.new("RGB", (8, 8)).save(tmp_path / "frames" / f"{number}.png")
    for name, rate in (("a.mp4", None), ("frames", 25)):
        stretches = [(0, 9), (0.3, 9), (0.4, 9), (2, 3)]
        [(_, reason)] = check(manifest(tmp_path, [name], stretches, rate))
        assert reason == "ends at 0.4 s before 2 of its stretches start, the last at 2 s"
        assert list(check(manifest(tmp_path, [name], stretches[:2], rate))) == [(str(tmp_path / name), None)]


def test_folders_of_frames(tmp_path):
    for name in ("good", "broken"):
        (tmp_path / name).mkdir()
        for number in range(3):
            Image.new("RGB", (8, 8)).save(tmp_path / name / f"{number}.png")
    (tmp_path / "broken" / "2.png").write_bytes(b"no image")
    check_video(24.0, (str(tmp_path / "good"), []))
    with pytest.raises(VideoError, match="2.png is no image"):
        check_video(24.0, (str(tmp_path / "broken"), []))


@pytest.mark.parametrize("name", ["mpeg4.avi", "gop_12.flv", "wmv2.wmv"])
def test_a_check_names_a_file_that_is_cut_short(tmp_path, name):
    path = written(tmp_path, name)
    check_video(None, (str(path), []))
    path.write_bytes(path.read_bytes()[: int(0.6 * path.stat().st_size)])
    with pytest.raises(VideoError, match="cut short|damaged"):
        check_video(None, (str(path), []))


def test_report_of_the_command_is_a_table(tmp_path):
    broken = {'a,"b\n.mp4': "there is no such file", "c.mp4": "damaged"}
    write_report(str(tmp_path / "broken.csv"), broken)
    with open(tmp_path / "broken.csv", newline="") as file:
        assert list(csv.reader(file)) == [["path", "reason"], *map(list, broken.items())]


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


def test_a_check_agrees_with_ffmpeg_on_damaged_files(tmp_path):
    agreed = 0
    for case in cases():
        if case.damaged:
            path, reason = case.write(tmp_path), ""
            try:
                check_video(None, (str(path), []))
            except VideoError as error:
                reason = error.reason
            said = re.fullmatch(r"damaged \(frames that FFmpeg conceals: (\d+), packets .* decode: (\d+)\)", reason)
            if reason and not said:
                continue  # it isn't read at all
            told = told_by_ffmpeg(path)
            assert (tuple(map(int, said.groups())) if said else (0, 0)) == (told["corrupt"], told["refused"]), case.name
            agreed += 1
    assert agreed > 20
