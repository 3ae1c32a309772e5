"""A store of frame tables: a video's is found by its path below the root and its size, and must fit it."""

import errno
import multiprocessing
import os
import pickle
import shutil
import time
from pathlib import Path
from unittest import mock

import av
import pytest

from lightning_multigrid.decode import TableStore, VideoError, make_table, table_store
from lightning_multigrid.files import InputFile, OutputError
from tests.helpers.broken_files import broken_files
from tests.helpers.videos import numbered_frames, write_video

NAMES = ["a.mp4", "sub/übung-视频.mp4", os.fsdecode(b"\xff.mp4"), "new\nline.mp4"]
DAY = 86_400


@pytest.fixture
def root(tmp_path):
    for number, name in enumerate(NAMES):
        (path := tmp_path / "videos" / name).parent.mkdir(parents=True, exist_ok=True)
        write_video(tmp_path / "made.mp4", numbered_frames(5 + number, 32, 32))
        (tmp_path / "made.mp4").rename(path)
    return tmp_path / "videos"


@pytest.fixture
def videos(root):
    return [str(root / name) for name in NAMES]


@pytest.fixture
def store(tmp_path, root, videos):
    store = TableStore(tmp_path / "cache" / "tables", str(root))
    assert [store.make(path) for path in (*videos, *videos)] == [True] * 4 + [False] * 4
    return store


def lengths(store, paths):
    return [len(table) if (table := store.find(path)) is not None else None for path in paths]


def in_mpeg4(path):
    return str(write_video(path, numbered_frames(5, 32, 32), codec="mpeg4"))


def test_an_empty_store(tmp_path, videos):
    store = TableStore(tmp_path / "none")
    assert store.known([]).missing == []
    assert store.known(videos).missing == videos
    assert lengths(store, videos) == [None] * 4
    assert not (tmp_path / "none").exists()


def test_what_is_made_is_found_and_nothing_of_a_video_is_read_for_that(store, videos, monkeypatch):
    monkeypatch.setattr(InputFile, "__init__", None)
    for opened in (store, TableStore(store.folder, store.root), pickle.loads(pickle.dumps(store))):
        assert lengths(opened, videos) == [5, 6, 7, 8]
    known = store.known([*videos, f"{store.root}/none.mp4", *videos])
    assert (known.there, known.missing, known.broken) == (4, [f"{store.root}/none.mp4"], {})


def test_it_is_that_of_a_decode(store, videos):
    assert [store.find(path).to_bytes() for path in videos] == [make_table(path).to_bytes() for path in videos]


@pytest.mark.parametrize("codec", ["h264", "mpeg4"])
def test_videos_that_are_copied_or_mounted_elsewhere_keep_their_tables(store, root, tmp_path, codec):
    """Whatever their times of change are then."""
    if codec == "mpeg4":
        store.make(in_mpeg4(root / "b.avi"))
    shutil.copytree(root, tmp_path / "node", copy_function=shutil.copyfile)
    paths = [str(path) for path in (tmp_path / "node").rglob("*.*")]
    assert TableStore(store.folder, str(tmp_path / "node")).known(paths).missing == []


def test_a_video_of_another_size_has_no_table(store, videos):
    with open(videos[0], "ab") as file:
        file.write(b"\0")
    assert lengths(store, videos) == [None, 6, 7, 8]
    assert store.known(videos).missing == videos[:1]


def test_files_that_cannot_be_read_have_no_table(store, tmp_path):
    os.mkfifo(tmp_path / "pipe.mp4")
    paths = [str(tmp_path), str(tmp_path / "pipe.mp4"), str(tmp_path / "none.mp4"), "nul\0.mp4"]
    assert lengths(store, paths) == [None] * 4
    assert store.known(paths).missing == paths
    with pytest.raises(VideoError, match="cannot be read .No such file or directory"):
        store.make(paths[2])


def test_a_table_that_does_not_fit_is_made_again_once_and_stays_for_the_other_video(store, videos, root, tmp_path):
    """Two datasets with a video of the same name and size."""
    other = TableStore(store.folder, str(tmp_path / "other"))
    shutil.copytree(root, other.root)
    path = os.path.join(other.root, NAMES[0])
    assert lengths(other, [path]) == [5]
    other.reject(path)
    for _ in range(2):
        assert (other.known([path]).missing, lengths(other, [path])) == ([path], [None])
    assert other.make(path)
    assert not other.make(path)
    assert lengths(other, [path]) == lengths(store, videos[:1]) == [5]
    assert len(list(Path(store.folder).rglob("*.table"))) == 5
    os.utime(path, (9, 9))  # another file may be there
    assert lengths(other, [path]) == [5]


@pytest.mark.parametrize("damage", [lambda data: data.replace(b"checksums", b"checkzums"), lambda data: data[:-1]])
def test_a_damaged_table_is_made_again(store, videos, damage):
    table = store._files(videos[0])[1]
    Path(table).write_bytes(damage(Path(table).read_bytes()))
    assert lengths(store, videos) == [None, 6, 7, 8]
    assert store.known(videos).missing == videos[:1]
    assert store.make(videos[0])
    assert lengths(store, videos) == [5, 6, 7, 8]


def test_each_ffmpeg_has_its_own_tables_where_its_pixels_may_differ(store, videos, root, monkeypatch):
    """By turns, none is made twice."""
    paths = [videos[0], in_mpeg4(root / "b.avi")]
    assert [store.make(path) for path in paths] == [False, True]
    for turn in range(2):
        with monkeypatch.context() as other:
            other.setattr(table_store, "MADE_BY", "libavcodec 1")
            assert store.known(paths).missing == ([] if turn else paths[1:])
            assert [store.make(path) for path in paths] == [False, not turn]
        assert store.known(paths).missing == []


# --- Broken and damaged videos ---


def test_of_a_broken_video_the_reason_is_kept(tmp_path, monkeypatch):
    broken = [str(tmp_path / name) for name in broken_files(tmp_path)[:-2]]
    store = TableStore(tmp_path / "tables")
    for path in broken:
        with pytest.raises(VideoError) as found:
            make_table(path)
        for call in (store.make, store.find, store.make):
            with pytest.raises(VideoError) as known:
                call(path)
            assert (known.value.path, known.value.reason) == (path, found.value.reason)
    assert store.known(broken).broken.keys() == set(broken)
    monkeypatch.setattr(table_store, "_BY", "another version")
    assert store.known(broken).missing == broken


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: data.replace(b"video", b"radio"), lambda data: data[:10]]
)
def test_a_damaged_reason_is_found_out_again(tmp_path, damage):
    (path := tmp_path / "a.mp4").write_bytes(b"no video")
    store = TableStore(tmp_path / "tables")
    with pytest.raises(VideoError, match="not a video"):
        store.make(str(path))
    [reason] = Path(store.folder).rglob("*.table")
    reason.write_bytes(damage(reason.read_bytes()))
    assert store.find(str(path)) is None
    assert store.known([str(path)]).missing == [str(path)]
    with pytest.raises(VideoError, match="not a video"):
        store.make(str(path))
    assert store.known([str(path)]).broken.keys() == {str(path)}


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

    monkeypatch.setattr(table_store, "make_table", fail)
    (tmp_path / "a.mp4").touch()
    store, path = TableStore(tmp_path / "tables"), str(tmp_path / "a.mp4")
    with pytest.raises(VideoError, match=r"a\.mp4: cannot be read"):
        store.make(path)
    assert bool(store.known([path]).broken) == is_kept


def test_a_repaired_video_is_decoded_again_though_its_name_and_size_are_the_same(tmp_path):
    path = write_video(tmp_path / "damaged.mp4", numbered_frames(300, 96, 128), options={"crf": "1"})
    whole, store = path.read_bytes(), TableStore(tmp_path / "tables", str(tmp_path))
    middle = len(whole) // 2
    path.write_bytes(whole[:middle] + bytes(4096) + whole[middle + 4096 :])
    assert store.make(str(path))
    assert store.find(str(path)).damage
    path.write_bytes(whole)
    os.utime(path, ns=(0, 1))
    assert store.known([str(path)]).missing == [str(path)]
    assert store.make(str(path))
    assert not store.find(str(path)).damage
    path.write_bytes(b"no video")
    with pytest.raises(VideoError, match="not a video"):
        store.make(str(path))
    os.utime(path, ns=(0, -3 * 10**9))  # before 1970
    assert store.known([str(path)]).missing == [str(path)]


def test_a_video_that_changes_while_it_is_decoded_gets_no_table(videos, store, monkeypatch):
    def changed(path):
        table = make_table(path)
        write_video(path, numbered_frames(20))
        return table

    os.truncate(videos[0], os.path.getsize(videos[0]) - 1)
    write_video(videos[0], numbered_frames(6))
    monkeypatch.setattr(table_store, "make_table", changed)
    with pytest.raises(VideoError, match="changed while it was decoded. Try it again"):
        store.make(videos[0])
    assert store.known(videos[:1]).missing == videos[:1]


def test_a_table_that_may_not_be_read_is_made_again(store, videos, monkeypatch):
    def refuse(file):
        if os.path.getsize(file):
            raise PermissionError(errno.EACCES, "Permission denied")
        return b""

    with monkeypatch.context() as refused:
        refused.setattr(Path, "read_bytes", refuse)
        assert lengths(store, videos[:1]) == [None]
    assert store.known(videos).missing == videos[:1]
    assert store.make(videos[0])
    assert lengths(store, videos) == [5, 6, 7, 8]


# --- Several processes ---


def add(store, paths):
    for _ in range(3):
        for path in paths:
            store._write(store._files(path)[1], make_table(path).to_bytes())


def test_writers_at_the_same_time(store, videos):
    shutil.rmtree(store.folder)
    fork = multiprocessing.get_context("fork")
    writers = [fork.Process(target=add, args=(store, paths)) for paths in (videos, videos[::-1], videos[:1] * 4)]
    for writer in writers:
        writer.start()
    seen = 0
    while any(writer.is_alive() for writer in writers):
        assert seen <= (seen := store.known(videos).there)
        assert all(length in (None, right) for length, right in zip(lengths(store, videos), (5, 6, 7, 8), strict=True))
        store.begin()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert lengths(store, videos) == [5, 6, 7, 8]


def test_what_a_killed_writer_leaves_is_no_table(store, videos):
    (Path(store.folder) / "00").mkdir(exist_ok=True)
    (left := Path(store.folder) / "00" / ".lightning-multigrid-0123.part").write_bytes(b"half")
    for days, there in ((0, True), (2, False)):  # another process may be writing it
        os.utime(left, (time.time() - days * DAY,) * 2)
        store.begin()
        assert left.exists() == there
    assert store.known(videos).missing == []


def test_a_folder_that_cannot_be_written(tmp_path, videos):
    (tmp_path / "file").touch()
    store = TableStore(tmp_path / "file" / "tables")
    for begin in (store.begin, lambda: store.make(videos[0])):
        with pytest.raises(OutputError, match=r"Not a directory while writing to .*file/tables|File exists"):
            begin()
    store.reject(videos[0])
    assert store.known(videos).missing == videos
    (tmp_path / "closed").mkdir(mode=0o500)
    if os.access(tmp_path / "closed", os.W_OK):
        pytest.skip("this user may write everywhere")
    with pytest.raises(OutputError, match=r"Permission denied while writing to .*closed"):
        TableStore(tmp_path / "closed").begin()


def test_a_full_disk_keeps_no_part_of_a_file(videos, tmp_path):
    store = TableStore(tmp_path / "tables")
    store.begin()
    full = mock.patch("os.replace", side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    with full, pytest.raises(OutputError, match="No space left on device while writing to"):
        store.make(videos[0])
    assert store.known(videos).missing == videos
    assert [name for _, _, names in os.walk(tmp_path / "tables") for name in names] == []


@pytest.mark.parametrize(("folder", "error"), [(None, TypeError), ("", ValueError)])
def test_what_is_no_folder(folder, error):
    with pytest.raises(error, match="`folder` (must be|is)"):
        TableStore(folder)
