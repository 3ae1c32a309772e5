"""A user's own dataset as a `ClipDataset`: its clips are resampled to the grid of a request.

A grid takes some of the baseline's frames and resizes their pixels. Both happen per sample in the worker, so the user's
`collate_fn` and transfer hooks see ordinary samples. An image is a clip of one frame, and only its pixels are resized.
`Subset`, `random_split` and `ConcatDataset` of clip datasets forward requests instead.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import replace
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Any, cast

from torch.utils.data import ConcatDataset, Dataset, Subset

from lightning_multigrid.loading.randomness import OwnGenerators, derive_seed, reseed_own, seed_host, seeded
from lightning_multigrid.loading.reduction import baseline_grid
from lightning_multigrid.loading.requests import ClipDataset, ClipRequest, read_clips, reads_clips
from lightning_multigrid.loading.samples import Follow, Name, SampleParts

_LOOKED_AT = 100  # samples, until one is not None


class FixedClips:
    """Any map-style dataset of clips, as a `ClipDataset`. The first clip is the baseline's.

    Clips of other lengths or sizes stay as they are on the baseline's grid, and are reduced by the same factors. The
    request seeds the dataset's random augmentation: the global random state, and generators that the dataset or its
    transforms hold. So what they draw depends on neither workers nor ranks. Samples that are None stay None.

    Args:
        dataset: A sample is a clip of four axes, an image of three, or a tuple, list, dict or namedtuple of them.
        layout: As `MultigridCallback` takes it; so are `clips`, `follow` and `whole_span`.
        look: Runs what looks at the first sample, for instance in a worker, and returns what that returns.
        indices: Indices of samples that may be looked at, in order; by default all.

    Attributes:
        parts: What of a sample is a clip, and what follows it.
        first: Index of the first sample that is not None, out of which the grids are tried.
        staying: Names of the parts of a sample that stay as they are on every grid, but for a label.
        divisor: On other grids than the baseline's, sides of clips are multiples of this number of pixels.

    Raises:
        ValueError: If a sample doesn't hold these parts, or holds others that may be clips.
    """

    stride = 1

    def __init__(
        self,
        dataset: Dataset[Any],
        layout: str | None = None,
        clips: Sequence[Name] | Mapping[Name, str] | None = None,
        follow: Mapping[Name, Follow] | None = None,
        whole_span: bool = False,
        look: Callable[[Callable[[], Any]], Any] = lambda look: look(),
        indices: Sequence[int] | None = None,
    ) -> None:
        self.dataset, self._own = dataset, OwnGenerators(dataset)
        self.parts, self.divisor = SampleParts(layout, clips, follow or {}, whole_span), 1
        self._indices = (range(len(self)) if indices is None else indices)[:_LOOKED_AT]
        name = type(getattr(dataset, "stream", dataset)).__name__
        try:
            self.first, self.frames, self.size, self.staying = look(self._look)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error

    def _look(self) -> tuple[int, int, int, list[str]]:
        """The first sample that is not None: its index, its grid, and its parts that stay on each."""
        with seeded(0):
            read = ((index, self._read(index)) for index in self._indices)
            first, sample = next((pair for pair in read if pair[1] is not None), (0, None))
        found = self.parts.check(sample)
        frames, size = baseline_grid(found)
        self.parts.reduced(sample, ClipRequest(0, frames, size, seed=0))  # refuses what can't follow
        return first, frames, size, self.parts.staying(sample, found)

    def _read(self, index: int) -> Any:
        """A sample as a plain `DataLoader` reads it, which prefers `__getitems__`."""
        many = getattr(self.dataset, "__getitems__", None)
        samples = [self.dataset[index]] if many is None else many([index])
        if not isinstance(samples, list):
            raise ValueError(
                f"`__getitems__` must return a list of samples, got {type(samples).__name__}. A whole mini-batch can't "
                "come to other grids clip by clip. Leave `__getitems__` out, so that `__getitem__` gives each sample, "
                "and let the `collate_fn` make the mini-batch."
            )
        return samples[0]

    def __len__(self) -> int:
        return len(cast("Sized", self.dataset))

    def read_clip(self, request: ClipRequest) -> Any:
        """Returns the sample with its clips, and what follows them, on the request's grid."""
        return self.read_clips([request])[0]

    def read_clips(self, requests: Sequence[ClipRequest]) -> list[Any]:
        """Returns for each request what `read_clip` would."""
        reduced = []
        with seeded(0):  # restores what each request seeds, once for all: that takes longer than to seed
            for request in requests:
                # So that these draw neither what the others do, nor what draws the clip's stride and start.
                reseed_own(self._own.find(), derive_seed(request.seed, 1))
                seed_host(derive_seed(request.seed, 2))
                sample = self._read(request.index)
                reduced.append(self.parts.reduced(sample, request, (self.frames, self.size), self.divisor))
        return reduced


def clip_dataset(dataset: Dataset[Any]) -> ClipDataset | None:
    """The dataset as a `ClipDataset`; None if it is neither one nor made of clip datasets only, as they are."""
    if reads_clips(dataset):
        return dataset  # type: ignore[return-value]
    parts = [dataset.dataset] if isinstance(dataset, Subset) and _is_plain(dataset, Subset) else []
    parts = dataset.datasets if isinstance(dataset, ConcatDataset) and _is_plain(dataset, ConcatDataset) else parts
    known = [part for part in map(clip_dataset, parts) if part is not None]
    if not parts or len(known) < len(parts):
        return None
    return _Parts(known, dataset.indices if isinstance(dataset, Subset) else range(sum(map(len, known))))


def _is_plain(dataset: Dataset[Any], kind: type) -> bool:
    """Whether a dataset's samples are those of torch's class, and not other ones of a subclass."""
    names = "__getitem__", "__getitems__"
    return all(getattr(type(dataset), name, None) is getattr(kind, name, None) for name in names)


class _Parts:
    """Clips of clip datasets of one baseline grid, by their numbers in all of them, one after the other."""

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
        for part, group in groupby(located, key=itemgetter(0)):
            start = self.ends[part - 1] if part else 0
            inside = [replace(request, index=request.index - start) for _, request in group]
            clips += read_clips(self.parts[part], inside)
        return clips
