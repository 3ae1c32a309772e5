"""Requests, which carry each clip's shape to the workers, and the datasets that answer them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

from torch.utils.data import Dataset


@dataclass(frozen=True)
class ClipRequest:
    """One clip of a mini-batch, as it travels to a worker.

    Args:
        index: Index of the video in the dataset.
        frames: Frames of the clip.
        size: Height and width of the clip, in pixels.
        seed: Seed of everything that is drawn for this clip; a pure function of (seed, pass, place in the pass).
        visit: Seed that the clips of one visit share (see `clips/orders.py`); None without repeated augmentation.
    """

    index: int
    frames: int
    size: int
    seed: int
    visit: int | None = None


class Requests(list[ClipRequest]):
    """The requests of a mini-batch, or of a piece of one. `number` counts those of an epoch, from 0."""

    number = 0


@runtime_checkable
class ClipDataset(Protocol):
    """A map-style dataset that decodes only what a request needs.

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
        """Returns the sample for a request, in the form that the loader's `collate_fn` takes."""


def length_of(dataset: Any) -> int | None:
    """The `len` of a dataset or a sampler; None if it doesn't say it, as one of a stream."""
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None


def reads_clips(dataset: Any) -> bool:
    """Whether a dataset is a `ClipDataset` whose samples are what it reads for a request.

    They are others where a subclass has a `__getitem__` of its own, as for other labels, or a wrapper, which passes on
    the attributes of what it wraps.
    """
    own = {"read_clip", "read_clips"}
    return isinstance(dataset, ClipDataset) and bool(_nearest(dataset, *own, "__getitem__", "__getitems__") & own)


def read_clips(dataset: ClipDataset, requests: Sequence[ClipRequest]) -> list[Any]:
    """Returns for each request what `read_clip` does, by a `read_clips` of the dataset if it reads several at once."""
    if hasattr(dataset, "read_clips") and "read_clips" in _nearest(dataset, "read_clip", "read_clips"):
        return dataset.read_clips(requests)  # type: ignore[no-any-return]
    return [dataset.read_clip(request) for request in requests]


def _nearest(dataset: Any, *names: str) -> set[str]:
    """Which of these names the first of a dataset and its classes has that has any; all of them if none has any."""
    own = getattr(dataset, "__dict__", {}), *(vars(kind) for kind in type(dataset).__mro__ if kind is not Dataset)
    return next((found for holder in own if (found := holder.keys() & names)), {*names})


def visits(requests: Sequence[ClipRequest]) -> list[Sequence[ClipRequest]]:
    """Groups neighbouring requests of one visit. A request without a visit is a group of its own."""
    taken = [(request.index, request.visit) for request in requests]
    starts = [i for i, one in enumerate(taken) if not i or one[1] is None or one != taken[i - 1]]
    return [requests[start:end] for start, end in pairwise([*starts, len(requests)])]
