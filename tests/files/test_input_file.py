"""Files are read at any place, and an error of a read is known."""

import os

import pytest

from lightning_multigrid.decode import VideoError, VideoReader, make_table
from lightning_multigrid.files.input_file import Cursor, InputFile
from tests.helpers.codings import H264
from tests.helpers.videos import number_of, numbered_frames, write_video

CONTENT = bytes(range(256)) * 3000


def test_ranges_are_read(tmp_path):
    (tmp_path / "a").write_bytes(CONTENT)
    file = InputFile(tmp_path / "a")
    ranges = [(0, 10), (700_000, 68_000), (5, 0), (len(CONTENT) - 3, 10), (10**9, 10)]
    assert [file.read(*place) for place in ranges] == [CONTENT[at : at + size] for at, size in ranges]
    cursor = Cursor(file, "video", [])
    assert cursor.read(4) == CONTENT[:4]
    assert cursor.seek(-5, os.SEEK_END) == len(CONTENT) - 5
    assert cursor.read(100) == CONTENT[-5:]
    assert cursor.read(100) == b""
    assert cursor.seek(100) == 100
    assert cursor.seek(-40, os.SEEK_CUR) == cursor.tell() == 60
    assert cursor.read(9999) == CONTENT[60 : 60 + 9999]
    file.close()
    file.close()


@pytest.mark.timeout(20)
def test_what_is_no_ordinary_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(OSError, match="not an ordinary file"):
            InputFile(path)


@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_a_read_that_fails_is_an_error_of_its_own_video(tmp_path, monkeypatch, suffix):
    path, other = (write_video(tmp_path / f"{n}.{suffix}", numbered_frames(30), options=H264) for n in "ab")
    table, read, left = make_table(path), os.pread, [10**9]

    def failing(*args):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(5, "Input/output error")
        return read(*args)

    monkeypatch.setattr(os, "pread", failing)
    for given in (None, table):
        left[0] = 10**9
        VideoReader(path, given).read([3, 29])
        for after in range(10**9 - left[0]):
            left[0] = after
            with pytest.raises(VideoError, match=rf"a\.{suffix}: cannot be read \(Input/output error\)"):
                VideoReader(path, given).read([3, 29])
    monkeypatch.undo()
    with VideoReader(other) as reader:
        assert number_of(reader.read([17])[0].numpy()) == 17


def test_a_file_that_changes_while_it_is_read_is_no_wrong_frame(tmp_path):
    video = write_video(tmp_path / "video.mp4", numbered_frames(30), options=H264)
    with VideoReader(video, make_table(video)) as reader:
        assert number_of(reader.read([3])[0].numpy()) == 3
        other = write_video(tmp_path / "other.mp4", numbered_frames(20, first=100), options=H264)
        video.write_bytes(other.read_bytes())  # the same file on disk, with another content
        with pytest.raises(VideoError, match="changed: frame 5|no video"):
            reader.read([5])
        video.write_bytes(b"")
        with pytest.raises(VideoError, match=r"video\.mp4: "):
            reader.read([5])
