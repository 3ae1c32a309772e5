"""Tables are made once, kept on the way, and made again only where they are of no use any more."""

from dataclasses import replace

import pytest

from lightning_multigrid.decode import FrameTable, VideoError, make_kept
from lightning_multigrid.prepare import tables
from lightning_multigrid.prepare.tables import index, without_table
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
    index(paths, store)
    told = " ".join(capsys.readouterr().err.split())
    assert told.count("Each of 4 videos is decoded once") == 1
