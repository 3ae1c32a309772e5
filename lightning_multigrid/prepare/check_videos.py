"""Whether the videos of a manifest can be read, and what they are like."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from lightning_multigrid.decode import FrameFolder, FullDecode, VideoError
from lightning_multigrid.prepare.processes import TASK_SECONDS, TaskFailure, run_tasks
from lightning_multigrid.sources import Manifest, ManifestError

_USUAL_RATE = 30.0  # frames per second, where a file doesn't say
_AT_ONCE = 8  # images that are decoded at a time: 1080p is 6 MB an image


@dataclass(frozen=True)
class Finding:
    """What `check` found in a video: why it is broken or what is damaged in it, or None; and what else may matter."""

    reason: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class CheckJob:
    """A video to read, or a folder of frames if `frame_rate` is given."""

    path: str
    frame_rate: float | None = None


def check_video(job: CheckJob) -> Finding:
    """Decodes all frames of a video or a folder."""
    try:
        if job.frame_rate is not None:
            folder = FrameFolder(job.path, job.frame_rate)
            for first in range(0, len(folder), _AT_ONCE):
                folder.read(range(first, min(first + _AT_ONCE, len(folder))))
            return Finding()
        with FullDecode(job.path) as decode:
            for _ in decode:
                pass
            table = decode.table(entries=False)
        return Finding(str(table.damage) if table.damage else None, table.notes)
    except VideoError as error:
        return Finding(error.reason)


def check(manifest: Manifest, *, workers: int = 0, timeout: float = TASK_SECONDS) -> Iterator[tuple[str, Finding]]:
    """Decodes every video of a manifest once; an argument outside its range is a ValueError.

    Args:
        manifest: The videos.
        workers: Processes; 0 works in this one.
        timeout: Seconds after which a video counts as broken (not with 0 workers).

    Yields:
        Path of a video, and what was found, in the order in which they finish.
    """
    if workers < 0 or timeout <= 0:
        raise ValueError(f"`workers` must be at least 0, and `timeout` positive, got {workers} and {timeout}.")
    # A video that is listed several times is read once.
    paths = dict.fromkeys(manifest.path(row) for row in range(len(manifest)))
    jobs = (CheckJob(path, manifest.frame_rate) for path in paths)
    for job, result in run_tasks(check_video, jobs, workers, timeout):
        yield job.path, Finding(result.reason) if isinstance(result, TaskFailure) else result


class Look(NamedTuple):
    """What a video is like: frames and frames per second, as the file says, and the short side in pixels."""

    frames: int
    rate: float
    short_side: int


def look_at(manifest: Manifest, most: int) -> tuple[list[Look], dict[int, str]]:
    """Looks at up to so many videos, evenly spaced; returns rows of those that can't be begun, too, with the reasons.

    It decodes the first frame, and all only where a file doesn't say how many there are.
    """
    looks, broken = [], {}
    number = min(most, len(manifest))
    for row in (place * len(manifest) // number for place in range(number)):
        try:
            with FullDecode(manifest.path(row)) as decode:
                frames = iter(decode)
                next(frames)
                length = decode.declared_frames or 1 + sum(1 for _ in frames)
                looks.append(Look(length, decode.rate or _USUAL_RATE, min(decode.height, decode.width)))
        except VideoError as error:
            broken[row] = str(error)
    if not looks:
        raise ManifestError(f"None of {number} videos can be read. The last: {list(broken.values())[-1]}")
    return looks, broken
