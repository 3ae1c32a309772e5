import csv
import os
import warnings
from pathlib import Path
from unittest import mock

import lightning as L
import numpy as np
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.loggers import CSVLogger
from torch import nn

from lightning_multigrid import PredictionWriter, VideoClassifier, VideoDataModule, Views
from lightning_multigrid.decode import BrokenVideosError
from tests.helpers.tiny import trainer
from tests.helpers.videos import write_video

CLASSES = [f"class, {letter}" for letter in "abcdefg"]
NAMES = ["3.mp4", "1.mp4", "broken.mp4", "0.mp4", "2.mp4"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Five videos in the order of the list, one of them broken; and training videos, whose folders name the classes."""
    folder = tmp_path_factory.mktemp("videos")
    for index in range(4):
        noise = np.random.default_rng(index).integers(0, 60, (12, 24, 32, 3))
        write_video(folder / f"{index}.mp4", (50 * index + noise).astype(np.uint8))
    (folder / "broken.mp4").write_text("no video")
    (folder / "list.csv").write_text("\n".join(NAMES))
    for name in CLASSES:
        (folder / "train" / name).mkdir(parents=True)
        (folder / "train" / name / "a.mp4").touch()
    return folder


class Colours(nn.Module):
    """Seven classes from the mean of each half of each channel."""

    def __init__(self):
        super().__init__()
        self.weights = nn.Parameter(torch.randn(6, 7, generator=torch.Generator().manual_seed(0)))

    def forward(self, clips):
        return nn.functional.adaptive_avg_pool3d(clips, (1, 1, 2)).flatten(1) @ self.weights


def make_data(folder, **options):
    shape = {"batch_size": 4, "frames": 4, "size": 16, "test_views": Views(clips=2)}
    return VideoDataModule(**{"predict": folder / "list.csv", **shape, **options})


def predict(folder, path, ranks=1, top_k=5, **options):
    host = trainer(PredictionWriter(str(path), top_k), devices=ranks, strategy="ddp_fork" if ranks > 1 else "auto")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Cannot read")
        warnings.filterwarnings("ignore", "This process .* is multi-threaded")
        module, data = VideoClassifier(Colours(), 7), make_data(folder, **options)
        returned = host.predict(module, data, return_predictions=ranks == 1)
    with open(path, newline="") as file:
        return returned, list(csv.reader(file))


def test_a_row_per_video_in_the_order_of_the_list(folder, tmp_path):
    returned, [header, *rows] = predict(folder, tmp_path / "out.csv")
    assert header == ["path", *(f"{name}_{place}" for place in range(1, 6) for name in ("class", "probability"))]
    assert [row[0] for row in rows] == [str(folder / name) for name in NAMES]
    assert rows.pop(NAMES.index("broken.mp4"))[1:] == [""] * 10
    for row, probabilities in zip(rows, torch.cat(returned), strict=True):
        ids = sorted(range(7), key=lambda index: -probabilities[index].item())[:5]
        assert [int(cell) for cell in row[1::2]] == ids
        assert [float(cell) for cell in row[2::2]] == pytest.approx(probabilities[ids].tolist(), rel=1e-5)
    assert len({row[1] for row in rows}) > 1


def test_classes_have_the_names_that_training_gives_them(folder, tmp_path):
    _, ids = predict(folder, tmp_path / "ids.csv")
    _, names = predict(folder, tmp_path / "names.csv", train=folder / "train")
    for with_ids, with_names in zip(ids[1:], names[1:], strict=True):
        assert with_names[1::2] == [cell and CLASSES[int(cell)] for cell in with_ids[1::2]]
        assert with_names[2::2] == with_ids[2::2]


def test_names_of_other_classes_are_not_written(folder, tmp_path):
    three = nn.Sequential(nn.AdaptiveAvgPool3d(1), nn.Flatten())
    host = trainer(PredictionWriter(str(tmp_path / "out.csv")))
    with pytest.raises(MisconfigurationException, match="tells 3 classes apart, but `train` has 7.*Leave `train` out"):
        host.predict(VideoClassifier(three, 3), make_data(folder, train=folder / "train"))


def test_of_few_classes_all_are_written(folder, tmp_path):
    _, rows = predict(folder, tmp_path / "out.csv", top_k=100)
    assert {len(row) for row in rows} == {1 + 2 * 7}
    for row in [row for row in rows[1:] if row[1]]:
        assert sum(map(float, row[2::2])) == pytest.approx(1, abs=1e-5)


@pytest.mark.skipif(not hasattr(os, "fork") or torch.cuda.is_available(), reason="forks this process")
def test_two_ranks_write_what_one_does(folder, tmp_path):
    tables = [predict(folder, tmp_path / f"{ranks}.csv", ranks=ranks)[1] for ranks in (1, 2)]
    assert tables[0] == tables[1]
    assert len(tables[0]) == 1 + len(NAMES)


def test_a_mini_batch_of_broken_videos_adds_their_rows_alone(folder, tmp_path):
    """With one video per mini-batch, another one stands in for the broken one, and would be written twice."""
    _, rows = predict(folder, tmp_path / "out.csv", batch_size=1)
    assert [row[0] for row in rows[1:]] == [str(folder / name) for name in NAMES]


def test_many_broken_videos_do_not_end_a_prediction_but_all_of_them_do(folder, tmp_path):
    (tmp_path / "list.csv").write_text(f"{folder}/broken.mp4\n{folder}/1.mp4\n{folder}/gone.mp4\n{folder}/gone.avi\n")
    _, rows = predict(folder, tmp_path / "out.csv", predict=tmp_path / "list.csv", batch_size=2)
    assert len(rows) == 1 + 4
    (tmp_path / "none.csv").write_text(f"{folder}/broken.mp4\n{folder}/gone.mp4\n")
    with pytest.raises(BrokenVideosError, match="None of 2 videos of 2 can be read"):
        predict(folder, tmp_path / "out.csv", predict=tmp_path / "none.csv", batch_size=1)


def test_the_file_is_replaced_as_a_whole_and_its_place_is_said(folder, tmp_path, caplog):
    path = tmp_path / "out.csv"
    predict(folder, path)
    before = path.read_text()
    assert f"Predictions: {path}" in caplog.text

    with mock.patch("os.replace", side_effect=OSError("no space left")), pytest.raises(OSError, match="no space left"):
        predict(folder, path, top_k=1)
    assert path.read_text() == before
    assert os.listdir(tmp_path) == ["out.csv"]
    predict(folder, path, top_k=1)
    assert path.read_text() != before


def test_stretches_of_a_video_are_told_apart(folder, tmp_path):
    (tmp_path / "list.csv").write_text(f"path,start,end\n{folder}/1.mp4,,0.2\n{folder}/1.mp4,0.2,\n{folder}/0.mp4,,\n")
    _, [header, *rows] = predict(folder, tmp_path / "out.csv", predict=tmp_path / "list.csv", top_k=2)
    assert header == ["path", "start", "end", "class_1", "probability_1", "class_2", "probability_2"]
    video = str(folder / "1.mp4")
    assert [row[:3] for row in rows] == [[video, "0.0", "0.2"], [video, "0.2", ""], [str(folder / "0.mp4"), "0.0", ""]]


def test_a_writer_starts_anew_with_each_prediction(folder, tmp_path):
    host = trainer(PredictionWriter(str(tmp_path / "out.csv")))
    (tmp_path / "one.csv").write_text(str(folder / "1.mp4"))
    for source in (folder / "list.csv", tmp_path / "one.csv"):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Cannot read")
            host.predict(VideoClassifier(Colours(), 7), make_data(folder, predict=source, batch_size=2))
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 2


@pytest.mark.parametrize("path", ["", "missing/out.csv"])
def test_a_place_that_cannot_be_written_to_is_refused_before_the_first_video(tmp_path, path):
    writer = PredictionWriter(str(tmp_path / path))
    with pytest.raises(MisconfigurationException, match=r"can't be written\. .*a `path` in a folder that may be"):
        trainer(writer).predict(VideoClassifier(Colours(), 7), torch.utils.data.DataLoader([torch.zeros(3, 1, 2, 2)]))


def test_data_without_paths_are_refused(tmp_path):
    host = trainer(PredictionWriter(str(tmp_path / "out.csv")))
    with pytest.raises(MisconfigurationException, match=r"is for a VideoDataModule, and got a Tensor"):
        host.predict(VideoClassifier(Colours(), 7), torch.utils.data.DataLoader([torch.zeros(3, 1, 2, 2)]))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("prediction", "given"), [(torch.zeros(2), r"\(2,\)"), (torch.zeros(4, 7), r"\(4, 7\)")])
def test_predictions_that_are_no_probabilities_are_refused(folder, tmp_path, prediction, given):
    class Other(L.LightningModule):
        def predict_step(self, batch, batch_idx):
            return prediction

    host = trainer(PredictionWriter(str(tmp_path / "out.csv")))
    with pytest.raises(MisconfigurationException, match=f"returned {given} for 2 videos; "):
        host.predict(Other(), make_data(folder))  # 4 views, of 2 videos


def test_no_classes_are_no_table():
    with pytest.raises(ValueError, match="`top_k` must be at least 1, got 0"):
        PredictionWriter(top_k=0)


def test_the_table_lies_beside_the_files_of_the_logger(folder, tmp_path):
    writer = PredictionWriter()
    host = L.Trainer(logger=CSVLogger(tmp_path), callbacks=[writer], enable_progress_bar=False, accelerator="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        host.predict(VideoClassifier(Colours(), 7), make_data(folder))
    assert writer.path == str(tmp_path / "lightning_logs" / "version_0" / "predictions.csv")
    assert len(Path(writer.path).read_text().splitlines()) == 1 + len(NAMES)
