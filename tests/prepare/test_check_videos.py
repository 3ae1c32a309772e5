import csv
import re
from collections import Counter

import av
import pytest
from PIL import Image

from lightning_multigrid.prepare.check_videos import CheckJob, check, check_video
from lightning_multigrid.sources.builder import ManifestBuilder
from tests.helpers.broken_files import broken_files
from tests.helpers.rare_files import cases, sample
from tests.helpers.videos import numbered_frames, write_video


def manifest(folder, names):
    builder = ManifestBuilder(folder / "list.csv")
    for name in names:
        builder.add(name, where=name)
    return builder.build()


def test_broken_videos_are_told_from_good_ones(tmp_path):
    broken = broken_files(tmp_path)
    good = ["a.mp4", "b.avi"]
    for name in good:
        write_video(tmp_path / name, numbered_frames(10))
    found = dict(check(manifest(tmp_path, [*good, *broken, *good]), workers=0))
    assert {path for path, found in found.items() if found.reason} == {str(tmp_path / name) for name in broken}
    assert {path for path, found in found.items() if found.reason is None} == {str(tmp_path / name) for name in good}


def test_folders_of_frames(tmp_path):
    for name in ("good", "broken"):
        (tmp_path / name).mkdir()
        for number in range(3):
            Image.new("RGB", (8, 8)).save(tmp_path / name / f"{number}.png")
    (tmp_path / "broken" / "2.png").write_bytes(b"no image")
    assert check_video(CheckJob(str(tmp_path / "good"), frame_rate=24)).reason is None
    assert "2.png is no image" in check_video(CheckJob(str(tmp_path / "broken"), frame_rate=24)).reason


@pytest.mark.parametrize("kept", [[(0, 0.6)], [(0, 0.45), (0.55, 1)]], ids=["end", "middle"])
@pytest.mark.parametrize("name", ["mpeg4-gop.avi", "h264-gop.flv", "flv1-gop.flv", "wmv2-gop.wmv"])
def test_a_check_names_a_file_of_which_bytes_are_lost(tmp_path, name, kept):
    (case,) = (case for case in cases() if case.name == name)
    path = case.write(tmp_path)
    data = path.read_bytes()
    assert check_video(CheckJob(str(path))).reason is None
    path.write_bytes(b"".join(data[int(first * len(data)) : int(last * len(data))] for first, last in kept))
    assert re.search("cut short|damaged", check_video(CheckJob(str(path))).reason)


@pytest.mark.parametrize("arguments", [{"workers": -1}, {"timeout": 0}])
def test_arguments_outside_their_range(tmp_path, arguments):
    with pytest.raises(ValueError, match="`workers` must be at least 0, and `timeout` positive"):
        list(check(manifest(tmp_path, ["a.mp4"]), **arguments))


def test_what_is_odd_and_not_broken_is_noted(tmp_path):
    path = str(write_video(tmp_path / "a.mp4", numbered_frames(12), options={"x264-params": "sar=2/1"}))
    finding = check_video(CheckJob(path))
    assert finding.reason is None
    [note] = finding.notes
    assert "not square" in note


def test_report_of_the_command_is_a_table(tmp_path):
    from lightning_multigrid.prepare.output import write_report

    broken = {'a,"b\n.mp4': "there is no such file", "c.mp4": "damaged"}
    write_report(str(tmp_path / "broken.csv"), broken)
    with open(tmp_path / "broken.csv", newline="") as file:
        assert list(csv.reader(file)) == [["path", "reason"], *map(list, broken.items())]


DAMAGED = (
    r"damaged(?: from frame (\d+) to frame (\d+))? \(frames that FFmpeg conceals: (\d+), "
    r"packets that it can't decode: (\d+)\)"
)


def told_by_ffmpeg(path):
    """By PyAV alone: how many frames FFmpeg gives and marks as corrupt, and how many packets it refuses."""
    told = Counter()
    try:
        with av.open(f"file:{path}") as container:
            container.streams.video[0].codec_context.thread_count = 1
            for packet in container.demux(video=0):
                if not packet.size and packet.dts is not None:
                    continue  # would end decoding
                try:
                    frames = packet.decode()
                except av.FFmpegError:
                    told["refused"] += 1
                    continue
                told["frames"] += len(frames)
                told["corrupt"] += sum(frame.is_corrupt for frame in frames)
    except (av.FFmpegError, IndexError, AttributeError):
        told["refused"] += 1
    return told


def disagreement(case, path):
    """What a check and FFmpeg say of a file, if that differs."""
    reason, told = check_video(CheckJob(str(path))).reason, told_by_ffmpeg(path)
    said = re.fullmatch(DAMAGED, reason or "")
    if reason is None:
        agrees = told["frames"] and not told["refused"] and not told["corrupt"]
    elif said:
        first, last, concealed, refused = (int(number or 0) for number in said.groups())
        agrees = (concealed, refused) == (told["corrupt"], told["refused"]) and first <= last
    else:  # the file isn't read at all
        agrees = case.damaged or told["refused"] or case.name in REFUSED
    return None if agrees else f"{case.name}: {reason}, {dict(told)}"


REFUSED = {"av1-joined.ivf", "av1-joined_other_size.ivf"}
"""Whole files that the reader refuses, as `tests/decode/test_matrix.py` says."""


def disagreements(chosen, folder):
    for case in chosen:
        path = case.write(folder)
        if path is not None:
            yield disagreement(case, path)
            path.unlink()


def test_a_check_agrees_with_ffmpeg_on_a_sample_of_the_matrix(tmp_path):
    found = list(disagreements(sample([case for case in cases() if case.damaged], 24), tmp_path))
    assert len(found) > 20
    assert not list(filter(None, found))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_check_agrees_with_ffmpeg_on_the_whole_matrix(tmp_path):
    found = list(disagreements(cases(), tmp_path))
    assert len(found) > 1000
    assert not list(filter(None, found))
