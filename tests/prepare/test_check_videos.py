import csv

import pytest
from PIL import Image

from lightning_multigrid.prepare.check_videos import CheckJob, check, check_video
from lightning_multigrid.sources.builder import ManifestBuilder
from tests.helpers.broken_files import broken_files
from tests.helpers.videos import numbered_frames, write_video


def manifest(folder, names):
    builder = ManifestBuilder(folder / "list.csv")
    for name in names:
        builder.add(name, where=name)
    return builder.build()


@pytest.mark.parametrize("workers", [0, 2])
def test_broken_videos_are_told_from_good_ones(tmp_path, workers):
    broken = broken_files(tmp_path)
    good = ["a.mp4", "b.avi"]
    for name in good:
        write_video(tmp_path / name, numbered_frames(10))
    found = dict(check(manifest(tmp_path, [*good, *broken, *good]), workers=workers))
    assert {path for path, reason in found.items() if reason} == {str(tmp_path / name) for name in broken}
    assert {path for path, reason in found.items() if reason is None} == {str(tmp_path / name) for name in good}


def test_only_a_full_check_finds_a_fault_between_the_frames_it_looks_at(tmp_path):
    path = write_video(tmp_path / "a.avi", numbered_frames(60), codec="mjpeg", pix_fmt="yuvj420p")
    data = bytearray(path.read_bytes())
    frames = [at for at in range(len(data) - 3) if data[at : at + 3] == b"\xff\xd8\xff"]
    assert len(frames) == 60
    data[frames[30] : frames[31] - 12] = bytes(frames[31] - 12 - frames[30])  # of the 31st frame nothing is left
    path.write_bytes(data)
    assert check_video(CheckJob(str(path), frames=4)) is None
    assert check_video(CheckJob(str(path), frames=None)) is not None


def test_folders_of_frames(tmp_path):
    for name in ("good", "broken"):
        (tmp_path / name).mkdir()
        for number in range(3):
            Image.new("RGB", (8, 8)).save(tmp_path / name / f"{number}.png")
    (tmp_path / "broken" / "2.png").write_bytes(b"no image")
    assert check_video(CheckJob(str(tmp_path / "good"), 4, frame_rate=24)) is None
    assert "2.png is no image" in check_video(CheckJob(str(tmp_path / "broken"), 4, frame_rate=24))


@pytest.mark.parametrize("arguments", [{"workers": -1}, {"timeout": 0}, {"frames": 0}])
def test_arguments_outside_their_range(tmp_path, arguments):
    with pytest.raises(ValueError, match="`workers` must be at least 0, `timeout` positive and `frames` at least 1"):
        list(check(manifest(tmp_path, ["a.mp4"]), **arguments))


@pytest.mark.parametrize(("frames", "expected"), [(1, [0]), (2, [0, 9]), (4, [0, 3, 6, 9]), (30, list(range(10)))])
def test_frames_looked_at_lie_evenly(tmp_path, monkeypatch, frames, expected):
    path = write_video(tmp_path / "a.mp4", numbered_frames(10))
    asked = []

    def read(self, indices, box=None):
        asked.extend(indices)

    monkeypatch.setattr("lightning_multigrid.decode.reader.VideoReader.read", read)
    assert check_video(CheckJob(str(path), frames)) is None
    assert asked == expected


def test_report_of_the_command_is_a_table(tmp_path):
    from lightning_multigrid.prepare.dataset import write_report

    broken = {'a,"b\n.mp4': "there is no such file", "c.mp4": "damaged"}
    write_report(str(tmp_path / "broken.csv"), broken)
    with open(tmp_path / "broken.csv", newline="") as file:
        assert list(csv.reader(file)) == [["path", "reason"], *map(list, broken.items())]
