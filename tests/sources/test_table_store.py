"""A store of frame tables: what any process has added is found, whole, by what a video holds, and the newest counts."""

import errno
import multiprocessing
import os
import pickle
import shutil
import time

import pytest

from lightning_multigrid.files import InputFile, OutputError
from lightning_multigrid.sources import table_store
from lightning_multigrid.sources.table_store import TableStore, content_key

NAMES = ["a.mp4", "übung-视频.mp4", os.fsdecode(b"\xff.mp4"), "new\nline.mp4"]
DAY = 86_400


def file(folder, name, data=None):
    """A file of other contents than those of other names; its path."""
    path = os.path.join(folder, name)
    with open(path, "wb") as file:
        file.write(os.fsencode(name) * 100 if data is None else data)
    return path


@pytest.fixture
def videos(tmp_path):
    return [file(tmp_path, name) for name in NAMES]


@pytest.fixture
def store(tmp_path, videos):
    store = TableStore(tmp_path / "cache" / "tables")
    for number, path in enumerate(videos):
        store.add(path, bytes([number]) * (number + 1))
    return store


def test_an_empty_store(tmp_path, videos):
    store = TableStore(tmp_path / "none")
    assert store.missing([]) == []
    assert store.missing(videos) == videos
    assert [store.read(path) for path in videos] == [b""] * 4
    assert not (tmp_path / "none").exists()


def test_what_is_added_is_found(store, videos, tmp_path):
    other = file(tmp_path, "other.mp4")
    for opened in (store, TableStore(store.folder), pickle.loads(pickle.dumps(store))):
        assert [opened.read(path) for path in videos] == [b"\0", b"\1\1", b"\2\2\2", b"\3\3\3\3"]
        assert opened.read(other) == b""
    assert store.missing([other, videos[0], other]) == [other]
    store.add(videos[0], b"newer")
    assert store.read(videos[0]) == b"newer"


def test_what_is_removed_is_missing(store, videos, tmp_path):
    for path in (videos[0], videos[0], str(tmp_path / "gone.mp4")):
        store.remove(path)
    assert store.missing(videos) == videos[:1]


def test_videos_that_are_copied_or_moved_keep_their_tables(store, videos, tmp_path):
    (tmp_path / "node").mkdir()
    moved = [str(tmp_path / "node" / f"{number}.avi") for number in range(4)]
    shutil.copy(videos[0], moved[0])  # another time of change
    for path, to in zip(videos[1:], moved[1:], strict=True):
        os.rename(path, to)
    assert store.missing([videos[0], *moved]) == []
    assert store.read(moved[3]) == b"\3\3\3\3"


@pytest.mark.parametrize("size", [10, 1 << 16, 1 << 17, 200_000])
def test_a_video_that_is_replaced_has_no_table(tmp_path, size):
    """Whichever of the first and last 64 kB differs, or the size alone."""
    store, data = TableStore(tmp_path / "tables"), b"a" * size
    path = file(tmp_path, "video.mp4", data)
    store.add(path, b"table")
    for number, other in enumerate((b"b" + data[1:], data[:-1] + b"b", data + b"a", data[:-1])):
        file(tmp_path, "video.mp4", other)
        os.utime(path, (number, number))  # a file is known by its time of change, which clocks round
        assert (store.read(path), store.missing([path])) == (b"", [path])
    file(tmp_path, "video.mp4", data)
    os.utime(path, (9, 9))
    assert store.read(path) == b"table"


def test_files_that_cannot_be_read_have_no_table(store, videos, tmp_path):
    os.mkfifo(tmp_path / "pipe.mp4")
    paths = [str(tmp_path), str(tmp_path / "pipe.mp4"), str(tmp_path / "none.mp4"), "nul\0.mp4"]
    assert [store.read(path) for path in paths] == [b""] * 4
    assert store.missing([*videos, *paths]) == paths
    with pytest.raises(OSError, match="No such file"):
        store.add(paths[2], b"table")


def test_a_later_process_reads_only_what_has_changed_for_its_key(store, videos, monkeypatch):
    def in_a_new_process():
        monkeypatch.setattr(table_store, "_known", table_store._Known())
        monkeypatch.setattr(table_store, "_recalled", {})
        opened = []
        monkeypatch.setattr(table_store, "open_input", lambda path: opened.append(path) or InputFile(path))
        return opened, TableStore(store.folder).missing(videos)

    missing = store.missing(videos)
    assert in_a_new_process() == ([], missing)
    os.utime(videos[1], (9, 9))
    assert in_a_new_process() == ([videos[1]], missing)
    assert in_a_new_process() == ([], missing)
    with open(os.path.join(store.folder, "keys"), "r+b") as file:
        file.write(b"damaged")
    assert in_a_new_process() == (videos, missing)


def test_a_file_is_read_once_for_its_key_by_all_forks(videos, monkeypatch):
    keys = [content_key(path) for path in videos]
    monkeypatch.setattr(InputFile, "read", None)

    def work():
        assert [content_key(path) for path in videos] == keys

    worker = multiprocessing.get_context("fork").Process(target=work)
    worker.start()
    worker.join()
    assert worker.exitcode == 0


def test_what_forks_know_is_found_whole_or_not_at_all(monkeypatch):
    """One place for all names, and writes of which others see any part."""
    monkeypatch.setattr(table_store._Known, "_PLACES", 1)
    known = table_store._Known()
    assert known.get(b"a") is None
    known.put(b"a", b"a" * 16)
    assert (known.get(b"a"), known.get(b"b")) == (b"a" * 16, None)
    before = known._memory[:32]
    known.put(b"b", b"b" * 16)
    after = known._memory[:32]
    for end in range(1, 32):
        known._memory[:32] = after[:end] + before[end:]
        assert (known.get(b"a"), known.get(b"b")) == (None, None)


# --- Age ---


def age(store, days):
    """Makes all tables as old, and returns them."""
    tables = [os.path.join(inner, name) for inner, _, names in os.walk(store.folder) for name in names if "." in name]
    for table in tables:
        os.utime(table, (time.time() - days * DAY,) * 2)
    return tables


def test_only_tables_that_nobody_read_for_180_days_are_removed(store, videos):
    for days, left in ((170, 4), (190, 2)):
        assert len(age(store, days)) == 4
        kept = [store.read(path) for path in videos[:2]]  # a reader marks them
        store.begin()
        assert store.missing(videos) == videos[left:]
    assert [store.read(path) for path in videos[:2]] == kept


def test_a_table_is_marked_rarely(store, videos):
    for days in (20, 40):
        [table, *_] = age(store, days)
        before = os.stat(table).st_mtime
        for path in videos:
            store.read(path)
        assert (os.stat(table).st_mtime == before) == (days == 20)


def test_a_table_that_another_user_reads_stays(store, videos):
    """Who may not mark it accesses it."""
    age(store, 400)
    for path in videos:
        table = store._file(content_key(path))
        os.utime(table, (time.time(), os.stat(table).st_mtime))
    store.begin()
    assert store.missing(videos) == []


def test_a_table_that_cannot_be_marked_is_read(store, videos, monkeypatch):
    def refuse(*arguments):
        raise PermissionError

    age(store, 40)
    monkeypatch.setattr(os, "utime", refuse)
    assert store.read(videos[0]) == b"\0"


# --- Several processes ---


def add(folder, number, paths, shared):
    for place, path in enumerate(paths):
        TableStore(folder).add(path, f"{number} {place}".encode())
        TableStore(folder).add(shared, str(number).encode() * 100_000)


def test_writers_at_the_same_time(tmp_path):
    paths = {number: [file(tmp_path, f"{number} {place}") for place in range(20)] for number in (1, 2, 3)}
    shared, every = file(tmp_path, "shared"), [path for own in paths.values() for path in own]
    folder = tmp_path / "tables"
    fork = multiprocessing.get_context("fork")
    writers = [fork.Process(target=add, args=(folder, number, own, shared)) for number, own in paths.items()]
    for writer in writers:
        writer.start()
    reader, seen = TableStore(folder), 0
    while any(writer.is_alive() for writer in writers):
        assert seen <= (seen := 60 - len(reader.missing(every)))
        assert reader.read(shared) in (b"", *(number * 100_000 for number in (b"1", b"2", b"3")))
        reader.begin()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert [reader.read(path) for path in every] == [os.path.basename(path).encode() for path in every]


def test_what_a_killed_writer_leaves_is_no_table(store, videos, tmp_path):
    (tmp_path / "cache" / "tables" / "00").mkdir(exist_ok=True)
    left = tmp_path / "cache" / "tables" / "00" / ".lightning-multigrid-0123.part"
    left.write_bytes(b"half")
    assert store.missing([videos[0], str(left)]) == [str(left)]
    for days, there in ((0, True), (2, False)):  # another process may be writing it
        os.utime(left, (time.time() - days * DAY,) * 2)
        store.begin()
        assert left.exists() == there


def test_a_folder_that_cannot_be_written(tmp_path, videos):
    (tmp_path / "file").touch()
    store = TableStore(tmp_path / "file" / "tables")
    for add in (store.begin, lambda: store.add(videos[0], b"table")):
        with pytest.raises(OutputError, match=r"Not a directory while writing to .*file/tables|File exists"):
            add()
    assert store.missing(videos) == videos
    (tmp_path / "closed").mkdir(mode=0o500)
    if os.access(tmp_path / "closed", os.W_OK):
        pytest.skip("this user may write everywhere")
    with pytest.raises(OutputError, match=r"Permission denied while writing to .*closed"):
        TableStore(tmp_path / "closed").begin()


def test_a_full_disk_keeps_no_part_of_a_file(videos, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = TableStore(tmp_path / "tables")
    store.begin()
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OutputError, match="No space left on device while writing to"):
        store.add(videos[0], b"table")
    assert store.missing(videos) == videos
    assert [name for _, _, names in os.walk(tmp_path / "tables") for name in names] == []


@pytest.mark.parametrize(("folder", "error"), [(None, TypeError), ("", ValueError)])
def test_what_is_no_folder(folder, error):
    with pytest.raises(error, match="`folder` (must be|is)"):
        TableStore(folder)
