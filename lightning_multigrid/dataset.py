"""Videos as clips on any grid: what a request asks for is decoded, and nothing else.

Only the crop under a clip's grid leaves the worker, as bytes; the device resamples it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
from torch.utils.data import Dataset

from lightning_multigrid.clip_batch import Clip, Failure
from lightning_multigrid.clip_sampling import ClipSampling
from lightning_multigrid.decode import VideoError, VideoReader
from lightning_multigrid.manifest import Manifest
from lightning_multigrid.sampler import ClipRequest, derive_seed

__all__ = ["BrokenVideosError", "VideoDataset"]

# With a quarter of the videos broken (`max_bad_fraction`), that none of 16 is readable happens once in 4 billion clips.
_ATTEMPTS = 16


class BrokenVideosError(ValueError):
    """Too many videos of a dataset cannot be read."""


class VideoDataset(Dataset[Clip]):
    """The videos of a manifest as clips on any grid; an ordinary map-style dataset of baseline clips, too.

    A video that cannot be read is replaced by another one, drawn from the request's seed (in evaluation: from the
    index), so that a run neither stops nor depends on the number of workers. The clip says which videos failed.

    No file is held open, so workers may be forked or spawned.

    Args:
        manifest: Paths and labels.
        sampling: The baseline's grid, and how grids are drawn.
        training: Draw grids at random; else all clips are from the centre, without augmentation.

    Raises:
        ValueError: If the manifest is empty.
    """

    def __init__(self, manifest: Manifest, sampling: ClipSampling, *, training: bool) -> None:
        if not len(manifest):
            raise ValueError("The manifest is empty; at least one video is needed.")
        self.manifest, self.sampling, self.training = manifest, sampling, training
        self.frames, self.size, self.stride = sampling.frames, sampling.size, sampling.stride

    def __len__(self) -> int:
        return len(self.manifest)

    def __getitem__(self, index: int) -> Clip:
        """A clip of the baseline's frames and size; in training seeded by torch's random state."""
        seed = int(torch.randint(2**63 - 1, ())) if self.training else 0
        return self.read_clip(ClipRequest(index, self.frames, self.size, seed))

    def read_clip(self, request: ClipRequest) -> Clip:
        """The clip for a request, or a substitute.

        Raises:
            BrokenVideosError: If no video could be read in many attempts.
        """
        failures: list[Failure] = []
        for index in self._candidates(request):
            path = self.manifest.path(index)
            try:
                return self._decode(index, path, request, tuple(failures))
            except VideoError as error:
                failures.append(Failure(path, error.reason))
            except Exception as error:
                # Whatever one video does to the decoder or the memory must not end a run of days. What is wrong with
                # all of them does: as the error below, or as too large a fraction in the data module.
                failures.append(Failure(path, f"{type(error).__name__}: {error}"))
        raise BrokenVideosError(
            f"None of {len(failures)} videos of {len(self)} can be read, at least one must be. Check the paths and "
            f"`root`. The first: {failures[0].path}: {failures[0].reason}"
        )

    def _candidates(self, request: ClipRequest) -> Iterator[int]:
        yield request.index
        draw = random.Random(derive_seed(request.seed if self.training else request.index, 1))
        # Without replacement, so that a small dataset with one readable video finds it.
        for index in draw.sample(range(len(self)), min(_ATTEMPTS, len(self))):
            if index != request.index:
                yield index

    def _decode(self, index: int, path: str, request: ClipRequest, failures: tuple[Failure, ...]) -> Clip:
        with VideoReader(path) as reader:
            video = len(reader), reader.height, reader.width
            if self.training:
                grid = self.sampling.draw(*video, request.frames, request.size, random.Random(request.seed))
            else:
                grid = self.sampling.centre(*video, request.frames, request.size)
            crop = reader.read(grid.indices, grid.box)
        return Clip(crop, request.size, grid.flip, self.manifest.labels(index), index, failures)
