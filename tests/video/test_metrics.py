import os

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torchmetrics import SumMetric
from torchmetrics.classification import MulticlassAccuracy

from lightning_multigrid import VideoClassifier, VideoDataModule, Views
from lightning_multigrid.sources import VideoList
from lightning_multigrid.video.metrics import MeanAveragePrecision, VideoAccuracy, VideoMean
from tests.helpers.processes import ddp_of_this_process
from tests.helpers.tiny import trainer
from tests.helpers.videos import write_video


def scores(rows=40, classes=9, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, classes, generator=generator)
    return logits.softmax(dim=1), torch.randint(0, classes, (rows,), generator=generator)


@pytest.mark.parametrize("top_k", [1, 5])
def test_accuracy_is_that_of_torchmetrics(top_k):
    probabilities, labels = scores()
    ours, theirs = VideoAccuracy(top_k), MulticlassAccuracy(9, top_k=top_k, average="micro")
    for part in (slice(0, 3), slice(3, 40)):
        ours.update(probabilities[part], labels[part])
        theirs.update(probabilities[part], labels[part])
    assert 0 < ours.compute() == theirs.compute() < 1


def make_metrics():
    return [VideoMean(), VideoAccuracy(), VideoAccuracy(top_k=2), MeanAveragePrecision()]


def update(metrics, rows, videos, multi_hot):
    """Gives rows of the same scores to each metric, in one mini-batch."""
    probabilities, labels = scores()
    numbers = None if videos is None else torch.tensor(videos)
    mean, *accuracies, precision = metrics
    mean.update(probabilities[rows, 0], numbers)
    for metric in accuracies:
        metric.update(probabilities[rows], labels[rows], numbers)
    precision.update(probabilities[rows], multi_hot[rows], numbers)


def test_of_no_positives_and_of_no_videos_there_is_no_mean():
    metric = MeanAveragePrecision()
    metric.update(torch.rand(4, 3), torch.zeros(4, 3))
    assert metric.compute().isnan()


HOT = torch.randint(0, 2, (40, 9), generator=torch.Generator().manual_seed(1))


def test_repeated_videos_count_once():
    once, repeated = make_metrics(), make_metrics()
    update(once, list(range(12)), list(range(12)), HOT)
    for rows in ([0, 1, 2, 3], [11, 10, 9], [3, 4, 5, 6, 0], [8, 7, 8]):
        update(repeated, rows, rows, HOT)
    assert [metric.compute() for metric in repeated] == [metric.compute() for metric in once]


def test_the_order_of_videos_changes_no_bit():
    results = set()
    for seed in range(5):
        metrics, order = make_metrics(), torch.randperm(40, generator=torch.Generator().manual_seed(seed)).tolist()
        update(metrics, order[:7], order[:7], HOT)
        update(metrics, order[7:], order[7:], HOT)
        results.add(tuple(metric.compute().item() for metric in metrics))
    assert len(results) == 1


def test_without_indices_every_row_counts():
    numbered, unnumbered = make_metrics(), make_metrics()
    update(numbered, [0, 1, 2, 1], [0, 1, 2, 3], HOT)
    for rows in ([0, 1], [2, 1]):
        update(unnumbered, rows, None, HOT)
    assert [metric.compute() for metric in unnumbered] == [metric.compute() for metric in numbered]


def test_of_equally_probable_classes_the_first_is_named():
    probabilities = torch.tensor([[0.4, 0.4, 0.2]])
    for label, right in enumerate((1, 0, 0)):
        metric = VideoAccuracy()
        metric.update(probabilities, torch.tensor([label]))
        assert metric.compute() == right


def test_a_model_that_diverged_is_never_right():
    metric = VideoAccuracy(top_k=5)
    metric.update(torch.full((10, 10), torch.nan), torch.arange(10))
    assert metric.compute() == 0


def test_average_precision_of_a_model_that_diverged_is_the_worst_in_any_order():
    """Of one positive among three, that is a third."""
    for rows in ([0, 1, 2], [2, 0, 1]):
        metric = MeanAveragePrecision()
        metric.update(torch.full((3, 3), torch.nan), torch.eye(3)[rows])
        assert metric.compute() == pytest.approx(1 / 3)


# --- One rank and two, on videos ---

GRAYS = [0, 40, 80, 120, 160, 200, 240, 20, 60]
"""9 videos on 2 ranks, in mini-batches of one: the second rank repeats one."""
BROKEN = 4


class Thermometer(nn.Module):
    """Class c of 6 where the mean gray is c sixths of the range. Noise makes each view score a little differently."""

    def __init__(self):
        super().__init__()
        self.levels = nn.Parameter(torch.linspace(0, 5 / 6, 6))

    def forward(self, clips):
        gray = clips.mean(dim=(1, 2, 3, 4)) * 0.225 + 0.45
        return -50 * (gray[:, None] - self.levels) ** 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    rows, several = [], []
    for index, gray in enumerate(GRAYS):
        noise = np.random.default_rng(index).integers(0, 15, (12, 24, 32, 3))
        write_video(folder / f"{index}.mp4", (gray + noise).astype(np.uint8))
        # Every third is labelled wrongly, the first one, too: counting it twice shows.
        label = (round((gray + 7) * 6 / 255) + (index % 3 == 0)) % 6
        rows.append(f"{index}.mp4 {label}\n")
        several.append(f'{index}.mp4 "{label};{index % 4}"\n')
    (folder / f"{BROKEN}.mp4").write_text("no video")
    (folder / "list.csv").write_text("".join(rows))
    (folder / "several.csv").write_text("".join(several))
    return folder


def evaluate(folder, ranks, stage, multi_label):
    source = VideoList(folder / ("several.csv" if multi_label else "list.csv"), multi_label=multi_label)
    split = {{"validate": "val", "test": "test"}[stage]: source}
    small = {"num_classes": 6, "batch_size": 2, "frames": 4, "size": 16}
    data = VideoDataModule(**split, test_views=Views(clips=3, crops=3), **small)
    options = {"loss": "bce", "view_fusion": "max"} if multi_label else {}
    module = VideoClassifier(Thermometer(), 6, **options)
    host = trainer(devices=ranks, strategy="ddp_fork" if ranks > 1 else "auto")
    [logged] = getattr(host, stage)(module, datamodule=data, verbose=False)
    return logged


@pytest.mark.skipif(not hasattr(os, "fork") or torch.cuda.is_available(), reason="forks this process")
@pytest.mark.filterwarnings("ignore::lightning_multigrid.video.broken_videos.BrokenVideoWarning")
@pytest.mark.parametrize(("stage", "multi_label"), [("test", False), ("test", True), ("validate", False)])
def test_two_ranks_measure_what_one_does(folder, stage, multi_label):
    alone, together = (evaluate(folder, ranks, stage, multi_label) for ranks in (1, 2))
    assert together == alone
    if not multi_label:
        # Of 9 videos one is broken, and 0, 3 and 6 are labelled wrongly.
        assert alone[f"{'test' if stage == 'test' else 'val'}/top1"] == 5 / 8


class Counting(LightningModule):
    """A module of one's own, whose BatchNorm has DDP send its buffers in each forward."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.BatchNorm3d(3), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(3, 6))
        self.videos = SumMetric()

    def training_step(self, batch, batch_idx):
        clips, labels = batch
        return nn.functional.cross_entropy(self.net(clips), labels)

    def validation_step(self, batch, batch_idx):
        clips, _ = batch
        self.videos(self.net(clips).new_ones(len(clips)))
        self.log("videos", self.videos, on_epoch=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.skipif(not hasattr(os, "fork") or torch.cuda.is_available(), reason="forks this process")
@pytest.mark.parametrize("videos", [5, 6])
def test_any_metric_counts_each_video_once_or_a_warning_says_that_it_does_not(folder, videos):
    rows = [row for row in (folder / "list.csv").read_text().splitlines() if not row.startswith(f"{BROKEN}.")]
    (folder / "some.csv").write_text("\n".join(rows[:videos]))
    data = VideoDataModule(folder / "some.csv", folder / "some.csv", batch_size=2, frames=4, size=16)
    # The warning is an error here, which only a fork has. It ends the fork before its first step.
    host = trainer(devices=2, strategy="ddp_fork" if videos == 5 else ddp_of_this_process(), max_epochs=1)
    if videos == 5:
        with pytest.raises(Exception, match=r"5 videos can't be cut into equally many for 2 devices, so some are eval"):
            host.fit(Counting(), datamodule=data)
        return
    host.fit(Counting(), datamodule=data)
    assert host.callback_metrics["videos"] == 6
