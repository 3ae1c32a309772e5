"""The frame tables of videos that are not prepared, made once and kept: a training then reads clips of them fast."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import NamedTuple

from rich import filesize

from lightning_multigrid.decode import FrameTable, VideoError, make_table
from lightning_multigrid.files import READ_TIMEOUT, sizes_and_changes
from lightning_multigrid.prepare.processes import TaskFailure, run_tasks
from lightning_multigrid.prepare.progress import Progress, progress_bar
from lightning_multigrid.sources import TableStore

_SEGMENT_SECONDS = 30.0  # between two segments: so much work may be lost
_SAMPLE = 100  # tables that tell for all whether another FFmpeg made them
_TOLD_SECONDS = 10.0  # after which the time for all is foretold


@dataclass
class Indexed:
    """What `index_videos` did."""

    made: int = 0  # tables
    kept: int = 0  # tables that were there before
    broken: dict[str, str] = field(default_factory=dict)  # path and reason of each video that can't be read
    bytes: int = 0  # of the tables that were made
    minutes: float = 0.0  # of video in them, as far as rates are known
    seconds: float = 0.0  # of CPU time that they took, in all processes together

    def __str__(self) -> str:
        pace = f", {self.seconds / self.minutes:.2f} s of a core for a minute of video" if self.minutes else ""
        there = f", {self.kept:,} were there" if self.kept else ""
        broken = f", {len(self.broken):,} broken" if self.broken else ""
        return f"Frame tables of {self.made:,} videos made{there}{broken}: {filesize.decimal(self.bytes)}{pace}."


def index_videos(
    paths: Iterable[str],
    store: TableStore,
    workers: int = 0,
    progress: Callable[[Progress], None] = lambda now: None,
    timeout: float = 300.0,
    read_timeout: float = READ_TIMEOUT,
) -> Indexed:
    """Makes the frame tables of the videos that have none, or an old one, and adds them to a store on the way.

    Args:
        paths: Absolute paths of videos, or URLs.
        store: Where tables are kept. What was added before an interruption is not made again.
        workers: Processes; 0 works in this one.
        progress: Called after every video.
        timeout: Seconds without a sign of life after which a video counts as broken (not with 0 workers).
        read_timeout: Seconds that a read of a video may take.

    Raises:
        OutputError: If tables can't be written.
    """
    distinct = list(dict.fromkeys(paths))
    missing = without_table(distinct, store)
    now = Progress(len(missing), sum(missing.values()))
    done = Indexed(kept=len(distinct) - len(missing))
    progress(now)
    for path, made in make_tables(missing, store, workers, timeout, read_timeout):
        if isinstance(made, TaskFailure):
            done.broken[path] = made.reason
        else:
            table = FrameTable.from_bytes(made.table)
            done.made, done.bytes, done.seconds = (
                done.made + 1,
                done.bytes + len(made.table),
                done.seconds + made.seconds,
            )
            done.minutes += len(table) / table.rate / 60 if table.rate else 0.0
        now.done, now.broken, now.done_bytes = now.done + 1, len(done.broken), now.done_bytes + missing[path]
        progress(now)
    return done


def index_shown(
    paths: Iterable[str], store: TableStore, workers: int, timeout: float = 300.0, read_timeout: float = READ_TIMEOUT
) -> Indexed:
    """Does as `index_videos`, with a bar, and tells how long all will take."""
    began = time.monotonic()
    told = False
    with progress_bar() as bar:
        task = bar.add_task("index", total=None, count="")

        def show(now: Progress) -> None:
            nonlocal told
            bar.update(task, completed=now.done_bytes, total=max(1, now.total_bytes), count=str(now))
            passed = time.monotonic() - began
            if not told and now.done_bytes and passed > _TOLD_SECONDS:
                told = True
                rest = timedelta(seconds=round(passed * (now.total_bytes / now.done_bytes - 1)))
                processes = f"{workers} processes" if workers > 1 else "1 process"
                bar.console.print(
                    f"Each of {now.total:,} videos is decoded once, to know its frames; with {processes} this will "
                    f"take about {rest}. What is made is kept, so it may be interrupted.",
                    highlight=False,
                )

        return index_videos(paths, store, workers, show, timeout, read_timeout)


class Made(NamedTuple):
    """A table, as bytes, and the CPU seconds that it took."""

    table: bytes
    seconds: float


def make_tables(
    paths: Iterable[str],
    store: TableStore | None,
    workers: int,
    timeout: float,
    read_timeout: float = READ_TIMEOUT,
) -> Iterator[tuple[str, Made | TaskFailure]]:
    """Makes the table of each video, and yields it, or why there is none; adds what is made to a store."""
    pending: dict[str, bytes] = {}
    added_at = time.monotonic()
    try:
        for path, result in run_tasks(partial(_table_of, read_timeout), paths, workers, timeout):
            if isinstance(result, Made):
                pending[path] = result.table
            if store is not None and time.monotonic() - added_at > _SEGMENT_SECONDS:
                added, pending = pending, {}  # what can't be added is not tried twice
                store.add(added)
                added_at = time.monotonic()
            yield path, result
    finally:
        if store is not None and pending:
            store.add(pending)


def _table_of(read_timeout: float, path: str, beat: Callable[[], None]) -> Made | TaskFailure:
    """A task of `run_tasks`."""
    began = time.thread_time()
    try:
        return Made(make_table(path, read_timeout=read_timeout, beat=beat).to_bytes(), time.thread_time() - began)
    except VideoError as error:
        return TaskFailure(error.reason)


def without_table(paths: Sequence[str], store: TableStore, *, sampled: bool = False) -> dict[str, int]:
    """The videos that have no table, or one of another file or FFmpeg, with their bytes (0 if there is no such file).

    If `sampled`, only some tables are looked at, and no video; all are, if another FFmpeg made one of those.
    """
    if not paths:
        return {}
    missing = dict.fromkeys(store.missing(paths))
    there = [path for path in paths if path not in missing]
    if sampled:
        some = there[:: max(1, len(there) // _SAMPLE)]
        there = there if any(_is_old(data) for data in _tables(some, store)) else []
    found = sizes_and_changes([*missing, *there])
    sizes = {path: size[0] if isinstance(size, tuple) else 0 for path, size in found.items()}
    for path, data in zip(there, _tables(there, store), strict=True):
        if _is_old(data, sizes[path]):
            missing[path] = None
    return {path: sizes[path] for path in missing}


def _tables(paths: Sequence[str], store: TableStore) -> Iterator[bytes]:
    tables = store.tables(paths)
    return (tables[row] for row in range(len(paths)))


def _is_old(data: bytes, size: int | None = None) -> bool:
    """Whether a table is to be made again: another FFmpeg made it, or its video has another size now."""
    try:
        table = FrameTable.from_bytes(data)
    except ValueError:
        return True
    return not table.is_current or (size is not None and table.file_size != size)
