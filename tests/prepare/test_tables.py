"""Tables are made once, kept on the way, and made again only where they are of no use any more."""

import pytest

from lightning_multigrid.decode import TableStore, make_table, table_store
from lightning_multigrid.prepare.tables import index
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
