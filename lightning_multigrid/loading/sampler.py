"""The requests of each mini-batch: the stream of passes over the data, cut by the plan and among the ranks.

A sampler of the script's own is asked anew when an epoch begins, and the stream goes on at its place in the new order.

A global mini-batch is a contiguous block of the stream, cut into one contiguous part per rank::

    stream     3 0 7 5 | 1 9 2 6 | 8 4 5 0 | ...       2 ranks, 2 clips each; passes over 10 clips
    rank 0     3 0       1 9       8 4
    rank 1         7 5       2 6       5 0             5 and 0 are of the next pass

So neither the number of workers nor the number of ranks changes the clips of a global mini-batch.
"""

from array import array
from collections.abc import Iterator, Sequence
from itertools import count, pairwise
from typing import Any

from torch.utils.data import DistributedSampler, SequentialSampler

from lightning_multigrid.loading.order import Order, shuffled_order
from lightning_multigrid.loading.randomness import derive_seed
from lightning_multigrid.loading.requests import ClipRequest, Requests
from lightning_multigrid.schedule import LongCycle, MultigridSchedule, Place, Plan, ShortCycle, Step

_KEPT = 3  # passes: a mini-batch may span two, and precise BatchNorm asks for others


class MultigridSampler(DistributedSampler[Any], SequentialSampler):
    """Yields this rank's requests for each mini-batch of an epoch, in one list or in several pieces.

    The base classes only make Lightning leave the sampler alone: it does not wrap a `DistributedSampler` in its own,
    nor replace a `SequentialSampler` under `overfit_batches`. The sampler uses nothing of theirs.

    `order`, from the number of a pass to the indices of the dataset, is equal on all ranks. `shift` is how many clips
    further in the stream the run is than its plan, as it continues one of other devices. `script` is the sampler of the
    script's loader. Like any sampler, it is told each epoch by Lightning.
    """

    def __init__(self, plan: Plan, order: Order, *, rank: int = 0, script: Any = None) -> None:
        self.plan, self.order, self.rank, self.shift, self._script = plan, order, rank, 0, script
        self.pieces = 1  # the lists that the requests of a mini-batch are split into: a `MultigridLoader` says
        self._start = Place(0, 0)
        self._drawn: dict[tuple[int, ...], Sequence[int]] = {}  # by their numbers

    def set_epoch(self, epoch: int) -> None:
        """Sets the start to the first mini-batch of an epoch, from 0."""
        if hasattr(self._script, "set_epoch"):
            self._script.set_epoch(epoch)
        self.seek(Place(epoch, 0))

    def seek(self, place: Place) -> None:
        """Sets the start; it yields the mini-batches from there to the end of the epoch."""
        self._start = place
        if getattr(self.order, "of_epochs", False):
            self._drawn = {}  # what was drawn before an epoch, for a look, may not be what the script wants in it

    def pass_of(self, *number: int) -> Sequence[int]:
        """The indices of a pass, in order. The last passes are not drawn again."""
        found = self._drawn.get(number)
        if found is None:
            indices = self.order(*number)
            found = indices if isinstance(indices, range) else array("q", indices)  # a list of ten million has 360 MB
            if len(found) < self.plan.clips:
                raise ValueError(
                    f"The sampler of the training data gave {len(found)} indices in a pass over the "
                    f"data, but the steps are planned by its length when `fit` began and need {self.plan.clips}. Let "
                    "it give as many as its `__len__` says, and the same number in all epochs."
                )
        others = [pair for pair in self._drawn.items() if pair[0] != number]
        self._drawn = dict([*others[1 - _KEPT :], (number, found)])  # a new one, as threads share it
        return found

    def number_of(self, step: Step) -> tuple[int, ...]:
        """The number of the pass whose samples are read next where a step begins."""
        return self._located(step.place.epoch, step.offset + self.shift)[0]

    def _located(self, epoch: int, entry: int) -> tuple[tuple[int, ...], int]:
        """The number of the pass of an entry of the stream, and the entry's place in the pass."""
        number, place = divmod(entry, self.plan.clips)
        return ((epoch, number) if getattr(self.order, "of_epochs", False) else (number,)), place

    @property
    def steps(self) -> Iterator[Step]:
        """The steps from the start to the end of its epoch."""
        epoch, first = self._start  # of now
        return (self.plan.step(Place(epoch, batch)) for batch in range(first, self.plan.batches_per_epoch))

    def __len__(self) -> int:
        return self.plan.batches_per_epoch

    def __iter__(self) -> Iterator[Requests]:  # type: ignore[override]
        return self._lists(self.steps, self.pieces)  # those of now, whatever the start is at the first `next`

    def _lists(self, steps: Iterator[Step], pieces: int) -> Iterator[Requests]:
        numbers = count()
        for step in steps:
            requests, turn = self.requests(step), step.offset // self.plan.world % pieces
            # From one turn to the next the longer lists move on, so that all workers read equally many.
            ends = {0, *((len(requests) * piece + turn) // pieces for piece in range(1, pieces)), len(requests)}
            for start, end in pairwise(sorted(ends)):
                part = Requests(requests[start:end])
                part.number = next(numbers)
                yield part

    def requests(self, step: Step) -> list[ClipRequest]:
        """This rank's requests for a step."""
        requests, left, shape = list[ClipRequest](), self.entries(step), step.shape
        while left:
            number, place = self._located(step.place.epoch, left.start)
            drawn, part = self.pass_of(*number), left[: self.plan.clips - place]
            left = left[len(part) :]
            for entry in range(place, place + len(part)):
                # By the place: an index may come several times in a pass.
                index, seed = drawn[entry], derive_seed(self.plan.seed, *number, entry)
                visit = derive_seed(self.plan.seed, *number, index) if getattr(self.order, "visits", False) else None
                requests.append(ClipRequest(index, shape.frames, shape.size, seed, visit))
        return requests

    def entries(self, step: Step) -> range:
        """Which entries of the stream are this rank's in a step."""
        start = step.offset + self.shift + self.rank * step.shape.clips
        return range(start, start + step.shape.clips)


def baseline_sampler(sampler: MultigridSampler, batches: int, number: Sequence[int], seed: int) -> MultigridSampler:
    """Samples up to `batches` mini-batches of the baseline's shape from a pass of a sampler, each index once.

    At least one; of fewer clips than it has, some come again. The order is another pure function of a seed and the
    `number` of the pass, and ranks share a global mini-batch as in training.
    """
    plan, baseline = sampler.plan, sampler.plan.schedule.baseline
    off = LongCycle(((1, 1),)), ShortCycle((1,))
    alone = MultigridSchedule(baseline, *off, epoch_factor=1, sub_batch=plan.schedule.sub_batch)
    of_step = baseline.shape.clips * plan.world

    def order(_: int) -> list[int]:
        seen = sampler.pass_of(*number)[: plan.clips]
        drawn = shuffled_order(derive_seed(seed, *number), 0, len(seen))
        return [seen[drawn[entry % len(seen)]] for entry in range(max(of_step, len(seen)))]

    clips = min(batches, max(1, plan.clips // of_step)) * of_step
    return MultigridSampler(Plan(alone, clips, derive_seed(seed, *number), plan.world), order, rank=sampler.rank)
