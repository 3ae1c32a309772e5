"""Tables are made once, kept on the way, and made again only where they are of no use any more."""

import io
import random
import runpy
import subprocess
import sys
import threading
from collections import Counter

import pytest

from lightning_multigrid.decode import TableStore, make_table, table_store
from lightning_multigrid.files.durable import OutputError
from lightning_multigrid.prepare import tables
from lightning_multigrid.prepare.tables import index, index_in_subprocess
from lightning_multigrid.sources.video_list import VideoList
from tests.helpers.preparing import videos
from tests.helpers.videos import numbered_frames, write_video


@pytest.fixture
def paths(tmp_path):
    """Three videos and what is none."""
    videos = [str(write_video(tmp_path / f"{place}.mp4", numbered_frames(12, first=12 * place))) for place in range(3)]
    (tmp_path / "d.mp4").write_bytes(b"no video")
    return [*videos, str(tmp_path / "d.mp4")]


@pytest.fixture
def store(tmp_path):
    return TableStore(tmp_path / "tables", str(tmp_path))


def indexed(paths, store, workers=0):
    return index([(store.root, paths)], store.folder, workers)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_what_is_missing_is_made_and_what_is_there_is_kept(paths, store, workers):
    done = indexed([*paths, *paths], store, workers)
    assert (done.made, done.there, list(done.broken)) == (3, 0, paths[3:])
    assert done.broken[paths[3]].startswith("not a video")
    assert [len(store.find(path)) for path in paths[:3]] == [12, 12, 12]
    again = indexed([*paths, *paths], store, workers)
    assert (again.made, again.there, again.broken) == (0, 3, done.broken)
    assert str(again) == "0 videos made, 3 there before, 1 broken"


def test_an_interruption_loses_no_table(paths, store, monkeypatch):
    made = []

    def stop(path):
        made.append(path)
        if len(made) == 3:
            raise KeyboardInterrupt
        return make_table(path)

    monkeypatch.setattr(table_store, "make_table", stop)
    with pytest.raises(KeyboardInterrupt):
        indexed(paths[:3], store)
    assert len(store.known(paths[:3]).missing) == 1
    monkeypatch.undo()
    assert indexed(paths[:3], store).made == 1


def test_what_it_costs_is_said(paths, store, capsys):
    indexed(paths[:1], store)
    assert "1 video is decoded once" in (told := " ".join(capsys.readouterr().err.split()))
    assert "Each" not in told
    indexed(paths, store)
    told = " ".join(capsys.readouterr().err.split())
    assert told.count(f"Each of {len(paths) - 1} videos is decoded once") == 1


# --- Before a training ---


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
    monkeypatch.setattr(tables, "_FEW", 0)
    monkeypatch.setattr(tables, "usable_cores", lambda: 1)
    monkeypatch.setattr(tables, "index", None)
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
        monkeypatch.setattr(tables, "_FEW", few)
        with pytest.raises(OutputError, match="Not a directory while writing to .*tables"):
            index_in_subprocess([source], tmp_path / "file" / "tables")


def test_the_program_says_in_a_sentence_what_it_cannot_write(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("lightning_multigrid.prepare.processes.end_with_parent", lambda: None)
    monkeypatch.setattr(sys, "argv", ["prepare", str(tmp_path / "file" / "tables"), "0"])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"/\0/a.mp4\0")))
    with pytest.raises(SystemExit, match="Not a directory while writing to .*tables"):
        runpy.run_module("lightning_multigrid.prepare", run_name="__main__")
