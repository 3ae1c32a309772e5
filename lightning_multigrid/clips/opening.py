"""How the videos of a dataset are opened."""

import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from lightning_multigrid.decode import Box, Damage, FrameFolder, FrameTable, VideoError, VideoReader
from lightning_multigrid.pixels import YuvClip
from lightning_multigrid.sources import Manifest


class Stretch:
    """The frames of a video that are shown within [start, end), in seconds; counted from 0, and read as those are.

    A frame is shown until the next one is, and belongs to the stretch in which the middle of that time lies. So
    stretches without a gap share no frame, even if times are rounded. Where that gives none, the frame shown at `start`
    is the only one. An end after that of the video is its end.

    Args:
        video: The open video.
        path: Its path, for errors.
        start: In seconds from the first frame.
        end: In seconds, after `start`.

    Attributes:
        height: H, in pixels.
        width: W, in pixels.
        rate: Mean frames per second of the whole video.

    Raises:
        VideoError: If it begins after the video's end, or the video's rate is unknown.
    """

    def __init__(self, video: VideoReader | FrameFolder, path: str, start: float, end: float) -> None:
        self._video = video
        self.rate, self.height, self.width = video.rate, video.height, video.width
        if not video.rate:
            raise VideoError(path, f"has no known frame rate, which its stretch from {start:g} to {end:g} s needs")
        ends = video.time_of(len(video))
        if start >= ends:
            raise VideoError(path, f"ends at {ends:g} s, before its stretch from {start:g} to {end:g} s begins")

        def middle(frame: int) -> float:
            return (video.time_of(frame) + video.time_of(frame + 1)) / 2

        frames = range(len(video))
        first, after = (bisect_left(frames, seconds, key=middle) for seconds in (start, end))
        if first == after:
            first = max(0, bisect_right(frames, start, key=video.time_of) - 1)
        self._first, self._length = first, max(1, after - first)

    def __len__(self) -> int:
        return self._length

    @property
    def damage(self) -> Damage:
        """That of the video, as far as it is known; frames are counted in the whole video."""
        return self._video.damage

    def time_of(self, frame: int) -> float:
        """Seconds from the first frame of the stretch to another one, or to the end of the last."""
        return self.time_in_video(frame) - self.time_in_video(0)

    def time_in_video(self, frame: int) -> float:
        """Seconds from the first frame of the video to a frame of the stretch, or to the end of the last."""
        return self._video.time_of(self._first + frame)

    def read(self, indices: Sequence[int], box: Box | None = None) -> Tensor:
        """Reads frames of the stretch. Arguments and errors are those of `VideoReader.read`."""
        return self._video.read(self._shifted(indices), box)

    def read_yuv(self, indices: Sequence[int], box: Box | None = None) -> YuvClip | Tensor:
        """Reads frames of the stretch as `VideoReader.read_yuv` does, where the video has it, and else as `read`."""
        if isinstance(self._video, VideoReader):
            return self._video.read_yuv(self._shifted(indices), box)
        return self.read(indices, box)

    def _shifted(self, indices: Sequence[int]) -> list[int]:
        if outside := [index for index in indices if not 0 <= index < len(self)]:
            raise IndexError(f"`indices` must lie in 0 to {len(self) - 1} in a stretch of a video, got {outside[0]}.")
        return [self._first + index for index in indices]


Video = VideoReader | FrameFolder | Stretch

_told: set[str] = set()


@contextmanager
def open_row(manifest: Manifest, row: int, read_timeout: float = 60.0) -> Iterator[Video]:
    """Opens a row of a manifest for a `with`: a video, a folder of frames, or a stretch of either.

    A read may take `read_timeout` seconds.
    """
    path, stretch = manifest.path(row), manifest.stretch(row)
    with _open(manifest, row, path, read_timeout) as video:
        yield video if stretch is None else Stretch(video, path, *stretch)
        if isinstance(video, VideoReader) and video.fallbacks and not video.table.damage:
            _tell_once(path, _SLOW)
        if isinstance(video, VideoReader) and video.table.is_hdr:
            _tell_once(path, _PALE)


def frame_table(manifest: Manifest, row: int) -> FrameTable | None:
    """Returns the frame table of a row's video, or None; the reader then begins at the video's first frame.

    This does not even ask for the video's size: its drive may hang, and only the reader's calls have a timeout.
    """
    try:
        data = manifest.table(row)
        return FrameTable.from_bytes(data) if data else None
    except (OSError, ValueError) as error:
        warnings.warn(
            f"Frame tables of {manifest.origin} are damaged, or were written anew since it was read: {error} Videos "
            "are read from their beginning, which is slower. Start again, or make the tables again: run "
            "`lightning-multigrid prepare` or `lightning-multigrid index`.",
            stacklevel=2,
        )
        return None


def _open(manifest: Manifest, row: int, path: str, read_timeout: float) -> VideoReader | FrameFolder:
    if manifest.frame_rate is not None:
        return FrameFolder(path, manifest.frame_rate, read_timeout)
    return VideoReader(path, frame_table(manifest, row), read_timeout=read_timeout)


_SLOW = (
    "is not damaged, but frames had to be decoded again from farther ahead, as FFmpeg gave others at first. They are "
    "exact, and slow to read. `lightning-multigrid prepare` writes such videos anew"
)
_PALE = (
    "has HDR colours, which are read as if they were not, so they look pale. `lightning-multigrid check` names such "
    "videos; give versions without HDR, if the others have none"
)


def _tell_once(path: str, what: str) -> None:
    """Names the first video of which something is to be told, once for each process."""
    if what not in _told:
        _told.add(what)
        warnings.warn(f"{path} {what}. Others are not named.", stacklevel=3)
