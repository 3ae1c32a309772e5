"""Whether the videos of a manifest can be read, and what they are like."""

from collections.abc import Sequence
from contextlib import closing, suppress
from functools import partial
from statistics import mean
from typing import NamedTuple

from lightning_multigrid.decode import FrameTable, TableStore, Video, VideoError, VideoFile, open_whole, planes_bytes
from lightning_multigrid.files import StrPath
from lightning_multigrid.prepare.processes import TASK_SECONDS, TaskFailure, run_tasks, shown
from lightning_multigrid.prepare.tables import index, originals
from lightning_multigrid.prepare.transcode import Planes
from lightning_multigrid.sources import Manifest, ManifestError

_LOOKED_AT = 32  # videos, to know what all are like
_USUAL_RATE = 30.0  # frames per second, where a file doesn't say


def check(manifest: Manifest, folder: StrPath, workers: int = 0, timeout: float = TASK_SECONDS) -> dict[str, str]:
    """Finds the videos that are broken, damaged or cut, or end before a stretch of them begins, each with its fault.

    Their frame tables tell it. Those that are missing are made as by `index`, with its arguments and errors, so that a
    training that follows decodes no video again. Prepared videos and folders of frames, which need none, are decoded.
    """
    # A video that is listed several times is read once.
    starts: dict[str, list[float]] = {}
    for row, path in enumerate(manifest.paths()):
        starts.setdefault(path, []).append(manifest.stretch(row)[0])
    faults = index([(manifest.root, originals(manifest))], folder, workers, timeout).broken
    store = TableStore(folder, manifest.root)
    for path in set(originals(manifest)).difference(faults):
        table = store.find(path)
        faults[path] = _fault(table, starts[path]) if table else "changed while it was checked. Check it again"
    rest = {path: begins for path, begins in starts.items() if path not in faults}
    tasks = run_tasks(partial(_of_decode, manifest.images_per_second), rest.items(), workers, timeout)
    for (path, _), result in shown("check", tasks, len(rest)):
        faults[path] = result.reason if isinstance(result, TaskFailure) else result
    return {path: faults[path] for path in starts if faults[path]}


def _of_decode(images_per_second: float | None, task: tuple[str, Sequence[float]]) -> str:
    path, starts = task
    with open_whole(path, images_per_second) as video:
        for _ in video:
            pass
        return _fault(video.known(), starts)


def _fault(video: FrameTable | Video, starts: Sequence[float]) -> str:
    """What is wrong with a video whose stretches start there, in s; empty if nothing is."""
    if video.damage:
        return str(video.damage)
    if video.lacks:
        return f"seems to be cut: {video.lacks}"
    end = video.start + video.time_of(len(video)) if video.rate else 0.0
    late = [start for start in starts if start and start >= end]
    if not late:
        return ""
    known = f"ends at {end:g} s" if video.rate else "has no known frame rate, and may end"
    return f"{known} before {len(late)} of its stretches start, the last at {max(late):g} s"


class Look(NamedTuple):
    """What a video, or its stretch, is like: frames and frames per second, as the file says; a frame in pixels."""

    frames: int
    rate: float
    height: int
    width: int


def look_at(manifest: Manifest) -> tuple[list[Look], list[str]]:
    """Looks at up to 32 videos, evenly spaced; says of those that can't be begun why."""
    looks, broken = list[Look](), list[str]()
    number = min(_LOOKED_AT, len(manifest))
    for row in (place * len(manifest) // number for place in range(number)):
        try:
            look, first = _look_at(manifest.path(row), manifest.images_per_second)
            (start, end), ends = manifest.stretch(row), first + look.frames / look.rate
            if start >= ends:
                raise VideoError(manifest.path(row), f"ends at {ends:g} s before its stretch from {start:g} s starts")
            looks.append(look._replace(frames=max(1, round((min(end, ends) - max(start, first)) * look.rate))))
        except VideoError as error:
            broken.append(str(error))
    if not looks:
        raise ManifestError(f"None of {number} videos can be read. The last: {broken[-1]}")
    return looks, broken


def kind_of(path: str) -> str:
    """The codec and the size of a video file, as its header says; empty if it can't be begun, or is a folder."""
    with suppress(VideoError), closing(VideoFile(path)) as file:
        container, stream = file.open()
        with container:
            return f"{stream.codec_context.name} {stream.codec_context.width} x {stream.codec_context.height}"
    return ""


def bytes_of_planes(paths: Sequence[str], planes: Planes, images_per_second: float | None = None) -> int:
    """About how many bytes videos take as planes, by up to 32 of them, evenly spaced, that can be begun."""
    found, number = [], min(_LOOKED_AT, len(paths))
    for path in (paths[place * len(paths) // number] for place in range(number)):
        with suppress(VideoError):
            look, _ = _look_at(path, images_per_second)
            found.append(planes_bytes(look.frames, *planes.size(look.height, look.width)))
    return round(len(paths) * mean(found)) if found else 0


def _look_at(path: str, images_per_second: float | None) -> tuple[Look, float]:
    """Looks at a video file, or at a folder of frames if these have a rate; also says when its first frame is shown."""
    with open_whole(path, images_per_second) as video:
        next(iter(video))
        length, rate = video.counted()
        return Look(length, rate or _USUAL_RATE, video.height, video.width), video.start
