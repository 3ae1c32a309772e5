"""The frame tables of videos that are not prepared, made once and kept: a training then reads clips of them fast."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from lightning_multigrid.decode import FrameTable, VideoError, make_table
from lightning_multigrid.prepare.processes import TASK_SECONDS, TaskFailure, run_tasks
from lightning_multigrid.prepare.progress import Progress, progress_bar
from lightning_multigrid.sources import TableStore, content_key

_SAMPLE = 100  # tables that tell for all whether another FFmpeg made them


@dataclass
class Indexed:
    """What `index` did."""

    made: int = 0  # tables
    kept: int = 0  # tables that were there before, or that another process made
    broken: dict[str, str] = field(default_factory=dict)  # path and reason of each video that can't be read

    def __str__(self) -> str:
        there = f", {self.kept:,} were there" if self.kept else ""
        broken = f", {len(self.broken):,} broken" if self.broken else ""
        return f"Frame tables of {self.made:,} videos made{there}{broken}."


def index(paths: Iterable[str], store: TableStore, workers: int = 0, timeout: float = TASK_SECONDS) -> Indexed:
    """Makes the frame tables of the videos that have none, or an old one, with a bar; adds each to a store at once.

    Several processes share the work: each takes the videos in an order of its own, and looks for the table before it
    makes it.

    Args:
        paths: Absolute paths of videos.
        store: Where tables are kept. What was added before an interruption is not made again.
        workers: Processes; 0 works in this one.
        timeout: Seconds after which a video counts as broken (not with 0 workers).

    Raises:
        OutputError: If tables can't be written.
    """
    distinct = list(dict.fromkeys(paths))
    missing = without_table(distinct, store)
    random.Random().shuffle(missing)
    now, done = Progress(len(missing)), Indexed(kept=len(distinct) - len(missing))
    with progress_bar() as bar:
        if missing:
            store.begin()
            said = f"Each of {now.total:,} videos is decoded once, to know its frames. What is made is kept."
            bar.console.print(said, highlight=False)
        task = bar.add_task("index", total=now.total, count=str(now))
        for path, made in run_tasks(partial(_make, store), missing, workers, timeout):
            if isinstance(made, TaskFailure):
                done.broken[path] = made.reason
            else:
                done.made, done.kept = done.made + made, done.kept + (not made)
            now.done, now.broken = now.done + 1, len(done.broken)
            bar.update(task, completed=now.done, count=str(now))
    return done


def _make(store: TableStore, path: str) -> bool:
    """Makes a table, unless another process has by now; returns whether it did."""
    if not _is_old(path, store):
        return False
    before = _key(path)
    table = make_table(path).to_bytes()
    if _key(path) != before:
        raise VideoError(path, "changed while it was decoded. Index it again")
    store.add(path, table)
    return True


def _key(path: str) -> str:
    try:
        return content_key(path)
    except (OSError, ValueError) as error:
        raise VideoError(path, f"cannot be read ({getattr(error, 'strerror', None) or error})") from error


def without_table(paths: Sequence[str], store: TableStore, *, sampled: bool = False) -> list[str]:
    """The videos that have no table, or one of another FFmpeg.

    If `sampled`, only some tables are looked at; all are, if another FFmpeg made one of those.
    """
    missing = dict.fromkeys(store.missing(paths))
    there = [path for path in paths if path not in missing]
    if sampled and not any(_is_old(path, store) for path in there[:: max(1, len(there) // _SAMPLE)]):
        return list(missing)
    return [*missing, *(path for path in there if _is_old(path, store))]


def _is_old(path: str, store: TableStore) -> bool:
    """Whether a table is to be made again: another FFmpeg made it, or it is damaged."""
    try:
        return not FrameTable.from_bytes(store.read(path)).is_current
    except (OSError, ValueError):
        return True
