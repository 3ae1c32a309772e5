"""Requests, which carry each clip's shape to the workers, and the datasets that answer them."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True)
class ClipRequest:
    """One clip of a mini-batch, as it travels to a worker.

    Args:
        index: Index of the video in the dataset.
        frames: Frames of the clip.
        size: Height and width of the clip, in pixels.
        seed: Seed of everything that is drawn for this clip; a pure function of (seed, epoch, index), and with repeated
            augmentation also of the clip's place in its visit.
        visit: Seed that the clips of one visit share (see `repeats.py`); None without repeated augmentation.
    """

    index: int
    frames: int
    size: int
    seed: int
    visit: int | None = None


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
