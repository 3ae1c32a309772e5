"""Tables are made once, kept on the way, and made again only where they are of no use any more."""

import os
import shutil
from dataclasses import replace

import pytest

from lightning_multigrid.decode import FrameTable, VideoError, make_kept
from lightning_multigrid.prepare import tables
from lightning_multigrid.prepare.tables import index, kept_table, without_table
from lightning_multigrid.sources.table_store import TableStore
from tests.helpers.videos import numbered_frames, write_video


@pytest.fixture
def paths(tmp_path):
    """Three videos and what is none."""
    videos = [str(write_video(tmp_path / f"{place}.mp4", numbered_frames(12, first=12 * place))) for place in range(3)]
    (tmp_path / "d.mp4").write_bytes(b"no video")
    return [*videos, str(tmp_path / "d.mp4")]


@pytest.fixture
def store(tmp_path):
    return TableStore(tmp_path / "tables")


def kept(store, paths):
    return [store.read(path) for path in paths]


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_what_is_missing_is_made_and_what_is_there_is_kept(paths, store, workers):
    done = index([*paths, *paths], store, workers)
    assert (done.made, done.kept, list(done.broken)) == (3, 0, paths[3:])
    assert done.broken[paths[3]].startswith("no video")
    made = kept(store, paths)
    assert [len(FrameTable.from_bytes(table)) for table in made[:3]] == [12, 12, 12]
    again = index(paths, store, workers)
    assert (again.made, again.kept, again.broken) == (0, 3, done.broken)
    assert str(again) == "Frame tables of 0 videos made, 3 there before, 1 broken."


def test_that_a_video_is_broken_is_found_out_once(paths, store, monkeypatch):
    """For each content, and each version of this package or of FFmpeg."""
    broken, calls = index(paths[3:], store).broken, []

    def made(path):
        calls.append(path)
        return make_kept(path)

    monkeypatch.setattr(tables, "make_kept", made)
    assert index(paths[3:], store).broken == broken
    assert without_table(paths[3:], store) == calls == []
    monkeypatch.setattr("lightning_multigrid.decode.kept._BY", "the next version")
    assert without_table(paths[3:], store) == paths[3:]
    assert index(paths[3:], store).broken == broken
    assert calls == paths[3:]
    write_video(paths[3], numbered_frames(12, first=100))
    assert (index(paths[3:], store).made, len(calls)) == (1, 2)


def test_what_may_be_no_fault_of_a_file_is_not_kept(paths, store, monkeypatch):
    def out_of_time(path):
        raise VideoError(path, "took too long")

    gone = str(paths[0]) + ".gone"
    assert index([gone], store).broken == {gone: "cannot be read (No such file or directory)"}
    monkeypatch.setattr(tables, "make_kept", out_of_time)
    assert index(paths[:1], store).broken == {paths[0]: "took too long"}
    monkeypatch.undo()
    assert index(paths[:1], store).made == 1


def test_a_video_that_changes_while_it_is_decoded_gets_no_table(paths, store, monkeypatch):
    def changed(path):
        table = make_kept(path)
        write_video(path, numbered_frames(20))
        return table

    monkeypatch.setattr(tables, "make_kept", changed)
    assert index(paths[:1], store).broken == {paths[0]: "changed while it was decoded. Index it again"}
    assert store.missing(paths[:1]) == paths[:1]


def test_a_video_that_was_replaced_is_indexed_again(paths, store):
    index(paths[:3], store)
    write_video(paths[1], numbered_frames(20))
    assert without_table(paths[:3], store) == [paths[1]]
    assert index(paths[:3], store).made == 1
    assert len(FrameTable.from_bytes(kept(store, paths)[1])) == 20


def test_tables_of_another_ffmpeg_are_made_again_where_its_pixels_may_differ(paths, store):
    index(paths[:3], store)
    for codec, missing in (("h264", []), ("mpeg4", paths[:1])):
        first = FrameTable.from_bytes(kept(store, paths)[0])
        store.add(paths[0], replace(first, made_by="libavcodec 1", codec=codec).to_bytes())
        assert without_table(paths[:3], store) == missing
        assert index(paths[:3], store).made == len(missing)


def test_a_table_that_is_none_is_made_again(paths, store):
    store.add(paths[0], b"nonsense")
    assert index(paths[:1], store).made == 1


def test_an_interruption_loses_no_table(paths, store, monkeypatch):
    own, made = tables.make_kept, []

    def stop(path):
        made.append(path)
        if len(made) == 3:
            raise KeyboardInterrupt
        return own(path)

    monkeypatch.setattr(tables, "make_kept", stop)
    with pytest.raises(KeyboardInterrupt):
        index(paths[:3], store)
    assert len(store.missing(paths[:3])) == 1
    assert index(paths[:3], store).made == 1


def test_what_it_costs_is_said(paths, store, capsys):
    index(paths[:1], store)
    assert "1 video is decoded once" in (told := " ".join(capsys.readouterr().err.split()))
    assert "Each" not in told
    index(paths, store)
    told = " ".join(capsys.readouterr().err.split())
    assert told.count(f"Each of {len(paths) - 1} videos is decoded once") == 1


@pytest.fixture
def damaged(tmp_path):
    """A video of which a part in the middle is lost, and its bytes before."""
    path = write_video(tmp_path / "damaged.mp4", numbered_frames(300, 96, 128), options={"crf": "1"})
    whole = path.read_bytes()
    middle = len(whole) // 2
    path.write_bytes(whole[:middle] + bytes(4096) + whole[middle + 4096 :])
    return path, whole


def test_a_repaired_video_is_indexed_again_though_its_ends_are_the_same(damaged, store):
    path, whole = damaged
    index([str(path)], store)
    assert kept_table(str(path), store).damage
    path.write_bytes(whole)
    os.utime(path, ns=(0, 1))
    assert without_table([str(path)], store) == [str(path)]
    assert index([str(path)], store).made == 1
    assert not kept_table(str(path), store).damage
    os.utime(path, ns=(0, 2))
    assert without_table([str(path)], store) == []  # what is whole has its table wherever it is copied
    path.write_bytes(b"no video")
    assert index([str(path)], store).broken
    os.utime(path, ns=(0, -3 * 10**9))  # before 1970
    assert without_table([str(path)], store) == [str(path)]


def test_copies_of_a_damaged_video_have_a_table_each_if_their_times_of_change_differ(damaged, store, tmp_path):
    paths = [str(shutil.copy(damaged[0], tmp_path / f"{number}.mp4")) for number in range(2)]
    for number, path in enumerate(paths, 1):
        os.utime(path, ns=(0, number))
    assert index(paths, store).made == 2
    assert index(paths, store).kept == 2
    assert all(kept_table(path, store).damage for path in paths)
    store.remove(paths[0])
    assert without_table(paths, store) == paths[:1]
    whole = tmp_path / "whole.mp4"  # with the same ends
    whole.write_bytes(damaged[1])
    assert index(paths, store).made == index([str(whole)], store).made == 1
    assert [bool(kept_table(path, store).damage) for path in (str(whole), *paths)] == [False, True, True]
