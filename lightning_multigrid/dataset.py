"""Videos as clips on any grid: what a request asks for is decoded, and nothing else.

Only the crop under a clip's grid leaves the worker, as bytes; the device resamples it. In evaluation a video is decoded
once for all its views.

A video that cannot be read is replaced by another one, so that a run neither stops nor depends on the number of
workers. The sample says which videos failed. No file is held open, so workers may be forked or spawned.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
from torch.utils.data import Dataset

from lightning_multigrid.clip_batch import Clip, Failure
from lightning_multigrid.clip_sampling import ClipSampling
from lightning_multigrid.decode import VideoError, VideoReader
from lightning_multigrid.frame_folder import FrameFolder
from lightning_multigrid.manifest import Manifest
from lightning_multigrid.prepared_index import prepared_index
from lightning_multigrid.randomness import derive_seed
from lightning_multigrid.sampler import ClipRequest
from lightning_multigrid.views import VideoViews, Views, share_frames

__all__ = ["BrokenVideosError", "VideoDataset", "ViewDataset"]

_Sample = TypeVar("_Sample")

# With a quarter of the videos broken (`max_bad_fraction`), that none of 16 is readable happens once in 4 billion clips.
_ATTEMPTS = 16


class BrokenVideosError(ValueError):
    """Too many videos of a dataset cannot be read."""


class VideoDataset(Dataset[Clip]):
    """Random clips of the videos of a manifest, on any grid; an ordinary map-style dataset of baseline clips, too.

    Where labels have their spans in the video, a clip has those that it shows a part of.

    Args:
        manifest: Paths and labels.
        sampling: The baseline's grid, and how grids are drawn.

    Raises:
        ValueError: If the manifest is empty.
    """

    def __init__(self, manifest: Manifest, sampling: ClipSampling) -> None:
        _check_manifest(manifest)
        self.manifest, self.sampling = manifest, sampling
        self.frames, self.size, self.stride = sampling.frames, sampling.size, sampling.stride

    def __len__(self) -> int:
        return len(self.manifest)

    def __getitem__(self, index: int) -> Clip:
        """A clip of the baseline's frames and size, seeded by torch's random state."""
        return self.read_clip(ClipRequest(index, self.frames, self.size, seed=int(torch.randint(2**63 - 1, ()))))

    def read_clip(self, request: ClipRequest) -> Clip:
        """The clip for a request, or a substitute.

        Raises:
            BrokenVideosError: If no video could be read in many attempts.
        """

        def decode(index: int, path: str, failures: tuple[Failure, ...]) -> Clip:
            with _opened(self.manifest, path) as reader:
                video = len(reader), reader.height, reader.width
                grid = self.sampling.draw(*video, request.frames, request.size, random.Random(request.seed))
                crop = reader.read(grid.indices, grid.box)
            labels = _labels_seen(self.manifest, index, grid.indices, reader.rate)
            return Clip(crop, request.size, grid.flip, labels, index, failures, request.seed)

        return _first_readable(self.manifest, request.index, request.seed, decode)


class ViewDataset(Dataset[VideoViews]):
    """The videos of a manifest, each with the views that evaluation takes of it.

    Args:
        manifest: Paths and labels.
        sampling: The baseline's grid.
        views: The views of each video.

    Raises:
        ValueError: If the manifest is empty.
    """

    def __init__(self, manifest: Manifest, sampling: ClipSampling, views: Views) -> None:
        _check_manifest(manifest)
        self.manifest, self.sampling, self.views = manifest, sampling, views

    def __len__(self) -> int:
        return len(self.manifest)

    def __getitem__(self, index: int) -> VideoViews:
        """The views of a video, or of a substitute: the same each time.

        Raises:
            BrokenVideosError: If no video could be read in many attempts.
        """
        return _first_readable(self.manifest, index, index, self._decode)

    def _decode(self, index: int, path: str, failures: tuple[Failure, ...]) -> VideoViews:
        with _opened(self.manifest, path) as reader:
            grids = self.views.grids(self.sampling, len(reader), reader.height, reader.width)
            frames, box, grids = share_frames(grids)
            pixels = reader.read(frames, box)
        size, _ = self.views.pixels(self.sampling)
        return VideoViews(pixels, grids, size, self.manifest.labels(index), index, failures)


def _opened(manifest: Manifest, path: str) -> VideoReader | FrameFolder:
    if manifest.frame_rate is not None:
        return FrameFolder(path, manifest.frame_rate)
    index = prepared_index(manifest, path)
    return VideoReader(path) if index is None else VideoReader(path, index)


def _labels_seen(manifest: Manifest, index: int, frames: Sequence[int], rate: float) -> tuple[int, ...]:
    """Labels that hold somewhere from the first of some frames to the last; all of the video if its rate is unknown."""
    if not rate:
        return manifest.labels(index)
    return manifest.labels_between(index, min(frames) / rate, (max(frames) + 1) / rate)


def _check_manifest(manifest: Manifest) -> None:
    if not len(manifest):
        raise ValueError("The manifest is empty; at least one video is needed.")


def _first_readable(
    manifest: Manifest, index: int, seed: int, decode: Callable[[int, str, tuple[Failure, ...]], _Sample]
) -> _Sample:
    """What `decode` makes of a video, or of the first other one that can be read, in an order drawn from the seed."""
    failures: list[Failure] = []
    for candidate in _candidates(len(manifest), index, seed):
        path = manifest.path(candidate)
        try:
            return decode(candidate, path, tuple(failures))
        except VideoError as error:
            failures.append(Failure(path, error.reason, candidate != index))
        except Exception as error:
            # Whatever one video does to the decoder or the memory must not end a run of days. What is wrong with all of
            # them does: as the error below, or as too large a fraction in the data module.
            failures.append(Failure(path, f"{type(error).__name__}: {error}", candidate != index))
    raise BrokenVideosError(
        f"None of {len(failures)} videos of {len(manifest)} can be read, at least one must be. Check the paths and "
        f"`root`. The first: {failures[0].path}: {failures[0].reason}"
    )


def _candidates(length: int, index: int, seed: int) -> Iterator[int]:
    yield index
    # Without replacement, so that a small dataset with one readable video finds it.
    for other in random.Random(derive_seed(seed, 1)).sample(range(length), min(_ATTEMPTS, length)):
        if other != index:
            yield other
