"""How the videos of a dataset are opened."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from lightning_multigrid.decode import Box, TableStore, Video, VideoError, open_video
from lightning_multigrid.pixels import YuvClip
from lightning_multigrid.sources import Manifest

WHOLE = 0.0, math.inf


class Stretch(Video):
    """The frames of a video that are shown within [start, end), in seconds, or all; counted from 0.

    Seconds count from the start of the file, as in a player: its video may begin later than its sound. A frame belongs
    to the stretch in which the middle of its time lies, so stretches without a gap share no frame, even if times are
    rounded. Where that gives none, the frame shown at `start` is the only one. An end after that of the video is its
    end. A `VideoError` if it begins after the video's end, or the video's rate is unknown. The rate is that of the
    whole `video`.
    """

    def __init__(self, video: Video, path: str, seconds: tuple[float, float]) -> None:
        self.path, self.video = path, video
        self.rate, self.height, self.width = video.rate, video.height, video.width
        self._frames = range(len(video))
        if seconds == WHOLE:
            return
        start, end = seconds
        if not video.rate:
            raise VideoError(path, f"has no known frame rate, which its stretch from {start:g} to {end:g} s needs")
        ends = self._time(len(video))
        if start >= ends:
            raise VideoError(path, f"ends at {ends:g} s, before its stretch from {start:g} to {end:g} s begins")

        def middle(frame: int) -> float:
            return (self._time(frame) + self._time(frame + 1)) / 2

        first, after = (bisect_left(self._frames, moment, key=middle) for moment in seconds)
        if first == after:
            first = max(0, bisect_right(self._frames, start, key=self._time) - 1)
        self._frames = range(first, max(first + 1, after))

    def __len__(self) -> int:
        return len(self._frames)

    def time_of(self, frame: int) -> float:
        return self.time_in_video(frame) - self.time_in_video(0)

    def time_in_video(self, frame: int) -> float:
        """Seconds from the start of the file to a frame of the stretch, or to the end of the last."""
        return self._time(self._frames.start + frame)

    def _time(self, frame: int) -> float:
        return self.video.start + self.video.time_of(frame)

    def read(self, indices: Sequence[int], box: Box | None = None) -> Tensor:
        return self.video.read([self._frames[index] for index in indices], box)

    def read_yuv(self, indices: Sequence[int], box: Box | None = None) -> YuvClip | Tensor:
        return self.video.read_yuv([self._frames[index] for index in indices], box)


@contextmanager
def open_row(manifest: Manifest, row: int) -> Iterator[Stretch]:
    """Opens a row of a manifest for a `with`: a video or a folder of frames, or a stretch of it.

    A frame table that does not fit the video is rejected: it is not taken again, and the next `index` makes one. A
    `VideoError` if the video is known to be broken.
    """
    path = manifest.path(row)
    store = TableStore(manifest.tables, manifest.root) if manifest.tables else None
    with open_video(path, manifest.images_per_second, store.find(path) if store else None) as video:
        try:
            yield Stretch(video, path, manifest.stretch(row))
        finally:
            if store and video.table_does_not_fit:
                store.reject(path)
