"""A store of frame tables: what any process has added is found, the newest counts, and damage costs only itself."""

import multiprocessing
import os
import pickle
import random
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_multigrid.files import OutputError, WatchedFile
from lightning_multigrid.sources import table_store
from lightning_multigrid.sources.array_file import save_arrays
from lightning_multigrid.sources.table_store import TableStore
from tests.helpers.drives import nothing_is_in_memory
from tests.helpers.mutations import fuzzed, mutate

PATHS = ["/videos/a.mp4", "/videos/übung-视频.mp4", os.fsdecode(b"/videos/\xff.mp4"), "s3://bucket/a.mp4"]
TABLES = {path: bytes([number]) * (number + 1) for number, path in enumerate(PATHS)}


def found(store, paths):
    column = store.tables(paths)
    return [column[row] for row in range(len(column))]


@pytest.fixture
def store(tmp_path):
    store = TableStore(tmp_path / "cache" / "tables")
    store.add(TABLES)
    return store


@pytest.fixture
def segment(store, tmp_path):
    [segment] = (tmp_path / "cache" / "tables").iterdir()
    return segment


def test_an_empty_store(tmp_path):
    store = TableStore(tmp_path / "none")
    assert store.missing([]) == []
    assert store.missing(PATHS) == PATHS
    assert found(store, PATHS) == [b""] * 4
    store.add({})
    assert not (tmp_path / "none").exists()


def test_what_is_added_is_found_by_any_path_in_any_order(store):
    paths = [PATHS[2], "/videos/other.mp4", PATHS[0], PATHS[2], PATHS[3], PATHS[1]]
    for opened in (store, TableStore(store._folder), pickle.loads(pickle.dumps(store))):
        assert found(opened, paths) == [TABLES.get(path, b"") for path in paths]
        assert opened.missing(paths) == ["/videos/other.mp4"]
    assert store.missing(["/videos/b.mp4", "/videos/a.mp4", "/videos/b.mp4"]) == ["/videos/b.mp4"]


@given(st.lists(st.dictionaries(st.integers(0, 9), st.binary(min_size=1, max_size=5)), max_size=6))
def test_the_newest_table_of_a_video_counts(tmp_path_factory, segments):
    folder, expected = tmp_path_factory.mktemp("store"), {}
    reader = TableStore(folder)
    for tables in segments:
        added = {f"/{number}": table for number, table in tables.items()}
        TableStore(folder).add(added)
        expected |= added
        assert found(reader, [f"/{number}" for number in range(10)]) == [
            expected.get(f"/{number}", b"") for number in range(10)
        ]


def test_the_newest_counts_whatever_the_clocks_of_other_machines_say(store, monkeypatch):
    monkeypatch.setattr(time, "time_ns", lambda: 10**9)
    for table in (b"second", b"third"):
        store.add({PATHS[0]: table})
        assert found(store, PATHS[:2]) == [table, TABLES[PATHS[1]]]


def test_two_videos_whose_hashes_share_their_first_half(tmp_path, monkeypatch):
    """The newer one has its table; the older one has none, and never the other's."""
    monkeypatch.setattr(
        table_store, "_hashes", lambda paths: np.array([[7, int(path[1:])] for path in paths], np.uint64).reshape(-1, 2)
    )
    store = TableStore(tmp_path)
    store.add({"/1": b"one"})
    store.add({"/2": b"two"})
    assert found(store, ["/1", "/2", "/3"]) == [b"", b"two", b""]


def add(folder, number):
    for place in range(20):
        TableStore(folder).add({f"/{number}/{place}": f"{number} {place}".encode(), "/all": b"x" * number})


def test_writers_at_the_same_time(tmp_path):
    writers = [multiprocessing.get_context("fork").Process(target=add, args=(tmp_path, number)) for number in (1, 2, 3)]
    for writer in writers:
        writer.start()
    reader, seen = TableStore(tmp_path), 0
    while any(writer.is_alive() for writer in writers):
        assert seen <= (seen := 60 - len(reader.missing(f"/{n}/{place}" for n in (1, 2, 3) for place in range(20))))
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    paths = [f"/{number}/{place}" for number in (1, 2, 3) for place in range(20)]
    assert found(reader, paths) == [path[1:].replace("/", " ").encode() for path in paths]
    assert found(reader, ["/all"])[0] in (b"x", b"xx", b"xxx")


def test_what_a_killed_writer_leaves_is_no_segment(store, segment):
    segment.with_name(".lightning-multigrid-0123.part").write_bytes(segment.read_bytes()[:50])
    segment.with_name("notes.txt").touch()
    segment.with_name("other.safetensors").touch()
    assert store.missing(PATHS) == []


def damaged(**changes):
    """A segment that says of itself what it should, with other arrays."""
    right = {"hashes": np.zeros((2, 2), np.uint64), "offsets": np.array([0, 1, 2])}
    return lambda path: save_arrays(path, {"kind": "frame tables", "version": 1}, right | changes, [b"ab"])


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda path: path.write_bytes(b""), "it is cut short, or no safetensors file|Expecting value"),
        (
            lambda path: os.truncate(path, path.stat().st_size - 1),
            "it has no tables of videos at its end, or is cut short",
        ),
        (lambda path: (path.unlink(), os.mkfifo(path)), "it is not a file"),
        (lambda path: (path.unlink(), path.symlink_to("gone")), "No such file or directory"),
        (
            lambda path: save_arrays(path, {"version": 2}, {"hashes": np.zeros((1, 2), np.uint64)}, [b""]),
            "its arrays are",
        ),
        (damaged(offsets=np.array([0, 1])), "the bounds of its tables are not in order"),
        (damaged(offsets=np.array([0, 3, 2])), "the bounds of its tables are not in order"),
        (damaged(hashes=np.zeros((1, 2), np.uint64)), "its paths and tables differ in number"),
        (damaged(hashes=np.zeros((2, 3), np.uint64)), "its paths and tables differ in number"),
    ],
)
def test_a_damaged_segment_is_named_once_and_left_out(store, segment, damage, why):
    store.add({PATHS[0]: b"newer"})
    damage(segment)
    opened = TableStore(store._folder)
    with pytest.warns(
        UserWarning, match=rf"{segment} is left out, as it is .*({why}).*\. Remove it, and make their tables again"
    ) as said:
        assert opened.missing(PATHS) == PATHS[1:]
    assert len(said) == 1
    assert found(opened, PATHS[:2]) == [b"newer", b""]
    opened.add({PATHS[1]: b"again"})
    assert found(opened, PATHS[:2]) == [b"newer", b"again"]


def test_a_segment_of_another_version(tmp_path):
    save_arrays(
        tmp_path / "0-a.safetensors",
        {"kind": "frame tables", "version": 2},
        {"hashes": np.zeros((0, 2), np.uint64), "offsets": np.array([0])},
        [],
    )
    with pytest.warns(UserWarning, match="it is of another version"):
        assert TableStore(tmp_path).missing(["/a"]) == ["/a"]


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"Not a directory: .*file/tables|File exists"):
        TableStore(tmp_path / "file" / "tables").add(TABLES)
    assert TableStore(tmp_path / "file" / "tables").missing(PATHS) == PATHS
    (tmp_path / "closed").mkdir(mode=0o500)
    if os.access(tmp_path / "closed", os.W_OK):
        pytest.skip("this user may write everywhere")
    with pytest.raises(OutputError, match=r"Permission denied while writing to .*closed"):
        TableStore(tmp_path / "closed").add(TABLES)


@pytest.mark.parametrize(("folder", "error"), [(None, TypeError), ("", ValueError)])
def test_what_is_no_folder(folder, error):
    with pytest.raises(error, match="`folder` (must be|is)"):
        TableStore(folder)


def test_a_drive_that_is_gone(store, segment, monkeypatch):
    released, read = threading.Event(), os.pread
    nothing_is_in_memory(monkeypatch)
    monkeypatch.setattr(table_store, "WatchedFile", partial(WatchedFile, timeout=0.2))
    monkeypatch.setattr(os, "pread", lambda *args: (released.wait(), read(*args))[1])
    with pytest.warns(UserWarning, match=r"can't be read: a read did not end within 0\.2 s"):
        assert TableStore(store._folder).missing(PATHS) == PATHS
    released.set()


def test_many_rows_and_segments_are_found_in_time(tmp_path):
    paths = [f"/videos/{number:06}.mp4" for number in range(30_000)]
    for start in range(0, 30_000, 1000):
        TableStore(tmp_path).add({path: path.encode() for path in paths[start : start + 1000]})
    order = random.Random(0).sample(paths, len(paths))
    began = time.process_time()
    column = TableStore(tmp_path).tables(order)
    spent = time.process_time() - began
    assert [column[row] for row in range(0, 30_000, 97)] == [path.encode() for path in order[::97]]
    assert spent < 1
    assert len(pickle.dumps(column)) < 30_000 * 3 * 8 + 10_000  # no path, no hash


@pytest.mark.filterwarnings("ignore:.* is left out, as it is damaged:UserWarning")
@fuzzed(some=75)
def test_mutated_segments_are_left_out_or_answer(store, segment, numbers):
    content = segment.read_bytes()
    for seed in numbers:
        draw = random.Random(seed)
        damaged = bytearray(content)
        for _ in range(draw.randint(1, 4)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        segment.write_bytes(damaged if draw.random() < 0.7 else mutate(bytes(damaged), draw))
        opened = TableStore(Path(store._folder))
        missing, tables = opened.missing(PATHS), found(opened, PATHS)
        assert missing == [path for path, table in zip(PATHS, tables, strict=True) if not table]
