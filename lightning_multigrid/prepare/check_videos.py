"""Whether the videos of a manifest can be read."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lightning_multigrid.decode import FrameFolder, FrameTable, FullDecode, VideoError
from lightning_multigrid.prepare.glance import glance
from lightning_multigrid.prepare.processes import TaskFailure, run_tasks
from lightning_multigrid.prepare.tables import make_tables
from lightning_multigrid.sources import Manifest, TableStore

_AT_ONCE = 8  # images that are decoded at a time: 1080p is 6 MB an image


@dataclass(frozen=True)
class Finding:
    """What `check` found in a video: why it is broken or what is damaged in it, or None; and what else may matter."""

    reason: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class CheckJob:
    """A video to read, or a folder of frames if `frame_rate` is given; `frames` None means all."""

    path: str
    frames: int | None
    frame_rate: float | None = None


def check_video(job: CheckJob, beat: Callable[[], None] = lambda: None) -> Finding:
    """Reads a video or a folder. With `frames` only some, and all if these are damaged, to say how much and where."""
    try:
        if job.frame_rate is not None:
            return _check_folder(FrameFolder(job.path, job.frame_rate), job.frames, beat)
        if job.frames is not None and (found := glance(job.path, job.frames)) is not None:
            return Finding(notes=found[1])
        with FullDecode(job.path, beat=beat) as decode:
            for _ in decode:
                pass
            return _found(decode.table(entries=False))
    except VideoError as error:
        return Finding(error.reason)


def _check_folder(folder: FrameFolder, frames: int | None, beat: Callable[[], None]) -> Finding:
    number = len(folder) if frames is None else min(frames, len(folder))
    wanted = [round(i * (len(folder) - 1) / max(1, number - 1)) for i in range(number)]
    for first in range(0, number, _AT_ONCE):
        folder.read(wanted[first : first + _AT_ONCE])
        beat()
    return Finding()


def _found(table: FrameTable) -> Finding:
    return Finding(str(table.damage) if table.damage else None, table.notes)


def check(
    manifest: Manifest,
    *,
    frames: int | None = 4,
    workers: int = 0,
    timeout: float = 300.0,
    store: TableStore | None = None,
) -> Iterator[tuple[str, Finding]]:
    """Reads every video of a manifest once; an argument outside its range is a ValueError.

    Args:
        manifest: The videos.
        frames: Places in each, evenly spaced from the first frame to the last, at which frames are decoded, from the
            keyframes before them; None means all frames.
        workers: Processes; 0 works in this one.
        timeout: Seconds without a sign of life after which a video counts as broken (not with 0 workers).
        store: Keeps the frame tables of the videos, if all frames are decoded.

    Yields:
        Path of a video, and what was found, in the order in which they finish.
    """
    if workers < 0 or timeout <= 0 or (frames is not None and frames < 1):
        raise ValueError(
            "`workers` must be at least 0, `timeout` positive and `frames` at least 1 or None, got "
            f"{workers}, {timeout} and {frames}."
        )
    # A video that is listed several times is read once.
    paths = dict.fromkeys(manifest.path(row) for row in range(len(manifest)))
    if store is not None and frames is None and manifest.frame_rate is None:
        for path, made in make_tables(paths, store, workers, timeout):
            if isinstance(made, TaskFailure):
                yield path, Finding(made.reason)
            else:
                yield path, _found(FrameTable.from_bytes(made.table))
        return
    for job, result in run_tasks(
        check_video, (CheckJob(path, frames, manifest.frame_rate) for path in paths), workers, timeout
    ):
        yield job.path, Finding(result.reason) if isinstance(result, TaskFailure) else result
