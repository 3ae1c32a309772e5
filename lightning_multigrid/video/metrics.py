"""Metrics that count each video once, over any number of ranks.

Lightning's sampler repeats videos so that all ranks have the same number, and a mini-batch of broken videos keeps a
substitute. So a metric takes the index of each video, and drops repeats when it is computed over all ranks. It sorts
rows by index, so that the result is the same to the last bit on one rank and on several.

Legend: B videos, C classes.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.functional.classification import binary_average_precision
from torchmetrics.utilities import dim_zero_cat

_UNNUMBERED = -1


class VideoMetric(Metric):
    """The common part of the metrics: they keep rows, and compute over one row per video."""

    is_differentiable = False
    full_state_update = False
    kept: tuple[str, ...]
    """Names of the rows that a metric keeps beside the videos' indices."""
    _measure: Callable[..., Tensor]
    """Computes the metric from the rows of some videos, in the order of `kept`."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("videos", *self.kept):
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def compute(self) -> Tensor:
        """Computes the metric of all videos; NaN if there is nothing to average."""
        videos, *kept = (dim_zero_cat(getattr(self, name)) for name in ("videos", *self.kept))
        order = videos.argsort(stable=True)
        ordered = videos[order]
        first = torch.ones_like(ordered, dtype=torch.bool)
        first[1:] = ordered[1:] != ordered[:-1]
        counted = order[first | (ordered == _UNNUMBERED)]
        return self._measure(*(rows[counted] for rows in kept))

    def _keep(self, videos: Tensor | None, *kept: Tensor) -> None:
        new = torch.full((len(kept[0]),), _UNNUMBERED, device=kept[0].device)
        for name, rows in zip(("videos", *self.kept), (new if videos is None else videos, *kept), strict=True):
            getattr(self, name).append(rows)


class VideoMean(VideoMetric):
    """Mean of a value per video, such as the loss."""

    kept = ("values",)

    def update(self, values: Tensor, videos: Tensor | None = None) -> None:
        """Takes a value of each of B videos, and the videos' indices; without indices every row counts."""
        self._keep(videos, values)

    def _measure(self, values: Tensor) -> Tensor:
        return values.mean()


class VideoAccuracy(VideoMetric):
    """Share of the videos whose class is among the `top_k` most probable ones.

    Of equally probable classes the one with the smaller id comes first, and NaN is never right: a model that gives the
    same answer for everything scores as chance does, and one that diverged scores 0.
    """

    higher_is_better = True
    kept = ("places",)

    def __init__(self, top_k: int = 1) -> None:
        super().__init__()
        self.top_k = top_k

    def update(self, probabilities: Tensor, labels: Tensor, videos: Tensor | None = None) -> None:
        """Takes probabilities B x C, class ids B, and the videos' indices; without indices every row counts."""
        right, label = probabilities.gather(1, labels[:, None]), labels[:, None]
        classes = torch.arange(probabilities.shape[1], device=labels.device)
        behind = (probabilities < right) | ((probabilities == right) & (classes >= label))
        self._keep(videos, (~behind).sum(dim=1))

    def _measure(self, places: Tensor) -> Tensor:
        return (places < self.top_k).float().mean()


class MeanAveragePrecision(VideoMetric):
    """Average precision of each class that has positives, averaged over those classes (the metric of Charades).

    A class without a positive has no average precision. It is left out, as in PySlowFast; torchmetrics' macro average
    would count it as 0. Without any positive the result is NaN.

    >>> metric = MeanAveragePrecision()
    >>> metric.update(torch.tensor([[0.9, 0.5], [0.2, 0.4]]), torch.tensor([[1, 0], [0, 0]]))
    >>> metric.compute()
    tensor(1.)
    """

    higher_is_better = True
    kept = ("probabilities", "labels")

    def update(self, probabilities: Tensor, labels: Tensor, videos: Tensor | None = None) -> None:
        """Takes probabilities and 0/1 labels, both B x C, and the videos' indices; without indices every row counts."""
        self._keep(videos, probabilities, labels)

    def _measure(self, probabilities: Tensor, labels: Tensor) -> Tensor:
        labels = labels.int()
        precisions = [
            binary_average_precision(probabilities[:, index], labels[:, index], validate_args=False)
            for index in labels.any(dim=0).nonzero().flatten().tolist()
        ]
        return torch.stack(precisions).mean() if precisions else torch.tensor(math.nan, device=probabilities.device)
