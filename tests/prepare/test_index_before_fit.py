"""Before a training all tables are there, made once, whoever else wants them and whatever the user's script is."""

import io
import random
import runpy
import subprocess
import sys
import threading
from collections import Counter

import pytest

from lightning_multigrid.decode import TableStore, table_store
from lightning_multigrid.files.durable import OutputError
from lightning_multigrid.prepare import index_before_fit as module
from lightning_multigrid.prepare import index_in_subprocess, tables
from lightning_multigrid.sources.video_list import VideoList
from tests.helpers.preparing import videos


def missing(source, folder):
    return TableStore(folder, source.root).known(source.paths()).missing


def test_few_are_made_here_and_none_twice(tmp_path, monkeypatch):
    source = videos(tmp_path / "in", ["a.mp4", "b.mp4"])
    monkeypatch.setattr(subprocess, "run", None)
    assert index_in_subprocess([source], tmp_path / "tables") == "Frame tables of 2 videos made."
    assert index_in_subprocess([source], tmp_path / "tables") == ""
    assert index_in_subprocess([], tmp_path / "none") == ""
    assert not (tmp_path / "none").exists()


def test_many_are_made_in_processes_of_another_program(tmp_path, monkeypatch):
    """Those of the user's own script, which may have no guard, would run it again."""
    sources = [videos(tmp_path / "in", ["a.mp4", "line\nbreak.mp4"])]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "broken.mp4").write_bytes(b"no video")
    sources.append(VideoList(tmp_path / "other").read())
    monkeypatch.setattr(module, "_FEW", 0)
    monkeypatch.setattr(module, "usable_cores", lambda: 1)
    monkeypatch.setattr(module, "index", None)
    said = index_in_subprocess(sources, tmp_path / "tables")
    assert said == "Frame tables of 2 videos made, 1 broken."
    assert missing(sources[0], tmp_path / "tables") == missing(sources[1], tmp_path / "tables") == []
    assert index_in_subprocess(sources, tmp_path / "tables") == ""


def test_several_that_share_a_folder_share_the_work_and_none_waits(tmp_path, monkeypatch):
    """One is held at its first video, and the other makes the tables of all the others, and that one's, too."""
    source = videos(tmp_path / "in", [f"{number}.mp4" for number in range(6)])
    given, own = ([source], tmp_path / "tables"), table_store.make_table
    held, go_on, made = threading.Event(), threading.Event(), Counter()

    def make(path):
        name = threading.current_thread().name
        if name == "first" and not held.is_set():
            held.set()
            assert go_on.wait(60)
        made[name] += 1
        return own(path)

    monkeypatch.setattr(table_store, "make_table", make)
    first = threading.Thread(target=index_in_subprocess, args=given, name="first")
    first.start()
    try:
        assert held.wait(60)
        assert index_in_subprocess(*given) == "Frame tables of 6 videos made."
    finally:
        go_on.set()
        first.join()
    assert (made["first"], made["MainThread"]) == (1, 6)
    assert missing(source, tmp_path / "tables") == []


def test_each_takes_the_videos_in_an_order_of_its_own(tmp_path, monkeypatch):
    """Whatever seed the script gives to `random`."""
    source, orders = videos(tmp_path / "in", [f"{number}.mp4" for number in range(12)]), []
    monkeypatch.setattr(tables, "run_tasks", lambda function, tasks, *_: orders.append(list(tasks)) or ())
    for _ in range(3):
        random.seed(1)
        index_in_subprocess([source], tmp_path / "tables")
    assert [sorted(path for _, path in order) for order in orders] == [sorted(source.paths())] * 3
    assert len(set(map(tuple, orders))) == 3


def test_a_folder_that_cannot_be_written_to(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    source = videos(tmp_path / "in", ["a.mp4"])
    monkeypatch.setattr(table_store, "make_table", None)
    for few in (32, 0):  # here, or in another program
        monkeypatch.setattr(module, "_FEW", few)
        with pytest.raises(OutputError, match="Not a directory while writing to .*tables"):
            index_in_subprocess([source], tmp_path / "file" / "tables")


def test_the_program_says_in_a_sentence_what_it_cannot_write(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("lightning_multigrid.prepare.processes.end_with_parent", lambda: None)
    monkeypatch.setattr(sys, "argv", ["prepare", str(tmp_path / "file" / "tables"), "0"])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"/\0/a.mp4\0")))
    with pytest.raises(SystemExit, match="Not a directory while writing to .*tables"):
        runpy.run_module("lightning_multigrid.prepare", run_name="__main__")
