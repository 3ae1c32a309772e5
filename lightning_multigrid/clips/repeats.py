"""Repeated augmentation: each time a video is visited, it gives several clips. Skip this file unless you use `repeats`.

The clips of a visit come one after the other in the order of a pass and lie in one span of the video, so a dataset
can decode the video once for all of them (`read_clips`). Their requests share the seed `ClipRequest.visit`.
"""

from collections.abc import Iterator, Sized
from dataclasses import dataclass
from typing import Any, cast

from torch.utils.data import Dataset, DistributedSampler

from lightning_multigrid.loading import shuffled_order


@dataclass(frozen=True)
class RepeatedOrder:
    """The order of a pass in which each visit of one of `length` videos gives `repeats` clips, one after the other.

    A pass visits every video once, so it has `repeats` times as many clips as the dataset has videos.

    >>> RepeatedOrder(seed=1, length=3, repeats=2)(number=0)
    [1, 1, 2, 2, 0, 0]
    """

    seed: int
    length: int
    repeats: int
    may_repeat = visits = True

    def __call__(self, number: int) -> list[int]:
        return [index for index in shuffled_order(self.seed, number, self.length) for _ in range(self.repeats)]


class RepeatSampler(DistributedSampler[Any]):
    """A sampler that lets an ordinary (baseline) loader use `RepeatedOrder`.

    Args:
        dataset: The videos.
        repeats: Clips of each visit.
        num_replicas: Number of ranks. Each takes a contiguous part of the epoch.
        rank: This rank.
        seed: Seed of the order; equal on all ranks.
    """

    def __init__(
        self, dataset: Dataset[Any], repeats: int, *, num_replicas: int = 1, rank: int = 0, seed: int = 0
    ) -> None:
        clips = range(len(cast("Sized", dataset)) * repeats)  # their number is all that the base class asks for
        super().__init__(cast("Dataset[Any]", clips), num_replicas, rank, seed=seed)
        self.repeats = repeats

    def __iter__(self) -> Iterator[Any]:
        order = self.order_of_all_ranks(self.seed)(self.epoch)
        start = self.rank * self.num_samples
        # As in torch, the first indices come a second time where this makes the ranks equal.
        return iter([order[entry % len(order)] for entry in range(start, start + self.num_samples)])

    def order_of_all_ranks(self, seed: int) -> RepeatedOrder:
        """The order of the whole dataset; see `order_of`."""
        return RepeatedOrder(seed, len(cast("Sized", self.dataset)) // self.repeats, self.repeats)
