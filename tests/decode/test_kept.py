"""What is kept of a video is its table, or why it is broken, for as long as that holds."""

import errno
import os

import av
import pytest

from lightning_multigrid.decode import kept
from lightning_multigrid.decode.frame_table import FrameTable
from lightning_multigrid.decode.full_decode import make_table
from lightning_multigrid.decode.kept import make_kept, read_kept
from lightning_multigrid.decode.video_file import VideoError
from tests.helpers.broken_files import broken_files
from tests.helpers.videos import numbered_frames, write_video


def test_of_a_video_its_table_is_kept(tmp_path):
    path = str(write_video(tmp_path / "a.mp4", numbered_frames(5)))
    assert make_kept(path) == make_table(path).to_bytes()
    table = read_kept(path, make_kept(path))
    assert isinstance(table, FrameTable)
    assert len(table) == 5
    assert read_kept(path, b"") is None


def test_of_a_broken_video_the_reason_is_kept(tmp_path, monkeypatch):
    broken = [str(tmp_path / name) for name in broken_files(tmp_path)[:-2]]
    for path in broken:
        with pytest.raises(VideoError) as found:
            make_table(path)
        data = make_kept(path)
        with pytest.raises(VideoError) as known:
            read_kept(path, data)
        assert (known.value.path, known.value.reason) == (path, found.value.reason)
    monkeypatch.setattr(kept, "_BY", "another version")
    assert read_kept(path, data) is None
    for damaged in (data[:-1], data.replace(b"reason", b"treason"), data[:10]):
        with pytest.raises(ValueError, match="they are no frame table, or a damaged one"):
            read_kept(path, damaged)


@pytest.mark.parametrize(
    ("cause", "is_kept"),
    [
        (OSError(errno.EIO, "Input/output error"), False),
        (av.error.MemoryError(errno.ENOMEM, "Cannot allocate memory"), False),
        (av.error.InvalidDataError(errno.EIO, "Invalid data"), True),
        (av.error.FileNotFoundError(errno.ENOENT, "No such file"), True),  # of FFmpeg, which opens no file
        (None, True),
    ],
)
def test_what_may_be_no_fault_of_a_file_is_not_kept(monkeypatch, cause, is_kept, tmp_path):
    def fail(path):
        raise VideoError(path, "cannot be read") from cause

    monkeypatch.setattr(kept, "make_table", fail)
    path = str(tmp_path / "a.mp4")
    (tmp_path / "a.mp4").touch()
    with pytest.raises(VideoError, match=r"a\.mp4: cannot be read"):
        read_kept(path, make_kept(path))
    if not is_kept:
        with pytest.raises(VideoError):
            make_kept(path)
    else:
        assert make_kept(path)


def test_a_repaired_file_is_looked_at_again_though_its_ends_are_the_same(tmp_path):
    path = write_video(tmp_path / "a.mp4", numbered_frames(300, 96, 128), options={"crf": "1"})
    whole = path.read_bytes()
    middle = len(whole) // 2
    path.write_bytes(whole[:middle] + bytes(4096) + whole[middle + 4096 :])
    damaged = make_kept(str(path))
    assert read_kept(str(path), damaged).damage
    path.write_bytes(whole)
    os.utime(path, ns=(0, 1))
    assert read_kept(str(path), damaged) is None
    path.write_bytes(b"no video")
    broken = make_kept(str(path))
    with pytest.raises(VideoError, match="no video"):
        read_kept(str(path), broken)
    os.utime(path, ns=(0, 2))
    assert read_kept(str(path), broken) is None
