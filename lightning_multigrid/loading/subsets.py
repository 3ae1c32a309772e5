"""Makes `Subset`, `random_split` and `ConcatDataset` of clip datasets into clip datasets that forward requests."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch.utils.data import ConcatDataset, Dataset, Subset

from lightning_multigrid.loading.repeats import read_clips, visits
from lightning_multigrid.loading.requests import ClipDataset, ClipRequest


def clip_dataset(dataset: Dataset[Any]) -> ClipDataset | None:
    """The dataset as a `ClipDataset`; None if it is neither one nor made of clip datasets only.

    Raises:
        ValueError: If the datasets of a `ConcatDataset` differ in frames, size or stride.
    """
    if isinstance(dataset, ClipDataset):
        return dataset
    if isinstance(dataset, Subset):
        whole = clip_dataset(dataset.dataset)
        return None if whole is None else _Subset(whole, dataset.indices)
    if isinstance(dataset, ConcatDataset):
        parts = [clip_dataset(part) for part in dataset.datasets]
        known = [part for part in parts if part is not None]
        return _Concat(known, dataset.cumulative_sizes) if len(known) == len(parts) else None
    return None


class _Subset:
    """Some clips of a clip dataset."""

    def __init__(self, whole: ClipDataset, indices: Sequence[int]) -> None:
        self.whole, self.indices = whole, indices
        self.frames, self.size, self.stride = whole.frames, whole.size, whole.stride

    def __len__(self) -> int:
        return len(self.indices)

    def read_clip(self, request: ClipRequest) -> Any:
        return self.read_clips([request])[0]

    def read_clips(self, requests: Sequence[ClipRequest]) -> list[Any]:
        return read_clips(self.whole, [replace(request, index=self.indices[request.index]) for request in requests])


class _Concat:
    """Several clip datasets of one baseline grid, one after the other."""

    def __init__(self, parts: Sequence[ClipDataset], ends: Sequence[int]) -> None:
        grids = {(part.frames, part.size, part.stride) for part in parts}
        if len(grids) > 1:
            raise ValueError(
                f"The datasets of a ConcatDataset must have one baseline grid, got (frames, size, stride) of "
                f"{sorted(grids)}. Give all of them the same."
            )
        self.parts, self.ends = parts, ends
        [(self.frames, self.size, self.stride)] = grids

    def __len__(self) -> int:
        return self.ends[-1]

    def read_clip(self, request: ClipRequest) -> Any:
        return self.read_clips([request])[0]

    def read_clips(self, requests: Sequence[ClipRequest]) -> list[Any]:
        clips: list[Any] = []
        for visit in visits(requests):
            place = bisect_right(self.ends, visit[0].index)
            start = self.ends[place - 1] if place else 0
            clips += read_clips(self.parts[place], [replace(request, index=request.index - start) for request in visit])
        return clips
