"""The order in which an epoch visits the dataset, as a pure function of (seed, epoch)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
)

from lightning_multigrid.loading.randomness import derive_seed, seeded

__all__ = ["RepeatSampler", "RepeatedOrder", "epoch_order", "order_of", "repeated_order"]

Order = Callable[[int], Sequence[int]]


def epoch_order(seed: int, epoch: int, length: int) -> list[int]:
    """The indices of a dataset in the shuffled order of an epoch.

    >>> sorted(epoch_order(seed=0, epoch=1, length=4)), epoch_order(0, 1, 8) == epoch_order(0, 2, 8)
    ([0, 1, 2, 3], False)
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, epoch))
    order: list[int] = torch.randperm(length, generator=generator).tolist()
    return order


def repeated_order(seed: int, epoch: int, length: int, repeats: int) -> list[int]:
    """The indices of an epoch in which each video that is visited gives `repeats` clips, one after the other.

    An epoch has as many clips as the dataset has videos, so it visits a part of them, and `repeats` epochs visit each
    video once. Where `repeats` does not divide the dataset, the visit at an epoch's end goes on in the next.

    >>> [repeated_order(seed=1, epoch=epoch, length=3, repeats=2) for epoch in (0, 1)]
    [[1, 1, 2], [2, 0, 0]]
    """
    cycle, part = divmod(epoch, repeats)
    order = epoch_order(seed, cycle, length)
    return [order[place // repeats] for place in range(part * length, (part + 1) * length)]


@dataclass(frozen=True)
class RepeatedOrder:
    """`repeated_order` as a function of the epoch.

    Args:
        seed: Of the order.
        length: Number of videos.
        repeats: Clips of each visit.
    """

    seed: int
    length: int
    repeats: int

    def __call__(self, epoch: int) -> list[int]:
        return repeated_order(self.seed, epoch, self.length, self.repeats)

    def repeat(self, epoch: int, place: int) -> int:
        """Which clip of its visit stands at a place of an epoch, from 0."""
        return (epoch % self.repeats * self.length + place) % self.repeats


class RepeatSampler(DistributedSampler[Any]):
    """The order in which a baseline's loader visits videos that give several clips each; see `repeated_order`.

    Args:
        dataset: The videos.
        repeats: Clips of each visit.
        num_replicas: Number of ranks. Each has a contiguous part of the epoch.
        rank: This rank.
        seed: Of the order; equal on all ranks.
    """

    def __init__(
        self, dataset: Dataset[Any], repeats: int, *, num_replicas: int = 1, rank: int = 0, seed: int = 0
    ) -> None:
        super().__init__(dataset, num_replicas, rank, seed=seed)
        self.repeats = repeats

    def __iter__(self) -> Iterator[Any]:
        length = len(cast("Sized", self.dataset))
        order = repeated_order(self.seed, self.epoch, length, self.repeats)
        start = self.rank * self.num_samples
        # As torch does it, the ranks are made equal by some of the first ones once more.
        return iter([order[place % length] for place in range(start, start + self.num_samples)])


def order_of(loader: DataLoader[Any], seed: int) -> Order:
    """The order in which a user's loader visits its dataset, as a pure function of the epoch.

    A loader that shuffles, or does not, is reproduced by our own order. Any other sampler is asked for the indices of
    the epoch, with torch's random state set by (seed, epoch), so that every rank and every restart gets the same ones.

    Raises:
        ValueError: If the sampler shares out an order of its own among the ranks, which no rank can see as a whole.
    """
    sampler, length = loader.sampler, len(loader.dataset)  # type: ignore[arg-type]
    if isinstance(sampler, RepeatSampler):
        return RepeatedOrder(seed, length, sampler.repeats)
    if isinstance(sampler, DistributedSampler) and type(sampler).__iter__ is not DistributedSampler.__iter__:
        raise ValueError(
            f"The training data has a {type(sampler).__name__}, a DistributedSampler with an order of its own; the "
            "order of all ranks is required. Give the DataLoader a Sampler of all indices: each rank gets its part."
        )
    shuffles = type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == length
    if shuffles or (isinstance(sampler, DistributedSampler) and sampler.shuffle):
        return lambda epoch: epoch_order(seed, epoch, length)
    if type(sampler) is SequentialSampler or isinstance(sampler, DistributedSampler):
        return lambda epoch: range(length)

    def drawn(epoch: int) -> list[int]:
        drawn_seed = derive_seed(seed, epoch)
        own = getattr(sampler, "generator", None)  # torch's samplers may have one of their own
        if own is not None:
            own.manual_seed(drawn_seed)
        with seeded(drawn_seed):
            return list(sampler)

    return drawn
