"""A quick look at a video: what it is like, and whether it can be decoded in some places."""

from contextlib import closing, suppress
from typing import NamedTuple

import av
from av.container import InputContainer
from av.video.stream import VideoStream

from lightning_multigrid.decode import FullDecode, VideoError, VideoFile
from lightning_multigrid.files import READ_TIMEOUT
from lightning_multigrid.sources import Manifest, ManifestError

_USUAL_RATE = 30.0  # frames per second, where a file doesn't say


class Look(NamedTuple):
    """What a video is like: frames and frames per second, as the file says, and the short side in pixels."""

    frames: int
    rate: float
    short_side: int


def glance(path: str, places: int) -> tuple[Look, tuple[str, ...]] | None:
    """Decodes the first frame, and up to frames at some further places, spread evenly to the end.

    Returns:
        What the video is like, and what a user may want to know of it, in sentences; or None if it can't be decoded
        everywhere or doesn't say how long it is: whether it is damaged, only a decode of the whole file tells.

    Raises:
        VideoError: If the file can't be read as a video.
    """
    with FullDecode(path) as decode:
        for _ in decode:
            break
        first = decode.table(entries=False)
    with closing(VideoFile(path, READ_TIMEOUT)) as file, file.faults():
        container, stream = file.open()
        with container:
            seconds = float((stream.duration or 0) * (stream.time_base or 0))
            seconds = seconds or (container.duration or 0) / av.time_base
            rate = float(stream.average_rate or 0) or _USUAL_RATE
            ends = [seconds * (place + 1) / (places - 1) for place in range(places - 1)]
            if not seconds or not all(_decodes(container, stream, end) for end in ends):
                return None
            frames = stream.frames or max(1, round(seconds * rate))
            return Look(frames, rate, min(first.height, first.width)), first.notes


def _decodes(container: InputContainer, stream: VideoStream, seconds: float) -> bool:
    """Whether frames from the keyframe before a time up to it come out, without damage."""
    tick = float(stream.time_base or 1)
    end = (stream.start_time or 0) + round(seconds / tick)
    frame = None
    with suppress(av.FFmpegError):
        container.seek(end, stream=stream)
        for frame in container.decode(stream):
            if frame.is_corrupt or frame.pts is None or frame.pts >= end:
                break
        return frame is not None and not frame.is_corrupt
    return False


def look_at(manifest: Manifest, most: int) -> tuple[list[Look], dict[int, str]]:
    """Looks at up to so many videos, evenly spaced; returns rows of broken ones, too, with the reasons."""
    looks, broken = [], {}
    number = min(most, len(manifest))
    for row in (place * len(manifest) // number for place in range(number)):
        path = manifest.path(row)
        try:
            found = glance(path, 2)
            looks.append(found[0] if found is not None else _decoded(path))
        except VideoError as error:
            broken[row] = str(error)
    if not looks:
        raise ManifestError(f"None of {number} videos can be read. The last: {list(broken.values())[-1]}")
    return looks, broken


def _decoded(path: str) -> Look:
    with FullDecode(path) as decode:
        for _ in decode:
            pass
        table = decode.table(entries=False)
    return Look(len(table), table.rate or _USUAL_RATE, min(table.height, table.width))
