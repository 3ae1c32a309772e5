"""A data module with an epoch of a few of its videos, to see how fast a training is."""

import math
from collections.abc import Sequence, Sized
from copy import copy
from dataclasses import dataclass
from typing import Any, cast

from torch.utils.data import DataLoader

from lightning_multigrid.loading import RepeatedOrder, same_loader
from lightning_multigrid.video.datamodule import VideoDataModule


def few_videos(data: VideoDataModule, videos: int, clips: int, workers: int) -> VideoDataModule:
    """Returns data that trains on so many videos, again and again, for so many clips in an epoch.

    It loads them as `data` does, by `workers` processes at most.
    """
    few = copy(data)
    few.num_workers = min(data.num_workers, workers)

    def train_dataloader() -> DataLoader[Any]:
        loader = type(few).train_dataloader(few)
        number = len(cast("Sized", loader.dataset))
        chosen = range(0, number, max(1, number // videos))[:videos]
        return same_loader(loader, sampler=_Visits(_Order(0, math.ceil(clips / few.repeats), few.repeats, chosen)))

    few.train_dataloader = train_dataloader  # type: ignore[method-assign]
    return few


@dataclass(frozen=True)
class _Order(RepeatedOrder):
    """Visits a few videos of a dataset in turn, `length` times in all."""

    videos: Sequence[int]

    def __call__(self, epoch: int) -> list[int]:
        return [self.videos[visit % len(self.videos)] for visit in range(self.length) for _ in range(self.repeats)]


class _Visits(list[int]):
    """Such an order, as a loader takes it."""

    def __init__(self, order: _Order) -> None:
        super().__init__(order(0))
        self._order = order

    def order_of_all_ranks(self, seed: int) -> _Order:
        return self._order
