"""What is kept of a video is its table, or why it is broken, for as long as that holds."""

import errno

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
    data, whole = make_kept(path)
    assert (data, whole) == (make_table(path).to_bytes(), True)
    table = read_kept(path, data)
    assert isinstance(table, FrameTable)
    assert len(table) == 5
    assert read_kept(path, b"") is None


def test_of_a_broken_video_the_reason_is_kept(tmp_path, monkeypatch):
    broken = [str(tmp_path / name) for name in broken_files(tmp_path)[:-2]]
    for path in broken:
        with pytest.raises(VideoError) as found:
            make_table(path)
        data, whole = make_kept(path)
        assert not whole
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
        read_kept(path, make_kept(path)[0])
    if not is_kept:
        with pytest.raises(VideoError):
            make_kept(path)
    else:
        assert make_kept(path)[0]
