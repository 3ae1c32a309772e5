"""A `fit` makes the frame tables that its videos lack, keeps them, and goes on without if it can't."""

import pytest

from lightning_multigrid.decode.full_decode import FullDecode
from lightning_multigrid.prepare import index_before_fit
from lightning_multigrid.sources.table_store import TableStore
from lightning_multigrid.video.datamodule import VideoDataModule
from lightning_multigrid.video.kept_tables import UnkeptTablesWarning
from tests.helpers.tiny import Module, fit
from tests.helpers.videos import numbered_frames, write_video


@pytest.fixture
def source(tmp_path):
    """Six videos for training and three for validation."""
    for split, number in (("train", 6), ("val", 3)):
        for place in range(number):
            folder = tmp_path / split / "ab"[place % 2]
            folder.mkdir(parents=True, exist_ok=True)
            write_video(folder / f"{place}.mp4", numbered_frames(16))
    return tmp_path


def data_of(source, **arguments):
    given = {"train": str(source / "train"), "val": str(source / "val"), "batch_size": 2, "frames": 4, "size": 32}
    return VideoDataModule(**{**given, "stride": 1, "short_side": (36, 48), **arguments})


def missing(data, folder):
    return len(TableStore(folder).missing([m.path(row) for m in data.manifests().values() for row in range(len(m))]))


@pytest.fixture
def decoded(monkeypatch):
    """The paths of the files that are decoded whole."""
    paths, own = [], FullDecode.__iter__

    def counted(self):
        paths.append(self.file.path)
        return own(self)

    monkeypatch.setattr(FullDecode, "__iter__", counted)
    return paths


def test_a_fit_decodes_each_video_once_and_a_second_one_none(source, decoded):
    for number in (9, 9):
        data = data_of(source, index=str(source / "tables"))
        fit(Module(), train=data, max_epochs=2)
        assert len(decoded) == len(set(decoded)) == number
        assert missing(data, source / "tables") == 0


def test_without_an_index_nothing_is_kept(source, decoded, monkeypatch):
    monkeypatch.setenv("LIGHTNING_MULTIGRID_CACHE", str(source / "cache"))
    fit(Module(), train=data_of(source, index=False), max_epochs=2)
    assert len(decoded) > 9
    assert not (source / "cache").exists()


def test_a_cache_that_cannot_be_written_is_told_and_the_training_goes_on(source, monkeypatch):
    (source / "cache").write_text("")
    monkeypatch.setenv("LIGHTNING_MULTIGRID_CACHE", str(source / "cache"))
    with pytest.warns(UnkeptTablesWarning, match=r"can't be kept in .*Give another folder.*from their beginning"):
        host = fit(Module(), train=data_of(source), max_epochs=1)
    assert host.global_step == 3


def test_what_is_made_is_told_in_a_line(source, caplog):
    fit(Module(), train=data_of(source, index=str(source / "tables")), max_epochs=1)
    assert [record.message for record in caplog.records if "Frame tables of 9 videos made" in record.message]


def test_an_evaluation_makes_none_and_reads_by_those_that_are_there(source, decoded):
    from lightning.pytorch import Trainer

    data = data_of(source, index=str(source / "tables"))
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    trainer.validate(Module(), datamodule=data, verbose=False)
    assert len(decoded) == 3
    assert missing(data, source / "tables") == 9
    data.trainer = None
    data.prepare_data()  # in a loop of the user's own
    assert missing(data, source / "tables") == 0
    decoded.clear()
    trainer.validate(Module(), datamodule=data, verbose=False)
    assert decoded == []


def test_prepared_videos_need_none(source, monkeypatch):
    from lightning_multigrid.prepare.prepare_videos import prepare
    from tests.helpers.preparing import FAST

    data = data_of(source)
    for split, manifest in data.manifests().items():
        prepare(manifest, source / "out" / split, FAST)
    monkeypatch.setattr(index_before_fit, "open_store", None)
    fit(Module(), train=data_of(source, train=str(source / "out" / "train"), val=str(source / "out" / "val")))
