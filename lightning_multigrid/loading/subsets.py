"""Makes `Subset`, `random_split` and `ConcatDataset` of clip datasets into clip datasets that forward requests."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Any

from torch.utils.data import ConcatDataset, Dataset, Subset

from lightning_multigrid.loading.repeats import read_clips
from lightning_multigrid.loading.requests import ClipDataset, ClipRequest


def clip_dataset(dataset: Dataset[Any]) -> ClipDataset | None:
    """The dataset as a `ClipDataset`; None if it is neither one nor made of clip datasets only."""
    if isinstance(dataset, ClipDataset):
        return dataset
    parts = [dataset.dataset] if isinstance(dataset, Subset) else []
    parts = dataset.datasets if isinstance(dataset, ConcatDataset) else parts
    known = [part for part in map(clip_dataset, parts) if part is not None]
    if not parts or len(known) < len(parts):
        return None
    return _Parts(known, dataset.indices if isinstance(dataset, Subset) else range(sum(map(len, known))))


class _Parts:
    """Clips of clip datasets of one baseline grid, by their places in all of them, one after the other."""

    def __init__(self, parts: Sequence[ClipDataset], indices: Sequence[int]) -> None:
        grids = {(part.frames, part.size, part.stride) for part in parts}
        if len(grids) > 1:
            raise ValueError(
                f"The datasets of a ConcatDataset must have one baseline grid, got (frames, size, stride) of "
                f"{sorted(grids)}. Give all of them the same."
            )
        self.parts, self.indices, self.ends = parts, indices, list(accumulate(map(len, parts)))
        [(self.frames, self.size, self.stride)] = grids

    def __len__(self) -> int:
        return len(self.indices)

    def read_clip(self, request: ClipRequest) -> Any:
        return self.read_clips([request])[0]

    def read_clips(self, requests: Sequence[ClipRequest]) -> list[Any]:
        clips: list[Any] = []
        moved = [replace(request, index=self.indices[request.index]) for request in requests]
        located = [(bisect_right(self.ends, request.index), request) for request in moved]
        for place, group in groupby(located, key=itemgetter(0)):
            start = self.ends[place - 1] if place else 0
            inside = [replace(request, index=request.index - start) for _, request in group]
            clips += read_clips(self.parts[place], inside)
        return clips
