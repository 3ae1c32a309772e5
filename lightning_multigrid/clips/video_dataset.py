"""Videos as clips on any grid: a worker decodes what a request asks for, and sends the crop as bytes to be resampled.

A broken video is replaced by another one, so that a run neither stops nor depends on the number of workers. The sample
names the broken ones. No file is held open, so workers may be forked or spawned.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch.utils.data import Dataset

from lightning_multigrid.clips.batch import BrokenVideo, Clip
from lightning_multigrid.clips.opening import Stretch, open_row
from lightning_multigrid.clips.sampling import ClipSampling, SourceGrid
from lightning_multigrid.clips.views import Views, cut_out, share_frames
from lightning_multigrid.decode import BrokenVideosError, TableError, VideoError, is_plane_file
from lightning_multigrid.loading import ClipRequest, derive_seed, visits
from lightning_multigrid.schedule import span
from lightning_multigrid.sources import Manifest

# With a quarter of the videos broken (`max_bad_fraction`), 16 broken ones in a row come once in 4 billion clips.
_ATTEMPTS = 16


@dataclass(eq=False)
class VideoDataset(Dataset[Clip]):
    """Random clips of the videos of a manifest, on any grid; also an ordinary map-style dataset of baseline clips.

    Where a row is a stretch of its video, clips lie in it. Where labels have spans in the video, a clip has the labels
    that it shows a part of. Clips of one visit lie within one span as long as a baseline clip's, which is decoded once
    for all of them. `pixels` says what clips are made of: `rgb`, or `yuv` planes where the video has them.
    """

    manifest: Manifest
    sampling: ClipSampling
    pixels: Literal["rgb", "yuv"] = "rgb"

    def __post_init__(self) -> None:
        self.frames, self.size, self.stride = self.sampling.frames, self.sampling.size, self.sampling.stride

    @property
    def ways_out(self) -> str:
        """What makes the loader faster, apart from more workers; nothing does if the videos are stored as planes."""
        if is_plane_file(self.manifest.path(0)):
            return ""
        return "`lightning-multigrid prepare" + (" --store planes`" if self.manifest.prepared else "`")

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
        return self.read_clips([request])[0]

    def read_clips(self, requests: Sequence[ClipRequest]) -> list[Clip]:
        """Returns the clips for some requests, each as `read_clip` does."""
        clips: list[Clip] = []
        for visit in visits(requests):
            first = visit[0]
            seed = first.seed if first.visit is None else first.visit
            clips += _first_readable(self, first.index, seed, partial(self._decode, visit))
        return clips

    def describe(self, request: ClipRequest) -> str:
        """Says of which file, moments and frames the clip of a request is made, if its video can be read."""
        path = self.manifest.path(request.index)
        with open_row(self.manifest, request.index) as video:
            grid = self.sampling.in_source(self._grid(request, video), video)
            ends = (grid.indices[0], grid.indices[-1]) if video.rate else ()
            seconds = [f"{video.time_in_video(frame):.2f}" for frame in ends]
        numbers = " ".join(map(str, grid.indices))
        shown = f", {' to '.join(seconds)} s" if seconds else ""
        return f"{path}{shown}, frames {numbers}" + (", mirrored" if grid.flip else "")

    def _decode(self, requests: Sequence[ClipRequest], row: int, video: Stretch) -> list[Clip]:
        grids = [self.sampling.in_source(self._grid(request, video), video) for request in requests]
        read = video.read_yuv if self.pixels == "yuv" else video.read
        if len(grids) == 1:
            crops = [read(grids[0].indices, grids[0].box)]
        else:  # frames that clips share are decoded once
            frames, box, moved = share_frames(grids)
            shared = read(frames, box)
            crops = [cut_out(shared, grid) for grid in moved]
        clips = []
        for request, grid, crop in zip(requests, grids, crops, strict=True):
            # Another seed than the grid's, or what is drawn on the device would follow the stride and the start.
            seed, labels = derive_seed(request.seed, 3), self._labels_seen(row, grid, video)
            clips.append(Clip(crop, request.size, grid.flip, labels, row, seed=seed))
        return clips

    def _grid(self, request: ClipRequest, video: Stretch) -> SourceGrid:
        length, frame = self.sampling.length(video), (video.height, video.width)
        draws = random.Random(request.seed)
        if request.visit is None or self.sampling.mode == "segments":  # segments divide the whole video
            return self.sampling.draw(length, *frame, request.frames, request.size, draws)
        longest = min(length, span(self.frames, self.stride))
        start = random.Random(derive_seed(request.visit, 2)).randint(0, length - longest)
        grid = self.sampling.draw(longest, *frame, request.frames, request.size, draws)
        return replace(grid, indices=tuple(start + index for index in grid.indices))

    def _labels_seen(self, row: int, grid: SourceGrid, video: Stretch) -> tuple[int, ...]:
        """Labels that hold anywhere between a clip's first frame and its last; all, if the rate is unknown."""
        if not (video.rate and self.manifest.multi_label):  # one label holds in all of its video
            return self.manifest.labels(row)
        begin, end = video.time_in_video(min(grid.indices)), video.time_in_video(max(grid.indices) + 1)
        return self.manifest.labels_between(row, begin, end)


@dataclass(eq=False)
class ViewDataset(Dataset[Clip]):
    """The videos of a manifest, each with the `views` that evaluation takes of it: the same each time."""

    manifest: Manifest
    sampling: ClipSampling
    views: Views
    pixels: Literal["rgb", "yuv"] = "rgb"

    def __len__(self) -> int:
        return len(self.manifest)

    def __getitem__(self, index: int) -> Clip:
        """Returns a video, or a substitute.

        Raises:
            BrokenVideosError: If no video could be read in many attempts.
        """
        return _first_readable(self, index, index, self._decode)[0]

    def _decode(self, row: int, video: Stretch) -> list[Clip]:
        grids = self.views.grids(self.sampling, self.sampling.length(video), video.height, video.width)
        frames, box, views = share_frames([self.sampling.in_source(grid, video) for grid in grids])
        size, _ = self.views.pixels(self.sampling)
        crop = (video.read_yuv if self.pixels == "yuv" else video.read)(frames, box)
        return [Clip(crop, size, False, self.manifest.labels(row), row, views=views)]


def _first_readable(
    data: VideoDataset | ViewDataset, index: int, seed: int, decode: Callable[[int, Stretch], list[Clip]]
) -> list[Clip]:
    """Decodes a row, or the first other one that can be read, in an order drawn from the seed."""
    broken: list[BrokenVideo] = []
    for row in _candidates(len(data), index, seed):
        try:
            try:
                clips, video = _decoded(data.manifest, row, decode)
            except VideoError as error:  # `open_row` has rejected a table that does not fit
                if not (isinstance(error, TableError) or error.may_pass):
                    raise
                clips, video = _decoded(data.manifest, row, decode)
        except Exception as error:
            # One video that upsets the decoder or the memory must not end a run of days. A fault of all videos does end
            # it: by the error below, or by too large a fraction in the data module.
            reason = error.reason if isinstance(error, VideoError) else f"{type(error).__name__}: {error}"
            broken.append(BrokenVideo(data.manifest.path(row), reason, row != index, index=row))
            continue
        if damage := video.video.damage:
            broken.append(BrokenVideo(video.path, str(damage), used_anyway=True))
        because = video.video.slow_because
        if because and (data.manifest.tables or data.manifest.prepared):  # else as it was asked
            broken.append(BrokenVideo(video.path, because, used_anyway=True, slow=True))
        return [replace(clip, broken=tuple(broken)) for clip in clips] if broken else clips
    raise BrokenVideosError(
        f"None of {len(broken)} videos of {len(data)} can be read, at least one must be. Check the paths and "
        f"`root`. The first: {broken[0].path}: {broken[0].reason}"
    )


def _decoded(manifest: Manifest, row: int, decode: Callable[[int, Stretch], list[Clip]]) -> tuple[list[Clip], Stretch]:
    with open_row(manifest, row) as video:
        return decode(row, video), video


def _candidates(length: int, index: int, seed: int) -> Iterator[int]:
    yield index
    # Without replacement, so that a small dataset with one readable video finds it.
    for other in random.Random(derive_seed(seed, 1)).sample(range(length), min(_ATTEMPTS, length)):
        if other != index:
            yield other
