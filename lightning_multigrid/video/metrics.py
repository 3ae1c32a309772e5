"""Metrics that count each video once, over any number of ranks.

Lightning's sampler repeats videos so that all ranks have the same number, and a mini-batch of broken videos has a
substitute. So a metric takes the index of each video, and drops repeats when it is computed. It sorts rows by index, so
that the result is the same to the last bit on any number of ranks.

Legend: B videos, C classes.
"""

import math

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.functional.classification import binary_average_precision
from torchmetrics.utilities import dim_zero_cat

_UNNUMBERED = -1


class VideoMean(Metric):
    """Mean of a value per video, such as the loss; the metrics below keep other rows, and measure those."""

    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        self.add_state("videos", default=[], dist_reduce_fx="cat")
        self.add_state("rows", default=[], dist_reduce_fx="cat")

    def update(self, values: Tensor, videos: Tensor | None = None) -> None:
        """Takes a value of each of B videos, and the videos' indices; without indices every row counts."""
        new = torch.full((len(values),), _UNNUMBERED, device=values.device)
        self.videos.append(new if videos is None else videos)  # type: ignore[operator, union-attr]
        self.rows.append(values)  # type: ignore[operator, union-attr]

    def compute(self) -> Tensor:
        """Computes the metric of all videos; NaN if there is nothing to average."""
        videos, rows = dim_zero_cat(self.videos), dim_zero_cat(self.rows)  # type: ignore[arg-type]
        order = videos.argsort(stable=True)
        ordered = videos[order]
        first = torch.ones_like(ordered, dtype=torch.bool)
        first[1:] = ordered[1:] != ordered[:-1]
        return self._measure(rows[order[first | (ordered == _UNNUMBERED)]])

    def _measure(self, rows: Tensor) -> Tensor:
        return rows.mean()


class VideoAccuracy(VideoMean):
    """Share of the videos whose class is among the `top_k` most probable ones.

    Of equally probable classes the one with the smaller id comes first, and NaN is never right: a model that gives the
    same answer for everything scores as chance does, and one that diverged scores 0.
    """

    def __init__(self, top_k: int = 1) -> None:
        super().__init__()
        self.top_k = top_k

    def update(self, probabilities: Tensor, labels: Tensor, videos: Tensor | None = None) -> None:  # type: ignore[override]
        """Takes probabilities B x C, class ids B, and the videos' indices; without indices every row counts."""
        right, label = probabilities.gather(1, labels[:, None]), labels[:, None]
        classes = torch.arange(probabilities.shape[1], device=labels.device)
        after = (probabilities < right) | ((probabilities == right) & (classes >= label))
        super().update((~after).sum(dim=1), videos)

    def _measure(self, places: Tensor) -> Tensor:
        return (places < self.top_k).float().mean()


class MeanAveragePrecision(VideoMean):
    """Average precision of each class that has positives, averaged over those classes (the metric of Charades).

    A class without a positive has no average precision. It is left out, as in PySlowFast; torchmetrics' macro average
    would count it as 0. Without any positive the result is NaN. A probability that is NaN is as wrong as it can be.

    >>> metric = MeanAveragePrecision()
    >>> metric.update(torch.tensor([[0.9, 0.5], [0.2, 0.4]]), torch.tensor([[1, 0], [0, 0]]))
    >>> metric.compute()
    tensor(1.)
    """

    def update(self, probabilities: Tensor, labels: Tensor, videos: Tensor | None = None) -> None:  # type: ignore[override]
        """Takes probabilities and 0/1 labels, both B x C, and the videos' indices; without indices every row counts."""
        super().update(torch.stack([probabilities, labels.to(probabilities.dtype)], dim=1), videos)

    def _measure(self, rows: Tensor) -> Tensor:
        probabilities, labels = rows[:, 0], rows[:, 1].int()
        probabilities = torch.where(probabilities.isnan(), 1 - rows[:, 1], probabilities)
        precisions = [
            binary_average_precision(probabilities[:, index], labels[:, index], validate_args=False)
            for index in labels.any(dim=0).nonzero().flatten().tolist()
        ]
        return torch.stack(precisions).mean() if precisions else torch.tensor(math.nan, device=probabilities.device)
