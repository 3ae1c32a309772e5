"""Videos as clips on any grid: a worker decodes what a request asks for, and sends the crop as bytes to be resampled.

A broken video is replaced by another one, so that a run neither stops nor depends on the number of workers. The sample
names the broken ones. No file is held open, so workers may be forked or spawned.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Literal, TypeVar, overload

import torch
from torch import Tensor
from torch.utils.data import Dataset

from lightning_multigrid.clips.batch import BrokenVideo, Clip
from lightning_multigrid.clips.opening import Stretch, Video, open_row
from lightning_multigrid.clips.sampling import ClipSampling, SourceGrid
from lightning_multigrid.clips.views import VideoViews, Views, cut_out, share_frames
from lightning_multigrid.decode import OURS, Box, BrokenVideosError, FrameFolder, VideoError
from lightning_multigrid.loading import ClipRequest, derive_seed, visits
from lightning_multigrid.pixels import YuvClip
from lightning_multigrid.schedule import span
from lightning_multigrid.sources import Manifest

_Sample = TypeVar("_Sample")

# With a quarter of the videos broken (`max_bad_fraction`), 16 broken ones in a row come once in 4 billion clips.
_ATTEMPTS = 16


class VideoDataset(Dataset[Clip]):
    """Random clips of the videos of a manifest, on any grid; also an ordinary map-style dataset of baseline clips.

    Where a row is a stretch of its video, clips lie in it. Where labels have spans in the video, a clip has the labels
    that it shows a part of. Clips of one visit lie within one span as long as a baseline clip's, which is decoded once
    for all of them.

    Args:
        manifest: Paths and labels.
        sampling: The baseline's grid, and how grids are drawn.
        pixels: What clips are made of: `rgb`, or `yuv` planes where the video has them and its reader gives them.
        read_timeout: Seconds that a read of a video file may take.
        damaged: `keep` the clips of damaged videos as FFmpeg decodes them, or `replace` those that meet damage.

    Raises:
        ValueError: If the manifest is empty, or `pixels` or `damaged` is something else.
    """

    ways_out = "`lightning-multigrid prepare` or a smaller `short_side`"
    """What makes the loader faster, apart from more workers; `RunReport` names it when the loader is the limit."""

    def __init__(
        self,
        manifest: Manifest,
        sampling: ClipSampling,
        pixels: Literal["rgb", "yuv"] = "rgb",
        read_timeout: float = 60.0,
        damaged: Literal["keep", "replace"] = "keep",
    ) -> None:
        _check_manifest(manifest)
        if pixels not in ("rgb", "yuv"):
            raise ValueError(f"`pixels` of a dataset must be 'rgb' or 'yuv', got {pixels!r}.")
        if damaged not in ("keep", "replace"):
            raise ValueError(f"`damaged` must be 'keep' or 'replace', got {damaged!r}.")
        self.manifest, self.sampling, self.pixels = manifest, sampling, pixels
        self.read_timeout, self.damaged = read_timeout, damaged
        self.frames, self.size, self.stride = sampling.frames, sampling.size, sampling.stride

    def __len__(self) -> int:
        return len(self.manifest)

    def __getitem__(self, index: int) -> Clip:
        """Returns a clip of the baseline's frames and size, seeded by torch's random state."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Clip]:
        """Returns a clip for each index, as torch's loaders ask; a video that is repeated in a row is visited once."""
        requests: list[ClipRequest] = []
        for index in indices:
            seed, visit = int(torch.randint(2**63 - 1, ())), None
            if requests and requests[-1].index == index:
                visit = requests[-1].visit or requests[-1].seed
                requests[-1] = replace(requests[-1], visit=visit)
            requests.append(ClipRequest(index, self.frames, self.size, seed, visit))
        return self.read_clips(requests)

    def read_clip(self, request: ClipRequest) -> Clip:
        """Returns the clip for a request, or a substitute.

        Raises:
            BrokenVideosError: If no video could be read in many attempts.
        """
        return self._visit([request])[0]

    def read_clips(self, requests: Sequence[ClipRequest]) -> list[Clip]:
        """Returns the clips for some requests, each as `read_clip` does."""
        return [clip for visit in visits(requests) for clip in self._visit(visit)]

    def _visit(self, requests: Sequence[ClipRequest]) -> list[Clip]:
        seed = requests[0].seed if requests[0].visit is None else requests[0].visit

        def decode(index: int, path: str, broken: tuple[BrokenVideo, ...]) -> list[Clip]:
            with open_row(self.manifest, index, self.read_timeout) as reader:
                length = self.sampling.length(reader, path)
                grids = [self._grid(request, length, reader.height, reader.width) for request in requests]
                grids = [self.sampling.in_source(grid, reader) for grid in grids]
                crops = _crops(reader, grids, self.pixels)
                if self.damaged == "replace" and reader.damage:
                    raise VideoError(path, str(reader.damage))
                broken = _with_damage(broken, reader, path)
                labels = [_labels_seen(self.manifest, index, grid.indices, reader) for grid in grids]
            return [
                Clip(crop, request.size, grid.flip, seen, index, broken, request.seed)
                for request, grid, crop, seen in zip(requests, grids, crops, labels, strict=True)
            ]

        return _first_readable(self.manifest, requests[0].index, seed, decode)

    def _grid(self, request: ClipRequest, length: int, height: int, width: int) -> SourceGrid:
        draws = random.Random(request.seed)
        if request.visit is None or self.sampling.mode == "segments":  # segments divide the whole video
            return self.sampling.draw(length, height, width, request.frames, request.size, draws)
        longest = min(length, span(self.frames, self.stride))
        start = random.Random(derive_seed(request.visit, 2)).randint(0, length - longest)
        grid = self.sampling.draw(longest, height, width, request.frames, request.size, draws)
        return replace(grid, indices=tuple(start + index for index in grid.indices))


class ViewDataset(Dataset[VideoViews]):
    """The videos of a manifest, each with the views that evaluation takes of it.

    Args:
        manifest: Paths and labels.
        sampling: The baseline's grid.
        views: The views of each video.
        pixels: What clips are made of, as in `VideoDataset`.
        read_timeout: Seconds that a read of a video file may take.

    Raises:
        ValueError: If the manifest is empty.
    """

    def __init__(
        self,
        manifest: Manifest,
        sampling: ClipSampling,
        views: Views,
        pixels: Literal["rgb", "yuv"] = "rgb",
        read_timeout: float = 60.0,
    ) -> None:
        _check_manifest(manifest)
        self.manifest, self.sampling, self.views, self.read_timeout = manifest, sampling, views, read_timeout
        self.pixels = pixels

    def __len__(self) -> int:
        return len(self.manifest)

    @overload
    def __getitem__(self, index: int) -> VideoViews: ...
    @overload
    def __getitem__(self, index: list[int]) -> list[VideoViews]: ...
    def __getitem__(self, index: int | list[int]) -> VideoViews | list[VideoViews]:
        """Returns the views of a video, or of a substitute: the same each time. Those of several are a list.

        Raises:
            BrokenVideosError: If no video could be read in many attempts.
        """
        if isinstance(index, list):
            return [self[each] for each in index]
        return _first_readable(self.manifest, index, index, self._decode)

    def _decode(self, index: int, path: str, broken: tuple[BrokenVideo, ...]) -> VideoViews:
        with open_row(self.manifest, index, self.read_timeout) as reader:
            grids = self.views.grids(self.sampling, self.sampling.length(reader, path), reader.height, reader.width)
            frames, box, grids = share_frames([self.sampling.in_source(grid, reader) for grid in grids])
            pixels = _read_as(reader, self.pixels)(frames, box)
            broken = _with_damage(broken, reader, path)
        size, _ = self.views.pixels(self.sampling)
        return VideoViews(pixels, grids, size, self.manifest.labels(index), index, broken)


def _crops(reader: Video, grids: Sequence[SourceGrid], pixels: str) -> list[Tensor | YuvClip]:
    """Reads the crops under some grids; frames that they share are decoded once."""
    read = _read_as(reader, pixels)
    if len(grids) == 1:
        return [read(grids[0].indices, grids[0].box)]
    frames, box, moved = share_frames(grids)
    shared = read(frames, box)
    return [cut_out(shared, grid) for grid in moved]


def _read_as(reader: Video, pixels: str) -> Callable[[Sequence[int], Box], Tensor | YuvClip]:
    return reader.read if pixels == "rgb" or isinstance(reader, FrameFolder) else reader.read_yuv


def _with_damage(broken: tuple[BrokenVideo, ...], reader: Video, path: str) -> tuple[BrokenVideo, ...]:
    """The videos that were tried, and this one if its reader has met damage."""
    return (*broken, BrokenVideo(path, str(reader.damage), kept=True)) if reader.damage else broken


def _labels_seen(manifest: Manifest, index: int, frames: Sequence[int], video: Video) -> tuple[int, ...]:
    """Labels that hold anywhere between the first and the last of some frames; all, if the video's rate is unknown."""
    if not video.rate:
        return manifest.labels(index)
    time_of = video.time_in_video if isinstance(video, Stretch) else video.time_of
    return manifest.labels_between(index, time_of(min(frames)), time_of(max(frames) + 1))


def _check_manifest(manifest: Manifest) -> None:
    if not len(manifest):
        raise ValueError("The manifest is empty; at least one video is needed.")


def _first_readable(
    manifest: Manifest, index: int, seed: int, decode: Callable[[int, str, tuple[BrokenVideo, ...]], _Sample]
) -> _Sample:
    """Decodes a video, or the first other one that can be read, in an order drawn from the seed."""
    broken: list[BrokenVideo] = []
    for candidate in _candidates(len(manifest), index, seed):
        path = manifest.path(candidate)
        try:
            return decode(candidate, path, tuple(broken))
        except Exception as error:
            # One video that upsets the decoder or the memory must not end a run of days. A fault of all videos does end
            # it: by the error below, or by too large a fraction in the data module.
            if isinstance(error, OURS) and not isinstance(error, MemoryError):
                raise RuntimeError(
                    f"{path}: {type(error).__name__}: {error}. This is a fault of the program, not of the video. "
                    "Please report it, or leave the video out."
                ) from error
            reason = error.reason if isinstance(error, VideoError) else f"{type(error).__name__}: {error}"
            broken.append(BrokenVideo(path, reason, candidate != index))
    raise BrokenVideosError(
        f"None of {len(broken)} videos of {len(manifest)} can be read, at least one must be. Check the paths and "
        f"`root`. The first: {broken[0].path}: {broken[0].reason}"
    )


def _candidates(length: int, index: int, seed: int) -> Iterator[int]:
    yield index
    # Without replacement, so that a small dataset with one readable video finds it.
    for other in random.Random(derive_seed(seed, 1)).sample(range(length), min(_ATTEMPTS, length)):
        if other != index:
            yield other
