"""The order of an epoch, and the requests that carry each clip's shape to the workers.

The order is a pure function of (seed, epoch) over the whole dataset. A global mini-batch is a contiguous block of it,
cut into one contiguous piece per rank::

    order of the epoch    3 0 7 5 | 1 9 2 6 | 8 4 ...       2 ranks, 2 clips each
    rank 0                3 0       1 9       8 ...
    rank 1                    7 5       2 6     4 ...

so neither the number of workers nor of ranks changes what a global mini-batch holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

from torch.utils.data import (
    DistributedSampler,
    SequentialSampler,
)

from lightning_multigrid.loading.order import Order, RepeatedOrder
from lightning_multigrid.loading.randomness import derive_seed
from lightning_multigrid.loading.requests import ClipRequest, _same_visit
from lightning_multigrid.schedule import BatchShape, Clips, MultigridSchedule, Step

__all__ = ["MultigridSampler"]


class MultigridSampler(DistributedSampler[Any], SequentialSampler):
    """Yields the requests of one mini-batch after the other: what the plan of an epoch asks of this rank.

    With `pieces` above 1 it yields each mini-batch in about so many lists of requests, none of which parts a visit.

    The base classes are there for Lightning only, which leaves the sampler alone because of them: it does not inject
    its own into a `DistributedSampler`, nor replace a `SequentialSampler` under `overfit_batches`. Nothing of theirs is
    used.

    Args:
        schedule: The multigrid schedule.
        order: Indices of the dataset in the order of an epoch, as a function of the epoch; equal on all ranks.
        clips: Clips of this rank in an epoch, as `MultigridSchedule.steps` takes them.
        seed: Seed of the clips' augmentation.
        rank: This rank.
        world: Number of ranks.
        accumulate: Micro-batches per optimizer step.
        drop_last: Drop the last mini-batch of an epoch if it is incomplete.
    """

    def __init__(
        self,
        schedule: MultigridSchedule,
        order: Order,
        clips: Clips,
        *,
        seed: int,
        rank: int = 0,
        world: int = 1,
        accumulate: int = 1,
        drop_last: bool = False,
    ) -> None:
        self.schedule, self.order, self.clips, self.seed = schedule, order, clips, seed
        self.rank, self.world, self.accumulate = rank, world, accumulate
        self.pieces = 1
        self._start = (0, 0)
        # Lightning asks for an epoch's length many times; two epochs are in flight at its boundary.
        self.steps = lru_cache(maxsize=2)(lambda epoch: schedule.steps(epoch, clips, accumulate, drop_last))

    @property
    def baseline_clips(self) -> int:
        """Clips of a baseline mini-batch."""
        return self.schedule.baseline.shape.clips

    def set_epoch(self, epoch: int) -> None:
        """Start at the first mini-batch of an epoch, from 0."""
        self.seek(epoch, 0)

    def seek(self, epoch: int, batch: int) -> None:
        """Start at a mini-batch of an epoch, both from 0."""
        self._start = (epoch, batch)

    def __len__(self) -> int:
        return len(self.steps(self._start[0]))

    def __iter__(self) -> Iterator[list[ClipRequest]]:  # type: ignore[override]
        epoch, _ = self._start
        order, steps = self.order(epoch), self.coming
        required = (steps[-1].offset + steps[-1].shape.clips) * self.world if steps else 0
        if len(order) < required:
            raise ValueError(
                f"The sampler of the training data gave {len(order)} indices in epoch {epoch}; its length, by which "
                f"steps are planned, requires {required}. Make its `__len__` and `__iter__` agree."
            )
        for step in steps:
            yield from _cut(self.requests(epoch, step, order), self.pieces)

    @property
    def coming(self) -> Sequence[Step]:
        """The steps of an epoch from the one at which an iteration starts."""
        epoch, batch = self._start
        return self.steps(epoch)[batch:]

    def requests(self, epoch: int, step: Step, order: Sequence[int]) -> list[ClipRequest]:
        """The requests of this rank for a step of an epoch with the given order."""
        return [self._request(epoch, step.shape, order, place) for place in self.places(step)]

    def places(self, step: Step) -> range:
        """Places in an epoch's order that are this rank's in a step."""
        start = step.offset * self.world + self.rank * step.shape.clips
        return range(start, start + step.shape.clips)

    def _request(self, epoch: int, shape: BatchShape, order: Sequence[int], place: int) -> ClipRequest:
        seed = visit = derive_seed(self.seed, epoch, order[place])
        if not isinstance(self.order, RepeatedOrder):
            return ClipRequest(order[place], shape.frames, shape.size, seed)
        repeat = self.order.repeat(epoch, place)
        if repeat:
            seed = derive_seed(self.seed, epoch, order[place], repeat)
        return ClipRequest(order[place], shape.frames, shape.size, seed, visit)


def _cut(requests: list[ClipRequest], pieces: int) -> Iterator[list[ClipRequest]]:
    """Requests in nearly equal pieces, at most so many, that part no visit."""
    ends = {len(requests)}
    for piece in range(1, pieces):
        end = len(requests) * piece // pieces
        while 0 < end < len(requests) and _same_visit(requests[end - 1], requests[end]):
            end += 1
        ends.add(end)
    for start, end in pairwise(sorted({0, *ends})):
        yield requests[start:end]
