"""Whether the videos of a manifest can be read, and what they are like."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from lightning_multigrid.decode import FrameFolder, FullDecode, VideoError
from lightning_multigrid.prepare.processes import TASK_SECONDS, TaskFailure, run_tasks
from lightning_multigrid.sources import Manifest, ManifestError

_USUAL_RATE = 30.0  # frames per second, where a file doesn't say


def check_video(frame_rate: float | None, path: str) -> None:
    """Decodes all frames of a video, or of a folder if it has a frame rate. A `VideoError` if any is damaged."""
    if frame_rate is not None:
        folder = FrameFolder(path, frame_rate)
        for frame in range(len(folder)):
            folder.read([frame])
        return
    with FullDecode(path) as decode:
        for _ in decode:
            pass
        if decode.damage:
            raise VideoError(path, str(decode.damage))


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
    paths = dict.fromkeys(manifest.path(row) for row in range(len(manifest)))
    for path, result in run_tasks(partial(check_video, manifest.frame_rate), paths, workers, timeout):
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
