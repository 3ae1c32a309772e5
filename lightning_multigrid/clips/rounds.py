"""Evaluation on several devices: each video once, and all devices take equally many steps."""

from collections.abc import Iterator, Sized
from math import ceil
from typing import Any, cast

from torch.utils.data import Dataset, DistributedSampler


class Rounds(DistributedSampler[Any]):
    """The mini-batches of a rank, as lists of indices; the mini-batches of different ranks may differ in size.

    Equally many, because DDP sends buffers to all ranks in each forward. That needs as many videos on each rank as
    there are mini-batches; if a rank has fewer, it repeats its last one.

    Args:
        dataset: The videos.
        batch_size: The most videos of a mini-batch.
        num_replicas: Number of ranks.
        rank: This rank. It has every `num_replicas`-th video.

    >>> [list(Rounds([0] * 5, batch_size=2, num_replicas=2, rank=rank)) for rank in (0, 1)]
    [[[0], [2, 4]], [[1], [3]]]
    """

    def __init__(self, dataset: Any, batch_size: int, num_replicas: int, rank: int) -> None:
        super().__init__(cast("Dataset[Any]", dataset), num_replicas, rank, shuffle=False)
        self.rounds = ceil(self.num_samples / batch_size)

    @property
    def repeats(self) -> bool:
        """Whether a rank has fewer videos than mini-batches."""
        return len(cast("Sized", self.dataset)) // self.num_replicas < self.rounds

    def __len__(self) -> int:
        return self.rounds

    def __iter__(self) -> Iterator[Any]:
        total = len(cast("Sized", self.dataset))
        own = list(range(self.rank, total, self.num_replicas)) or [self.rank % total]
        own += own[-1:] * (self.rounds - len(own))
        for number in range(self.rounds):
            yield own[len(own) * number // self.rounds : len(own) * (number + 1) // self.rounds]
