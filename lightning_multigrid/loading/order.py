"""The order of an epoch: a pure function of (seed, epoch) over the whole dataset, the same on every rank."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from lightning_multigrid.loading.randomness import derive_seed, own_generators, reseed_own, seeded

# From an epoch to the indices of the dataset, in order.
Order = Callable[[int], Sequence[int]]


def epoch_order(seed: int, epoch: int, length: int) -> list[int]:
    """The indices of a dataset in the shuffled order of an epoch.

    >>> sorted(epoch_order(seed=0, epoch=1, length=4)), epoch_order(0, 1, 8) == epoch_order(0, 2, 8)
    ([0, 1, 2, 3], False)
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, epoch))
    return torch.randperm(length, generator=generator).tolist()


def order_of(loader: DataLoader[Any], seed: int) -> Order:
    """The order in which a user's loader goes through its dataset, the same on every rank and after every restart.

    A sampler of the user's own draws it from random states, global and its own, that are set by (seed, epoch).
    """
    sampler, length = loader.sampler, len(loader.dataset)  # type: ignore[arg-type]
    if hasattr(sampler, "order_of_all_ranks"):  # such as `clips.RepeatSampler`
        return sampler.order_of_all_ranks(seed)  # type: ignore[no-any-return]
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
        reseed_own(own_generators(sampler), drawn_seed)
        if hasattr(sampler, "set_epoch"):  # Lightning tells it only the loader that it iterates
            sampler.set_epoch(epoch)
        with seeded(drawn_seed):
            return list(sampler)

    return drawn
