"""The requests of each mini-batch: the order of the epoch, cut by the steps of the schedule and among the ranks.

A global mini-batch is a contiguous block of the order, cut into one contiguous part per rank::

    order of the epoch    3 0 7 5 | 1 9 2 6 | 8 4 ...       2 ranks, 2 clips each
    rank 0                3 0       1 9       8 ...
    rank 1                    7 5       2 6     4 ...

So neither the number of workers nor the number of ranks changes the clips of a global mini-batch.
"""

import copy
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate as cumulative
from itertools import pairwise
from typing import Any

from torch.utils.data import DistributedSampler, SequentialSampler

from lightning_multigrid.loading.order import Order
from lightning_multigrid.loading.randomness import derive_seed
from lightning_multigrid.loading.requests import ClipRequest, visits
from lightning_multigrid.schedule import Place, Plan, Step


class MultigridSampler(DistributedSampler[Any], SequentialSampler):
    """Yields this rank's requests for each mini-batch of an epoch.

    The base classes only make Lightning leave the sampler alone: it does not wrap a `DistributedSampler` in its own,
    nor replace a `SequentialSampler` under `overfit_batches`. The sampler uses nothing of theirs.

    `order`, from an epoch to the indices of the dataset, is equal on all ranks.
    """

    def __init__(self, plan: Plan, order: Order, *, rank: int = 0) -> None:
        self.plan, self.order, self.rank = plan, order, rank
        self.pieces = 1  # about how many lists, of whole visits, a mini-batch is split into: a `MultigridLoader` says
        self._start = Place(0, 0)
        self._drawn: tuple[int, Sequence[int]] = (-1, ())  # the last epoch, and its order

    def set_epoch(self, epoch: int) -> None:
        """Sets the start to the first mini-batch of an epoch, from 0."""
        self.seek(Place(epoch, 0))

    def seek(self, place: Place) -> None:
        self._start = place

    def order_in(self, epoch: int) -> Sequence[int]:
        """The order of an epoch. That of the last one is not drawn again."""
        return self._drawn[1] if self._drawn[0] == epoch else self.order(epoch)

    def peek(self, epoch: int) -> "MultigridSampler":
        """Returns a sampler of an epoch's mini-batches, whose use doesn't change this one."""
        twin = copy.copy(self)
        twin.seek(Place(epoch, 0))
        return twin

    @property
    def remaining(self) -> Sequence[Step]:
        """The steps of the epoch from the start on."""
        return self.plan.epoch(self._start.epoch)[self._start.batch :]

    def __len__(self) -> int:
        return len(self.plan.epoch(self._start.epoch))

    def __iter__(self) -> Iterator[list[ClipRequest]]:  # type: ignore[override]
        epoch, world = self._start.epoch, self.plan.world
        order = self.order_in(epoch)
        self._drawn, steps, pieces = (epoch, order), self.remaining, self.pieces
        required = (steps[-1].offset + steps[-1].shape.clips) * world if steps else 0
        if self.plan.schedule.constant_shape and len(order) < required < len(order) + world:
            order = [*order, *order[: required - len(order)]]  # every clip is seen, as with Lightning's own sampler
        if len(order) < required:
            raise ValueError(
                f"The sampler of the training data gave {len(order)} indices in epoch {epoch}, but the steps are "
                f"planned by its length and need {required}. Make its `__len__` and `__iter__` agree."
            )
        for step in steps:
            yield from _cut(self.requests(epoch, step, order), pieces, turn=step.offset)

    def requests(self, epoch: int, step: Step, order: Sequence[int]) -> list[ClipRequest]:
        """This rank's requests for a step of an epoch with the given order."""
        requests = []
        for entry in self.entries(step):
            seed, visit = derive_seed(self.plan.seed, epoch, order[entry]), None
            if hasattr(self.order, "clip_seed"):  # of clips that share a visit
                seed, visit = self.order.clip_seed(self.plan.seed, epoch, order[entry], entry), seed
            requests.append(ClipRequest(order[entry], step.shape.frames, step.shape.size, seed, visit))
        return requests

    def entries(self, step: Step) -> range:
        """Which entries of the epoch's order are this rank's in a step."""
        start = step.offset * self.plan.world + self.rank * step.shape.clips
        return range(start, start + step.shape.clips)


def _cut(requests: list[ClipRequest], pieces: int, turn: int) -> Iterator[list[ClipRequest]]:
    """Yields the requests in at most `pieces` nearly equal lists that don't cut a visit.

    From one `turn` to the next the longer lists move on, so that all workers read equally many.
    """
    if pieces == 1:
        yield requests
        return
    ends = [0, *cumulative(map(len, visits(requests)))]
    even = ((len(requests) * piece + turn % pieces) // pieces for piece in range(1, pieces))
    cuts = {0, len(requests), *(ends[bisect_left(ends, end)] for end in even)}
    for start, end in pairwise(sorted(cuts)):
        yield requests[start:end]
