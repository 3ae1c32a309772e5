"""Whether the videos of a manifest can be read, without writing anything."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from lightning_multigrid.decode import FrameFolder, VideoError, VideoReader, build_index, open_video
from lightning_multigrid.prepare.workers import TaskFailure, run_tasks
from lightning_multigrid.sources import Manifest, ManifestError

_AT_ONCE = 8  # frames that are decoded at a time: 1080p is 6 MB a frame


@dataclass(frozen=True)
class CheckJob:
    """A video to read, or a folder of frames if `frame_rate` is given; `frames` None means all."""

    path: str
    frames: int | None
    frame_rate: float | None = None


def check_video(job: CheckJob, beat: Callable[[], None] = lambda: None) -> str | None:
    """Returns why a video is broken or what is damaged in it, or None if it can be read.

    With `frames`, only these and what they need are read. If damage is met, all frames are, to say how much and where.
    """
    try:
        with open_video(job.path, job.frame_rate) as video:
            fault = None
            if isinstance(video, FrameFolder) or job.frames is not None:
                number = len(video) if job.frames is None else min(job.frames, len(video))
                wanted = [round(i * (len(video) - 1) / max(1, number - 1)) for i in range(number)]
                try:
                    for first in range(0, number, _AT_ONCE):
                        video.read(wanted[first : first + _AT_ONCE])
                        beat()
                except VideoError as error:
                    fault = error.reason
            if isinstance(video, VideoReader) and (job.frames is None or video.damage):
                for _ in video.frames():
                    beat()
            return str(video.damage) if video.damage else fault
    except VideoError as error:
        return error.reason


def check(
    manifest: Manifest, *, frames: int | None = 4, workers: int = 0, timeout: float = 300.0
) -> Iterator[tuple[str, str | None]]:
    """Reads every video of a manifest once; an argument outside its range is a ValueError.

    Args:
        manifest: The videos.
        frames: Frames of each to decode, evenly spaced from the first to the last; None means all.
        workers: Processes; 0 works in this one.
        timeout: Seconds without a sign of life after which a video counts as broken (not with 0 workers).

    Yields:
        Path of a video, and why it is broken or None, in the order in which they finish.
    """
    if workers < 0 or timeout <= 0 or (frames is not None and frames < 1):
        raise ValueError(
            "`workers` must be at least 0, `timeout` positive and `frames` at least 1 or None, got "
            f"{workers}, {timeout} and {frames}."
        )
    # A video that is listed several times is read once.
    paths = dict.fromkeys(manifest.path(row) for row in range(len(manifest)))
    jobs = (CheckJob(path, frames, manifest.frame_rate) for path in paths)
    for job, result in run_tasks("lightning_multigrid.prepare.check_videos:check_video", jobs, workers, timeout):
        yield job.path, result.reason if isinstance(result, TaskFailure) else result


class Look(NamedTuple):
    """What a video is like: frames, frames per second, and the short side in pixels."""

    frames: int
    rate: float
    short_side: int


def look_at(manifest: Manifest, most: int) -> tuple[list[Look], dict[int, str]]:
    """Looks at up to so many videos, evenly spaced, by their indices; returns broken rows, too, with the reasons."""
    looks, broken = [], {}
    number = min(most, len(manifest))
    for row in (place * len(manifest) // number for place in range(number)):
        try:
            index = build_index(manifest.path(row))
        except VideoError as error:
            broken[row] = str(error)
        else:
            seconds = index.time_of(len(index) - 1) - index.time_of(0)
            rate = (len(index) - 1) / seconds if seconds else 30.0
            looks.append(Look(len(index), rate, min(index.height, index.width)))
    if not looks:
        raise ManifestError(f"None of {number} videos can be read. The last: {list(broken.values())[-1]}")
    return looks, broken
