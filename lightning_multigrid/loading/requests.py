"""Requests, which carry each clip's shape to the workers, and the datasets that answer them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

__all__ = ["ClipDataset", "ClipRequest", "SpanDataset", "read_clips", "visits"]


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
