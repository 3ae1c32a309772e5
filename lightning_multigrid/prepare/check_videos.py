"""Whether the videos of a manifest can be read, and what they are like."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from lightning_multigrid.decode import FrameFolder, FullDecode, VideoError
from lightning_multigrid.prepare.processes import TASK_SECONDS, TaskFailure, run_tasks
from lightning_multigrid.sources import Manifest, ManifestError

_USUAL_RATE = 30.0  # frames per second, where a file doesn't say


def check_video(frame_rate: float | None, task: tuple[str, Sequence[float]]) -> None:
    """Decodes all frames of a video, or of a folder if it has a frame rate.

    `task` is its path, and where its stretches start, in s. A `VideoError` if it is damaged, or ends before one starts.
    """
    path, starts = task
    with FullDecode(path) if frame_rate is None else FrameFolder(path, frame_rate) as decode:
        for _ in decode:
            pass
        if decode.damage:
            raise VideoError(path, str(decode.damage))
        video = decode.table(entries=False) if isinstance(decode, FullDecode) else decode
    end = video.start + video.time_of(len(video)) if video.rate else 0.0
    if late := [start for start in starts if start and start >= end]:
        known = f"ends at {end:g} s" if video.rate else "has no known frame rate, and may end"
        raise VideoError(path, f"{known} before {len(late)} of its stretches start, the last at {max(late):g} s")


def check(manifest: Manifest, *, workers: int = 0, timeout: float = TASK_SECONDS) -> Iterator[tuple[str, str | None]]:
    """Decodes every video of a manifest once; an argument outside its range is a ValueError.

    Args:
        manifest: The videos.
        workers: Processes; 0 works in this one.
        timeout: Seconds after which a video counts as broken (not with 0 workers).

    Yields:
        Path of a video, and why it is broken or what is damaged in it, or None; in the order in which they finish.
    """
    # A video that is listed several times is read once.
    starts: dict[str, list[float]] = {}
    for row in range(len(manifest)):
        starts.setdefault(manifest.path(row), []).append(manifest.stretch(row)[0])
    for (path, _), result in run_tasks(partial(check_video, manifest.frame_rate), starts.items(), workers, timeout):
        yield path, result.reason if isinstance(result, TaskFailure) else None


class Look(NamedTuple):
    """What a video, or its stretch, is like: frames and frames per second, as the file says; short side in pixels."""

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
                length, rate = decode.declared_frames or 1 + sum(1 for _ in frames), decode.rate or _USUAL_RATE
                start, end = manifest.stretch(row)
                shown = max(1, round((min(end, length / rate) - start) * rate))
                looks.append(Look(shown, rate, min(decode.height, decode.width)))
        except VideoError as error:
            broken[row] = str(error)
    if not looks:
        raise ManifestError(f"None of {number} videos can be read. The last: {list(broken.values())[-1]}")
    return looks, broken
