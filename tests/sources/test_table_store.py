"""A store of frame tables: what any process has added is found, whole, and the newest counts."""

import multiprocessing
import os
import pickle

import pytest

from lightning_multigrid.files import OutputError
from lightning_multigrid.sources.table_store import TableStore

PATHS = ["/videos/a.mp4", "/videos/übung-视频.mp4", os.fsdecode(b"/videos/\xff.mp4"), "/videos/new\nline.mp4"]
TABLES = {path: bytes([number]) * (number + 1) for number, path in enumerate(PATHS)}


@pytest.fixture
def store(tmp_path):
    store = TableStore(tmp_path / "cache" / "tables")
    for path, table in TABLES.items():
        store.add(path, table)
    return store


def test_an_empty_store(tmp_path):
    store = TableStore(tmp_path / "none")
    assert store.missing([]) == []
    assert store.missing(PATHS) == PATHS
    assert [store.read(path) for path in PATHS] == [b""] * 4
    assert not (tmp_path / "none").exists()


def test_what_is_added_is_found(store):
    for opened in (store, TableStore(store.folder), pickle.loads(pickle.dumps(store))):
        assert {path: opened.read(path) for path in PATHS} == TABLES
        assert opened.read("/videos/other.mp4") == b""
    assert store.missing(["/videos/b.mp4", "/videos/a.mp4", "/videos/b.mp4"]) == ["/videos/b.mp4"]
    store.add(PATHS[0], b"newer")
    assert store.read(PATHS[0]) == b"newer"


def add(folder, number):
    for place in range(20):
        TableStore(folder).add(f"/{number}/{place}", f"{number} {place}".encode())
        TableStore(folder).add("/all", str(number).encode() * 100_000)


def test_writers_at_the_same_time(tmp_path):
    writers = [multiprocessing.get_context("fork").Process(target=add, args=(tmp_path, number)) for number in (1, 2, 3)]
    for writer in writers:
        writer.start()
    reader, seen = TableStore(tmp_path), 0
    paths = [f"/{number}/{place}" for number in (1, 2, 3) for place in range(20)]
    while any(writer.is_alive() for writer in writers):
        assert seen <= (seen := 60 - len(reader.missing(paths)))
        assert reader.read("/all") in (b"", *(number * 100_000 for number in (b"1", b"2", b"3")))
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert [reader.read(path) for path in paths] == [path[1:].replace("/", " ").encode() for path in paths]


def test_what_a_killed_writer_leaves_is_no_table(store, tmp_path):
    (tmp_path / "cache" / "tables" / "00").mkdir(exist_ok=True)
    (tmp_path / "cache" / "tables" / "00" / ".lightning-multigrid-0123.part").write_bytes(b"half")
    assert store.missing(["/videos/a.mp4", "/videos/b.mp4"]) == ["/videos/b.mp4"]


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    store = TableStore(tmp_path / "file" / "tables")
    with pytest.raises(OutputError, match=r"Not a directory while writing to .*file/tables|File exists"):
        store.add(PATHS[0], b"table")
    assert store.missing(PATHS) == PATHS
    (tmp_path / "closed").mkdir(mode=0o500)
    if os.access(tmp_path / "closed", os.W_OK):
        pytest.skip("this user may write everywhere")
    with pytest.raises(OutputError, match=r"Permission denied while writing to .*closed"):
        TableStore(tmp_path / "closed").add(PATHS[0], b"table")


@pytest.mark.parametrize(("folder", "error"), [(None, TypeError), ("", ValueError)])
def test_what_is_no_folder(folder, error):
    with pytest.raises(error, match="`folder` (must be|is)"):
        TableStore(folder)
