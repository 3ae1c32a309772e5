"""Before a training all tables are there, made once, whoever else wants them and whatever the user's script is."""

import subprocess
import threading
import time

import pytest

from lightning_multigrid.files.durable import OutputError
from lightning_multigrid.prepare import index_before_fit as module
from lightning_multigrid.prepare.index_before_fit import index_in_subprocess, paths_without_own_table
from lightning_multigrid.prepare.prepare_videos import prepare
from lightning_multigrid.sources.table_store import TableStore
from lightning_multigrid.sources.video_list import VideoList
from tests.helpers.preparing import FAST, videos

paths_of = paths_without_own_table


def test_videos_that_need_tables(tmp_path):
    source = videos(tmp_path / "in", ["a.mp4", "b.mp4"])
    assert paths_of(source) == [source.path(0), source.path(1)]
    prepare(source, tmp_path / "out", FAST)
    assert paths_without_own_table(VideoList(tmp_path / "out").read()) == []


def test_few_are_made_here_and_none_twice(tmp_path, monkeypatch):
    source = videos(tmp_path / "in", ["a.mp4", "b.mp4"])
    monkeypatch.setattr(subprocess, "run", None)
    assert index_in_subprocess(paths_of(source), tmp_path / "tables") == "Frame tables of 2 videos made."
    assert index_in_subprocess(paths_of(source), tmp_path / "tables") == ""
    assert index_in_subprocess([], tmp_path / "none") == ""
    assert not (tmp_path / "none").exists()


def test_many_are_made_in_processes_of_another_program(tmp_path, monkeypatch):
    """Those of the user's own script, which may have no guard, would run it again."""
    source = videos(tmp_path / "in", ["a.mp4", "line\nbreak.mp4"])
    (tmp_path / "in" / "broken.mp4").write_bytes(b"no video")
    paths = [*paths_of(source), str(tmp_path / "in" / "broken.mp4")]
    monkeypatch.setattr(module, "_FEW", 0)
    monkeypatch.setattr(module, "usable_cores", lambda: 1)
    monkeypatch.setattr(module, "index", None)
    said = index_in_subprocess(paths, tmp_path / "tables")
    assert said == f"Frame tables of 2 videos are in {tmp_path / 'tables'}."
    assert TableStore(tmp_path / "tables").missing(paths) == paths[2:]


def test_of_several_that_share_a_folder_one_works_and_the_others_wait(tmp_path, monkeypatch):
    source = videos(tmp_path / "in", ["a.mp4"])
    made, own = [], module.index

    def slow(*arguments, **options):
        time.sleep(0.5)
        made.append(own(*arguments, **options).made)
        return ""

    monkeypatch.setattr(module, "index", slow)
    given = paths_of(source), tmp_path / "tables"
    threads = [threading.Thread(target=index_in_subprocess, args=given) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(module.fcntl, "flock", refuse)
    source = videos(tmp_path / "in", ["a.mp4"])
    assert "1 videos made" in index_in_subprocess(paths_of(source), tmp_path / "tables")


def test_a_folder_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").write_text("")
    source = videos(tmp_path / "in", ["a.mp4"])
    with pytest.raises(OutputError, match="Not a directory while writing to .*tables"):
        index_in_subprocess(paths_of(source), tmp_path / "file" / "tables")
