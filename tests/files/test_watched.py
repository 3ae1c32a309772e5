"""Reads that hang end: a file is given up, others go on."""

from __future__ import annotations

import gc
import math
import os
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path

import pytest

from lightning_multigrid.decode.full_decode import make_table
from lightning_multigrid.decode.reader import VideoReader
from lightning_multigrid.decode.video_file import VideoError
from lightning_multigrid.files import watched
from lightning_multigrid.files.watched import Cursor, HangError, WatchedFile, within
from tests.helpers.codings import H264
from tests.helpers.drives import nothing_is_in_memory
from tests.helpers.videos import number_of, numbered_frames, write_video

CONTENT = bytes(range(256)) * 3000


@pytest.fixture
def path(tmp_path) -> Path:
    path = tmp_path / "content"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture(autouse=True)
def no_read_hangs_yet(monkeypatch):
    """What earlier tests left hanging would shorten the limits of these."""
    monkeypatch.setattr(watched, "_hung", [])


class Hanging:
    """A call that hangs from the n-th time on, until it is released."""

    def __init__(self, monkeypatch, name: str, after: float = 0) -> None:
        self._call, self._after, self.calls = getattr(os, name), after, 0
        self.released = threading.Event()
        monkeypatch.setattr(os, name, self)
        nothing_is_in_memory(monkeypatch)

    def __call__(self, *args):
        self.calls += 1
        if self.calls > self._after:
            self.released.wait()
        return self._call(*args)


def test_ranges_are_read(path):
    file = WatchedFile(str(path), timeout=5)
    assert file.size == len(CONTENT)
    ranges = [(0, 10), (700_000, 68_000), (5, 0), (len(CONTENT) - 3, 10), (10**9, 10)]
    assert [file.read(*place) for place in ranges] == [CONTENT[at : at + size] for at, size in ranges]
    file.close()
    file.close()
    with pytest.raises(ValueError, match="read of a closed file"):
        file.read(0, 1)


def test_a_cursor_reads_on(path):
    cursor = Cursor(WatchedFile(str(path), timeout=5), "video")
    assert cursor.read(4) == CONTENT[:4]
    assert cursor.tell() == 4
    assert cursor.seek(-5, os.SEEK_END) == len(CONTENT) - 5
    assert cursor.read(100) == CONTENT[-5:]
    assert cursor.read(100) == b""
    assert cursor.seek(100) == 100
    assert cursor.seek(-40, os.SEEK_CUR) == 60
    pieces = []
    while piece := cursor.read(9999):
        pieces.append(piece)
    assert b"".join(pieces) == CONTENT[60:]
    assert {len(piece) for piece in pieces[:-1]} == {9999}
    cursor.seek(7)
    assert cursor.read() == CONTENT[7:]


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="only Linux tells what it holds in memory")
def test_what_the_system_holds_in_memory_needs_no_thread(path, monkeypatch):
    ranges = [(5, 20), (len(CONTENT) - 3, 10), (len(CONTENT), 4)]
    expected = [CONTENT[at : at + size] for at, size in ranges]
    file, threads = WatchedFile(str(path), timeout=5), []
    monkeypatch.setattr(watched, "within", lambda timeout, job: (threads.append(timeout), within(timeout, job))[1])
    with path.open("rb") as same:
        try:
            os.preadv(same.fileno(), [bytearray(10)], 0, os.RWF_NOWAIT)
        except OSError as error:
            pytest.skip(f"the file system of temporary files does not tell: {error}")
    assert [file.read(*place) for place in ranges] == expected
    assert not threads
    nothing_is_in_memory(monkeypatch)
    assert [file.read(*place) for place in ranges] == expected
    assert threads == [5] * 3
    file.close()


def test_a_read_that_hangs_is_an_error_and_so_are_all_later_ones(path, monkeypatch):
    file, other = (WatchedFile(str(path), timeout=0.3) for _ in range(2))
    hanging = Hanging(monkeypatch, "pread")
    began = time.perf_counter()
    for _ in range(100):
        with pytest.raises(HangError, match=r"a read did not end within 0\.3 s"):
            file.read(0, 10)
    assert 0.3 <= time.perf_counter() - began < 29  # a hundred that waited would take 30
    monkeypatch.setattr(os, "pread", hanging._call)
    assert other.read(0, 10) == CONTENT[:10]  # by another thread
    hanging.released.set()
    assert other.read(3, 10) == CONTENT[3:13]
    file.close()


def test_a_drive_that_is_gone_costs_about_two_limits_however_many_files_are_tried(path, monkeypatch):
    hanging = Hanging(monkeypatch, "open")
    began = time.perf_counter()
    for others, limit in enumerate((0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, *[0.0078125] * 11)):
        after = f", while {others} before it still hang" if others else ""
        with pytest.raises(HangError, match=rf"^a read did not end within {limit:.3g} s{after}$"):
            WatchedFile(str(path), timeout=0.5)
    assert 0.9 < time.perf_counter() - began < 7  # 17 files would take 8.5 s
    hanging.released.set()
    deadline = time.perf_counter() + 60
    while any(reader.results.empty() for reader in watched._hung) and time.perf_counter() < deadline:
        time.sleep(0.01)
    # The drive answers again, and gets the whole limit again.
    with pytest.raises(HangError, match="^a read did not end within 0.5 s$"):
        within(0.5, lambda: time.sleep(0.8))


def test_a_read_that_fails_keeps_nothing_of_its_caller():
    class Held:
        pass

    def fail() -> weakref.ref:
        held = Held()
        with suppress(FileNotFoundError):
            within(5, lambda: os.stat("/nothing"))
        return weakref.ref(held)

    gc.collect()
    gc.disable()
    try:
        assert fail()() is None
    finally:
        gc.enable()


def test_where_one_file_hangs_the_others_are_read(path, monkeypatch):
    released = threading.Event()
    with pytest.raises(HangError, match="within 0.1 s"):
        within(0.1, released.wait)
    assert WatchedFile(str(path), timeout=5).read(3, 10) == CONTENT[3:13]
    released.set()


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")
def test_a_forked_process_reads(path):
    file = WatchedFile(str(path), timeout=5)
    assert file.read(0, 1) == CONTENT[:1]
    child = os.fork()
    if not child:
        os._exit(0 if file.read(1, 2) == CONTENT[1:3] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def readers() -> int:
    return sum(thread.name == "video reads" for thread in threading.enumerate())


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")
def test_no_thread_is_left_where_a_process_forks(path):
    gc.collect()
    file = WatchedFile(str(path), timeout=5)
    before = readers()
    child = os.fork()
    if not child:
        os._exit(readers())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert readers() < before  # a reader that another test left may go, too
    assert file.read(0, 1) == CONTENT[:1]
    file.close()


def test_threads_end_with_those_they_read_for(path):
    def use() -> None:
        WatchedFile(str(path), timeout=5).read(0, 1)

    before = readers()
    for _ in range(5):
        user = threading.Thread(target=use)
        user.start()
        user.join()
    gc.collect()
    deadline = time.perf_counter() + 60
    while readers() > before and time.perf_counter() < deadline:
        time.sleep(0.01)
    assert readers() <= before


@pytest.fixture
def video(tmp_path) -> Path:
    return write_video(tmp_path / "video.mp4", numbered_frames(30), options=H264)


def read_one_by_one(path: Path) -> None:
    with VideoReader(path, read_timeout=0.2) as reader:
        for index in range(30):
            reader.read([index])


@pytest.mark.parametrize(("call", "share"), [("open", 0), ("pread", 0), ("pread", 0.5), ("pread", 0.99)])
@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_a_video_on_a_drive_that_is_gone_is_a_video_error(tmp_path, monkeypatch, call, share, suffix):
    path = write_video(tmp_path / f"video.{suffix}", numbered_frames(30), options=H264)
    with monkeypatch.context() as patch:
        whole = Hanging(patch, call, after=math.inf)  # only counts: x264 writes other sizes on other machines
        read_one_by_one(path)
    hanging = Hanging(monkeypatch, call, int(share * whole.calls))
    with pytest.raises(VideoError, match=rf"video\.{suffix}: cannot be read: a read did not end within 0\.2 s"):
        read_one_by_one(path)
    monkeypatch.setattr(os, call, hanging._call)
    with VideoReader(path) as reader:
        assert number_of(reader.read([17])[0].numpy()) == 17
    hanging.released.set()


@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_a_read_that_fails_is_a_video_error(tmp_path, monkeypatch, suffix):
    path = write_video(tmp_path / f"video.{suffix}", numbered_frames(30), options=H264)

    def fail(*args):
        raise OSError(5, "Input/output error")

    nothing_is_in_memory(monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", fail)
        with pytest.raises(VideoError, match=rf"video\.{suffix}: cannot be read .*Input/output error"):
            VideoReader(path)
    with VideoReader(path, make_table(path)) as reader:
        monkeypatch.setattr(os, "pread", fail)
        with pytest.raises(VideoError, match=rf"video\.{suffix}: cannot be read .*Input/output error"):
            reader.read([3])


def test_a_file_that_vanishes_while_it_is_read_is_read_to_its_end(video):
    with VideoReader(video) as reader:
        video.unlink()
        assert [number_of(frame) for frame in reader.read([29, 3]).numpy()] == [29, 3]


def test_a_file_that_changes_while_it_is_read_is_no_wrong_frame(tmp_path, video):
    with VideoReader(video, make_table(video)) as reader:
        assert number_of(reader.read([3])[0].numpy()) == 3
        other = write_video(tmp_path / "other.mp4", numbered_frames(20, first=100), options=H264)
        video.write_bytes(other.read_bytes())  # the same file on disk, with another content
        with pytest.raises(VideoError, match="changed: frame 5|no video"):
            reader.read([5])
        video.write_bytes(b"")
        with pytest.raises(VideoError, match=r"video\.mp4: "):
            reader.read([5])
