"""The frame tables of videos that are not prepared, made once and kept: a training then reads clips of them fast."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from lightning_multigrid.decode import FrameTable, VideoError, make_kept, read_kept
from lightning_multigrid.files import is_url, state_of
from lightning_multigrid.prepare.processes import TASK_SECONDS, TaskFailure, run_tasks
from lightning_multigrid.prepare.progress import of_videos, shown
from lightning_multigrid.sources import TableStore, content_key

_SAMPLE = 100  # tables that tell for all whether another FFmpeg made them


@dataclass
class Indexed:
    """What `index` did."""

    made: int = 0  # tables
    kept: int = 0  # tables that were there before, or that another process made
    broken: dict[str, str] = field(default_factory=dict)  # path and reason of each video that can't be read

    def __str__(self) -> str:
        there = f", {self.kept:,} there before" if self.kept else ""
        broken = f", {len(self.broken):,} broken" if self.broken else ""
        return f"Frame tables of {of_videos(self.made)} made{there}{broken}."


def index(paths: Iterable[str], store: TableStore, workers: int = 0, timeout: float = TASK_SECONDS) -> Indexed:
    """Makes the frame tables of the videos that have none, or an old one, with a bar; adds each to a store at once.

    Several processes share the work: each takes the videos in an order of its own, and looks for the table before it
    makes it. That a video is broken is kept in the place of its table, and holds for this version of the package.

    Args:
        paths: Absolute paths of videos.
        store: Where tables are kept. What was added before an interruption is not made again.
        workers: Processes; 0 works in this one.
        timeout: Seconds after which a video counts as broken, until the next call (not with 0 workers).

    Raises:
        OutputError: If tables can't be written.
    """
    done, tasks = known(paths, store)
    if tasks:
        store.begin()
    random.Random().shuffle(tasks)
    each = "Each of " if len(tasks) > 1 else ""
    said = f"{each}{of_videos(len(tasks))} is decoded once, to know its frames. Tables are kept for the next run."
    if remote := sum(map(is_url, tasks)):
        said += f" Copied from URLs for that, one at a time for each process: {remote:,}."
    for path, made in shown("index", run_tasks(partial(_make, store), tasks, workers, timeout), len(tasks), said):
        if isinstance(made, TaskFailure):
            done.broken[path] = made.reason
        else:
            done.made, done.kept = done.made + made, done.kept + (not made)
    return done


def known(paths: Iterable[str], store: TableStore) -> tuple[Indexed, list[str]]:
    """Returns what is known of some videos, and those of which nothing is, or only an old table."""
    distinct, done = list(dict.fromkeys(paths)), Indexed()
    missing = dict.fromkeys(store.missing(distinct))
    for path in distinct:
        try:
            if path not in missing and kept_table(path, store) is None:
                missing[path] = None
            done.kept += path not in missing
        except VideoError as error:
            done.broken[path] = error.reason
    return done, list(missing)


def _make(store: TableStore, path: str) -> bool:
    """Makes a table, unless another process has by now; returns whether it did. A `VideoError` if a video is broken."""
    if kept_table(path, store) is not None:
        return False
    before = _key(path)
    data, whole = make_kept(path)
    if _key(path) != before:
        raise VideoError(path, "changed while it was decoded. Index it again")
    store.add(path, data, dated=not whole)
    read_kept(path, data)  # says why it is broken
    return True


def _key(path: str) -> tuple[str, int]:
    try:
        return content_key(path), state_of(path).changed
    except (OSError, ValueError) as error:
        raise VideoError(path, f"cannot be read ({getattr(error, 'strerror', None) or error})") from error


def without_table(paths: Sequence[str], store: TableStore) -> list[str]:
    """The videos that have no table, and if another FFmpeg made one of some that are looked at, those of old tables."""
    missing = dict.fromkeys(store.missing(paths))
    there = [path for path in paths if path not in missing]
    if any(_is_old(path, store) for path in there[:: max(1, len(there) // _SAMPLE)]):
        missing |= dict.fromkeys(path for path in there if _is_old(path, store))
    return list(missing)


def _is_old(path: str, store: TableStore) -> bool:
    try:
        return kept_table(path, store) is None
    except VideoError:
        return False


def kept_table(path: str, store: TableStore) -> FrameTable | None:
    """Returns the table of a video; None if there is none, or it is damaged, or another FFmpeg made it.

    A `VideoError` if the video is known to be broken.
    """
    try:
        table = read_kept(path, store.read(path))
    except VideoError:
        raise
    except (OSError, ValueError):
        return None
    return table if table is not None and table.is_current else None
