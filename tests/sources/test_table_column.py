"""The frame tables in a manifest file: what is put in comes out by row, and a drive or a file that fails is named."""

import multiprocessing
import os
import pickle
import signal
import threading
import time
from functools import partial

import pytest
import torch

from lightning_multigrid.files import HangError
from lightning_multigrid.files.durable import remove_partial
from lightning_multigrid.sources import table_column
from lightning_multigrid.sources.builder import ManifestBuilder
from lightning_multigrid.sources.manifest_file import load_manifest, save_manifest
from lightning_multigrid.sources.table_column import TableColumn
from lightning_multigrid.sources.video_list import read_manifest
from tests.helpers.drives import nothing_is_in_memory
from tests.helpers.sampling import sampled

ONE, OTHER = bytes(range(256)) * 20, b"a table"
NAMES = ["a/first.mp4", "übung-视频.mp4", "without.mp4", os.fsdecode(b"not-utf-8-\xff.mp4"), "übung-视频.mp4"]
TABLES = [ONE, OTHER, b"", ONE, OTHER]  # of the rows; one video is in two


def manifest(folder, names=NAMES):
    builder = ManifestBuilder(folder / "list.csv", folder / "videos", classes=["run"])
    for name in names:
        builder.add(name, [0], where="")
    return builder.build()


def save(path, names=NAMES, tables=TABLES):
    videos = [str(path.parent / "videos" / name) for name in names]
    save_manifest(manifest(path.parent, names), path, dict(zip(videos, tables, strict=True)))


@pytest.fixture
def path(tmp_path):
    save(tmp_path / "manifest.safetensors")
    return tmp_path / "manifest.safetensors"


def found(manifest):
    return [manifest.table(row) for row in range(len(manifest))]


def test_what_is_written_is_found_by_row(path):
    assert found(load_manifest(path)) == TABLES
    assert path.read_bytes().count(OTHER) == 1


def test_rows_that_are_left_out_take_their_tables_with_them(path, tmp_path):
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / NAMES[1]).touch()
    (tmp_path / "videos" / NAMES[3]).touch()
    assert found(read_manifest(path, existing_only=True)) == [OTHER, ONE, OTHER]


def test_a_manifest_without_tables(tmp_path):
    save_manifest(manifest(tmp_path), tmp_path / "m")
    assert found(load_manifest(tmp_path / "m")) == found(manifest(tmp_path)) == [b""] * len(NAMES)


def test_tables_from_elsewhere(path):
    loaded = load_manifest(path)
    assert found(loaded.with_tables(loaded.tables.take([4, 3, 2, 1, 0]))) == TABLES[::-1]
    assert found(loaded) == TABLES
    with pytest.raises(ValueError, match="`tables` has 1 rows, and the manifest 5. Give one for each row"):
        loaded.with_tables(loaded.tables.take([0]))


@pytest.mark.parametrize("row", [-1, 5])
def test_no_such_row(path, row):
    with pytest.raises(IndexError, match=f"Row {row} of a manifest of 5 videos"):
        load_manifest(path).table(row)


@pytest.mark.parametrize("method", sampled(["fork", "spawn"], "fork"))
def test_workers_read_it(path, method, monkeypatch):
    monkeypatch.chdir(path.parent)
    loaded = load_manifest(path.name)  # a relative path means the same in a worker
    assert found(loaded) == TABLES
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply(found, (loaded,)) == TABLES
    assert len(pickle.dumps(loaded.tables)) < 1000


def test_opening_reads_no_table(tmp_path):
    path = tmp_path / "m"
    save(path, [f"{number:06}.mp4" for number in range(20_000)], [ONE, OTHER] * 10_000)
    began = time.process_time()
    loaded = load_manifest(path)
    spent = time.process_time() - began
    assert all(loaded.table(row) == (ONE, OTHER)[row % 2] for row in range(0, 20_000, 997))
    assert spent < 0.5  # reading all of it takes longer


def test_at_most_some_files_are_open(tmp_path, monkeypatch):
    monkeypatch.setattr(table_column, "_MOST_OPEN", 3)
    paths = [tmp_path / str(number) for number in range(10)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * 10)
    column = TableColumn([str(path) for path in paths], torch.tensor([(number, 2, 5) for number in range(10)]))
    before = len(os.listdir("/dev/fd"))
    for _ in range(2):
        assert [column[row] for row in range(10)] == [bytes([number]) * 3 for number in range(10)]
    assert len(os.listdir("/dev/fd")) == before + 3


def test_a_new_file_replaces_the_old_one_whole_or_not_at_all(path):
    class Interrupted(bytes):
        """A table whose length is asked for, and then the user ends the program."""

        asked = 0

        def __len__(self):
            Interrupted.asked += 1
            if Interrupted.asked == 3:
                raise KeyboardInterrupt
            return super().__len__()

    before = load_manifest(path)
    assert before.table(0) == ONE
    with pytest.raises(KeyboardInterrupt):
        save(path, ["b.mp4"], [Interrupted(b"table")])
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert found(load_manifest(path)) == TABLES
    save(path, ["b.mp4", "a.mp4"], [OTHER, ONE])
    assert found(load_manifest(path)) == [OTHER, ONE]
    assert found(before) == TABLES  # who has the old one open keeps it


def test_a_killed_writer_leaves_the_old_file(path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: os.kill(os.getpid(), signal.SIGKILL))
    writer = multiprocessing.get_context("fork").Process(target=partial(save, path, ["b.mp4"], [ONE]))
    writer.start()
    writer.join()
    assert writer.exitcode == -signal.SIGKILL
    assert found(load_manifest(path)) == TABLES
    assert len(list(path.parent.iterdir())) == 2
    remove_partial(str(path.parent))  # as the next `prepare` does
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_drive_that_is_gone_is_waited_for_in_time_and_asked_again(path, monkeypatch):
    loaded = load_manifest(path)
    loaded.tables.timeout = 0.2
    later = pickle.loads(pickle.dumps(loaded))
    released, read = threading.Event(), os.pread
    with monkeypatch.context() as patch:
        nothing_is_in_memory(patch)
        patch.setattr(os, "pread", lambda *args: (released.wait(), read(*args))[1])
        with pytest.raises(HangError, match=r"a read did not end within 0\.2 s"):
            later.table(0)
        released.set()
    assert found(later) == TABLES


def test_a_file_that_is_cut_while_it_is_open_is_named(path):
    """A file that is mapped into memory would end the process here."""
    loaded = load_manifest(path)
    assert loaded.table(3) == ONE
    os.truncate(path, 100)
    with pytest.raises(OSError, match=r"manifest\.safetensors is shorter than it was"):
        loaded.table(0)
    assert loaded.table(2) == b""
