"""The order of a pass over the data: a pure function of (seed, pass), the same on every rank."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler, SequentialSampler

from lightning_multigrid.loading.randomness import derive_seed, own_generators, reseed_own, seeded

# From the number of a pass to the indices of the dataset, in order. One with `of_epochs` takes the number of an epoch
# and that of the pass.
Order = Callable[..., Sequence[int]]


def shuffled_order(seed: int, number: int, length: int) -> list[int]:
    """The indices of a dataset in the shuffled order of a pass.

    >>> sorted(shuffled_order(seed=0, number=1, length=4)), shuffled_order(0, 1, 8) == shuffled_order(0, 2, 8)
    ([0, 1, 2, 3], False)
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, number))
    return torch.randperm(length, generator=generator).tolist()


@dataclass(frozen=True)
class SampledOrder:
    """The order of a sampler of the user's own, of `length` indices, which is asked anew when an epoch begins.

    It is drawn from random states, global and the sampler's own, that are set by the seed, the epoch, and the number of
    the pass, both from 0. So whatever a script tells its sampler when an epoch begins holds in it.
    """

    sampler: Any
    seed: int
    length: int
    of_epochs = True

    def __call__(self, epoch: int, number: int = 0) -> list[int]:
        seed = derive_seed(self.seed, epoch, number)
        reseed_own(own_generators(self.sampler), seed)
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)
        with seeded(seed):
            keys = list(islice(self.sampler, self.length))  # it may have no end
        for key in keys:
            if not hasattr(key, "__index__"):
                raise TypeError(
                    f"{type(self.sampler).__name__} gives the dataset {key!r:.60}, of type {type(key).__name__}; an "
                    "index from 0 is required, by which clips are counted and seeded. Let the sampler give integers, "
                    "and let `__getitem__` of the dataset look up or draw the rest."
                )
        return keys


class OrderSampler(DistributedSampler[Any]):
    """A sampler that lets an ordinary (baseline) loader use an order of all ranks. Each takes a contiguous part of it.

    `order` makes the order, of `length` indices, from a seed, which is equal on all ranks; see `order_of`.
    """

    def __init__(
        self, order: Callable[[int], Order], length: int, *, num_replicas: int = 1, rank: int = 0, seed: int = 0
    ) -> None:
        # The number of indices is all that the base class asks of a dataset.
        super().__init__(cast("Dataset[Any]", range(length)), num_replicas, rank, seed=seed)
        self.order_of_all_ranks = order

    def __iter__(self) -> Iterator[Any]:
        order = self.order_of_all_ranks(self.seed)(self.epoch)
        start = self.rank * self.num_samples
        # As in torch, the first indices come a second time where this makes the ranks equal.
        return iter([order[entry % len(order)] for entry in range(start, start + self.num_samples)])


def first_indices(loader: DataLoader[Any], number: int = 100) -> list[int]:
    """The first indices that a sampler of the user's own gives; those of the dataset with torch's samplers.

    A sampler may leave some out, such as damaged videos or those of other folds. It is a copy that is asked.
    """
    sampler = loader.sampler
    if not isinstance(order_of(loader, seed=0), SampledOrder):
        return [*range(min(number, len(loader.dataset)))]  # type: ignore[arg-type]
    with seeded(0):
        return [*islice(copy.copy(sampler), number)]


def order_of(loader: DataLoader[Any], seed: int) -> Order:
    """The order in which a user's loader goes through its dataset, the same on every rank and after every restart."""
    sampler, length = loader.sampler, len(loader.dataset)  # type: ignore[arg-type]
    if hasattr(sampler, "order_of_all_ranks"):  # such as an `OrderSampler`
        return sampler.order_of_all_ranks(seed)  # type: ignore[no-any-return]
    if isinstance(sampler, DistributedSampler) and type(sampler).__iter__ is not DistributedSampler.__iter__:
        raise ValueError(
            f"The training data has a {type(sampler).__name__}, a DistributedSampler with an order of its own; the "
            "order of all ranks is required. Give the DataLoader a Sampler of all indices: each rank gets its part."
        )
    shuffles = type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == length
    if shuffles or (isinstance(sampler, DistributedSampler) and sampler.shuffle):
        return lambda number: shuffled_order(seed, number, length)
    if type(sampler) is SequentialSampler or isinstance(sampler, DistributedSampler):
        return lambda number: range(length)
    return SampledOrder(sampler, seed, len(sampler))  # type: ignore[arg-type]
