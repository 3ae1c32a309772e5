"""The requests of each mini-batch: the stream of passes over the data, cut by the plan and among the ranks.

A global mini-batch is a contiguous block of the stream, cut into one contiguous part per rank::

    stream     3 0 7 5 | 1 9 2 6 | 8 4 5 0 | ...       2 ranks, 2 clips each; passes over 10 clips
    rank 0     3 0       1 9       8 4
    rank 1         7 5       2 6       5 0             5 and 0 are of the next pass

So neither the number of workers nor the number of ranks changes the clips of a global mini-batch.
"""

import copy
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate as cumulative
from itertools import pairwise
from typing import Any

from torch.utils.data import DistributedSampler, SequentialSampler

from lightning_multigrid.loading.order import Order, Pass, draw_pass
from lightning_multigrid.loading.randomness import derive_seed
from lightning_multigrid.loading.requests import ClipRequest, visits
from lightning_multigrid.schedule import Place, Plan, Step

_KEPT = 3  # passes: a mini-batch may span two, and precise BatchNorm asks for others


class MultigridSampler(DistributedSampler[Any], SequentialSampler):
    """Yields this rank's requests for each mini-batch of an epoch.

    The base classes only make Lightning leave the sampler alone: it does not wrap a `DistributedSampler` in its own,
    nor replace a `SequentialSampler` under `overfit_batches`. The sampler uses nothing of theirs.

    `order`, from the number of a pass to the indices of the dataset, is equal on all ranks. `shift` is how many clips
    further in the stream the run is than its plan, as it continues one of other devices.
    """

    def __init__(self, plan: Plan, order: Order, *, rank: int = 0) -> None:
        self.plan, self.order, self.rank, self.shift = plan, order, rank, 0
        self.pieces = 1  # about how many lists, of whole visits, a mini-batch is split into: a `MultigridLoader` says
        self._start = Place(0, 0)
        self._end: int | None = None  # the epoch after the last one that it yields; None for that after the start's
        self._drawn: dict[int, Pass] = {}  # by their numbers

    def set_epoch(self, epoch: int) -> None:
        """Sets the start to the first mini-batch of an epoch, from 0."""
        self.seek(Place(epoch, 0))

    def seek(self, place: Place, end: int | None = None) -> None:
        """Sets the start; it yields the mini-batches from there to the end of the epoch, or to that of epoch `end`."""
        self._start, self._end = place, end

    def pass_of(self, number: int) -> Pass:
        """The pass of a number. The last ones are not drawn again."""
        found = self._drawn.get(number)
        if found is None:
            found = draw_pass(self.order, number)
            if len(found.indices) < self.plan.clips:
                raise ValueError(
                    f"The sampler of the training data gave {len(found.indices)} indices in pass {number} over the "
                    f"data, but the steps are planned by its length and need {self.plan.clips}. Make its `__len__` and "
                    "`__iter__` agree."
                )
        others = [pair for pair in self._drawn.items() if pair[0] != number]
        self._drawn = dict([*others[1 - _KEPT :], (number, found)])  # a new one, as `peek` shares it
        return found

    def current_pass(self, step: Step) -> int:
        """The number of the pass in which a step begins."""
        return (step.offset + self.shift) // self.plan.clips

    def peek(self, epoch: int) -> "MultigridSampler":
        """Returns a sampler of an epoch's mini-batches, whose use doesn't change this one."""
        twin = copy.copy(self)
        twin.seek(Place(epoch, 0))
        return twin

    @property
    def steps(self) -> Iterator[Step]:
        """The steps from the start on."""
        return self._steps(self._start, self._start.epoch + 1 if self._end is None else self._end)

    def _steps(self, start: Place, end: int) -> Iterator[Step]:
        for epoch in range(start.epoch, end):
            for batch in range(start.batch if epoch == start.epoch else 0, self.plan.batches_per_epoch):
                yield self.plan.step(Place(epoch, batch))

    def __len__(self) -> int:
        return self.plan.batches_per_epoch

    def __iter__(self) -> Iterator[list[ClipRequest]]:  # type: ignore[override]
        return self._lists(self.steps, self.pieces)  # those of now, whatever the start is at the first `next`

    def _lists(self, steps: Iterator[Step], pieces: int) -> Iterator[list[ClipRequest]]:
        for step in steps:
            yield from _cut(self.requests(step), pieces, turn=step.offset // self.plan.world)

    def requests(self, step: Step) -> list[ClipRequest]:
        """This rank's requests for a step."""
        requests, left, shape = list[ClipRequest](), self.entries(step), step.shape
        while left:
            number, place = divmod(left.start, self.plan.clips)
            drawn, part = self.pass_of(number), left[: self.plan.clips - place]
            left = left[len(part) :]
            for entry in range(place, place + len(part)):
                index, before = drawn.indices[entry], drawn.before[entry] if drawn.before else 0
                # The first clip of an index has the seed that it has where no index comes twice.
                first = derive_seed(self.plan.seed, number, index)
                seed = derive_seed(self.plan.seed, number, index, before) if before else first
                visit = first if getattr(self.order, "visits", False) else None
                requests.append(ClipRequest(index, shape.frames, shape.size, seed, visit))
        return requests

    def entries(self, step: Step) -> range:
        """Which entries of the stream are this rank's in a step."""
        start = step.offset + self.shift + self.rank * step.shape.clips
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
