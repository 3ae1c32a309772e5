"""The order of an epoch, and the requests that carry each clip's shape to the workers.

The order is a pure function of (seed, epoch) over the whole dataset. A global mini-batch is a contiguous block of it,
cut into one contiguous piece per rank::

    order of the epoch    3 0 7 5 | 1 9 2 6 | 8 4 ...       2 ranks, 2 clips each
    rank 0                3 0       1 9       8 ...
    rank 1                    7 5       2 6     4 ...

so neither the number of workers nor of ranks changes what a global mini-batch holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
)

from lightning_multigrid.grid import BatchShape
from lightning_multigrid.randomness import derive_seed, seeded
from lightning_multigrid.schedule import Clips, MultigridSchedule, Step

__all__ = [
    "ClipDataset",
    "ClipRequest",
    "MultigridSampler",
    "RepeatSampler",
    "RepeatedOrder",
    "SpanDataset",
    "epoch_order",
    "order_of",
    "read_clips",
    "repeated_order",
    "visits",
]

Order = Callable[[int], Sequence[int]]


@dataclass(frozen=True)
class ClipRequest:
    """One clip of a mini-batch, as it travels to a worker.

    Args:
        index: Index of the video in the dataset.
        frames: Frames of the clip.
        size: Height and width of the clip, in pixels.
        seed: Seed of everything that is drawn for this clip; a pure function of (seed, epoch, index), and of the place
            among the clips of a visit.
        visit: Seed of the span that the clips of a visit share; None if the visit is for this clip only.
    """

    index: int
    frames: int
    size: int
    seed: int
    visit: int | None = None


@runtime_checkable
class ClipDataset(Protocol):
    """A map-style dataset that decodes just what a request needs.

    Attributes:
        frames: Frames of a baseline clip.
        size: Height and width of a baseline clip, in pixels.
        stride: Temporal stride of a baseline clip, in source frames.
    """

    frames: int
    size: int
    stride: int

    def __len__(self) -> int: ...

    def read_clip(self, request: ClipRequest) -> Any:
        """The sample for a request, in the form that the loader's `collate_fn` takes."""
        ...


@runtime_checkable
class SpanDataset(ClipDataset, Protocol):
    """A clip dataset that decodes a video once for all the clips of a visit."""

    def read_clips(self, requests: Sequence[ClipRequest]) -> list[Any]:
        """The samples for some requests, each what `read_clip` makes of it."""
        ...


def read_clips(dataset: ClipDataset, requests: Sequence[ClipRequest]) -> list[Any]:
    """The samples for some requests."""
    if isinstance(dataset, SpanDataset):
        return dataset.read_clips(requests)
    return [dataset.read_clip(request) for request in requests]


def visits(requests: Sequence[ClipRequest]) -> list[Sequence[ClipRequest]]:
    """Requests for clips of one visit together, in the order given."""
    starts = [i for i in range(len(requests)) if not i or not _same_visit(requests[i - 1], requests[i])]
    return [requests[start:end] for start, end in pairwise([*starts, len(requests)])]


def _same_visit(a: ClipRequest, b: ClipRequest) -> bool:
    return a.visit is not None and (a.index, a.visit) == (b.index, b.visit)


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
