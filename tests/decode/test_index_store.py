"""The store of indices: what is put in comes out, stale entries don't, and damage is named."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import time
from pathlib import Path

import pytest

from lightning_multigrid.decode import index_store as index_store
from lightning_multigrid.decode.index_store import IndexStore
from tests.helpers.indices import INDEX, KEY, make_index
from tests.helpers.mutations import fuzzed, mutate

OTHER = make_index([KEY] * 3, [5, 6, 7])
ENTRIES = [
    ("a/first.mp4", INDEX),
    ("übung-视频.mp4", OTHER),
    (os.fsdecode(b"not-utf-8-\xff.mp4"), INDEX),
    ("", OTHER),
]


@pytest.fixture
def path(tmp_path) -> Path:
    IndexStore.write(tmp_path / "videos.index", iter(ENTRIES))
    return tmp_path / "videos.index"


def test_what_is_written_is_found(path):
    store = IndexStore(path)
    assert len(store) == len(ENTRIES)
    for name, index in ENTRIES:
        assert store.get(name) == index
    assert store.get("a/second.mp4") is None


def test_of_several_entries_with_one_name_the_last_holds(path):
    IndexStore.write(path, [("a", INDEX), ("b", INDEX), ("a", OTHER)])
    store = IndexStore(path)
    assert len(store) == 2
    assert store.get("a") == OTHER


def test_an_empty_store_knows_nothing(path):
    IndexStore.write(path, [])
    assert len(IndexStore(path)) == 0
    assert IndexStore(path).get("a") is None


def _read_in_worker(store: IndexStore) -> bool:
    return store.get("a/first.mp4") == INDEX


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_read_it(path, method, monkeypatch):
    monkeypatch.chdir(path.parent)
    store = IndexStore(path.name)  # a relative path means the same in a worker
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply(_read_in_worker, (store,))
    assert len(pickle.dumps(store)) < 500


def test_a_new_store_replaces_the_old_one_whole_or_not_at_all(path):
    def interrupted():
        yield "c", INDEX
        raise KeyboardInterrupt

    before = IndexStore(path)
    with pytest.raises(KeyboardInterrupt):
        IndexStore.write(path, interrupted())
    assert [found.name for found in path.parent.iterdir()] == [path.name]
    assert IndexStore(path).get("a/first.mp4") == INDEX
    IndexStore.write(path, [("c", OTHER)])
    assert IndexStore(path).get("c") == OTHER
    assert before.get("a/first.mp4") == INDEX  # who has the old one open keeps it


def test_opening_costs_the_same_for_many_videos(tmp_path):
    IndexStore.write(tmp_path / "many.index", ((f"{n:06}.mp4", INDEX) for n in range(20_000)))
    began = time.process_time()
    store = IndexStore(tmp_path / "many.index")
    spent = time.process_time() - began
    assert len(store) == 20_000
    assert all(store.get(f"{n:06}.mp4") == INDEX for n in range(0, 20_000, 997))
    assert spent < 0.5  # reading all of it takes longer


def test_a_lookup_does_not_convert_the_table(tmp_path, monkeypatch):
    """NumPy converts both sides to a common type, which for a hash and a Python number is float64."""
    # Hashes that are equal as float64, as few of millions are.
    hashes = {"a": 2**62 + 1, "b": 2**62 + 2, "c": 2**62 + 3}
    monkeypatch.setattr(index_store, "_hash", lambda name: hashes[name.decode()])
    IndexStore.write(tmp_path / "many.index", [("a", INDEX), ("b", OTHER), ("c", INDEX)])
    store = IndexStore(tmp_path / "many.index")
    assert [store.get(name) for name in "abc"] == [INDEX, OTHER, INDEX]


def test_a_pipe_is_no_store_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.index")
    with pytest.raises(ValueError, match=r"pipe\.index is no index of videos, .*: it is no ordinary file"):
        IndexStore(tmp_path / "pipe.index")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"", "it is too short"),
        (lambda data: b"path,label\n" * 9, "it doesn't begin as one does, or is of another version"),
        (lambda data: data[:-1], "its length is not the one in its head"),
        (lambda data: data[: len(data) // 2], "its length is not the one in its head"),
        (lambda data: data + b"\0", "its length is not the one in its head"),
    ],
)
def test_a_damaged_store_is_named(path, damage, message):
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=f"videos.index is no index of videos, or a damaged one: {message}. Delete it"):
        IndexStore(path)


def test_a_damaged_entry_is_named(path):
    data = bytearray(path.read_bytes())
    data[data.index(b"\1sets")] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"videos.index is .*: the entry of 'a/first.mp4' is damaged"):
        IndexStore(path).get("a/first.mp4")
    assert IndexStore(path).get("übung-视频.mp4") == OTHER


def test_an_entry_beyond_the_end_is_named(path):
    data = path.read_bytes()
    count = len(ENTRIES)
    path.write_bytes(data[: -8 * count] + (2**63).to_bytes(8, "little") * count)
    with pytest.raises(ValueError, match=r"videos.index is .*: an entry lies beyond its end"):
        IndexStore(path).get("a/first.mp4")


def test_a_missing_store(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.index"):
        IndexStore(tmp_path / "none.index")


def try_mutated(folder, content, seed):
    path = folder / "hostile.index"
    draw = random.Random(seed)
    content = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        content[draw.randrange(len(content))] = draw.randrange(256)
    path.write_bytes(content if draw.random() < 0.7 else mutate(bytes(content), draw))
    try:
        store = IndexStore(path)
        answers = [(store.get(name), index) for name, index in ENTRIES]
    except ValueError as error:
        if "hostile.index is no index of videos, or a damaged one" not in str(error):
            raise
    else:
        assert all(answer in (None, index) for answer, index in answers)


@fuzzed(some=150)
def test_mutated_stores_are_a_value_error_or_an_answer(path, tmp_path, numbers):
    content = path.read_bytes()
    for seed in numbers:
        try_mutated(tmp_path, content, seed)
