"""The frame tables of videos that are not prepared, made once and kept: a training then reads clips of them fast."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from rich import filesize

from lightning_multigrid.decode import FrameTable, VideoError, make_table
from lightning_multigrid.files import READ_TIMEOUT
from lightning_multigrid.prepare.processes import TASK_SECONDS, TaskFailure, run_tasks
from lightning_multigrid.prepare.progress import Progress, progress_bar, sizes_of
from lightning_multigrid.sources import TableStore

_SAMPLE = 100  # tables that tell for all whether another FFmpeg made them


@dataclass
class Indexed:
    """What `index_videos` did."""

    made: int = 0  # tables
    kept: int = 0  # tables that were there before
    broken: dict[str, str] = field(default_factory=dict)  # path and reason of each video that can't be read
    bytes: int = 0  # of the tables that were made

    def __str__(self) -> str:
        there = f", {self.kept:,} were there" if self.kept else ""
        broken = f", {len(self.broken):,} broken" if self.broken else ""
        return f"Frame tables of {self.made:,} videos made{there}{broken}: {filesize.decimal(self.bytes)}."


def index_videos(
    paths: Iterable[str],
    store: TableStore,
    workers: int = 0,
    progress: Callable[[Progress], None] = lambda now: None,
    timeout: float = TASK_SECONDS,
    read_timeout: float = READ_TIMEOUT,
) -> Indexed:
    """Makes the frame tables of the videos that have none, or an old one, and adds each to a store.

    Args:
        paths: Absolute paths of videos.
        store: Where tables are kept. What was added before an interruption is not made again.
        workers: Processes; 0 works in this one.
        progress: Called after every video.
        timeout: Seconds after which a video counts as broken (not with 0 workers).
        read_timeout: Seconds that a read of a video may take.

    Raises:
        OutputError: If tables can't be written.
    """
    distinct = list(dict.fromkeys(paths))
    missing = without_table(distinct, store)
    now = Progress(len(missing), sum(missing.values()))
    done = Indexed(kept=len(distinct) - len(missing))
    progress(now)
    for path, made in run_tasks(partial(_table_of, read_timeout), missing, workers, timeout):
        if isinstance(made, TaskFailure):
            done.broken[path] = made.reason
        else:
            store.add(path, made)
            done.made, done.bytes = done.made + 1, done.bytes + len(made)
        now.done, now.broken, now.done_bytes = now.done + 1, len(done.broken), now.done_bytes + missing[path]
        progress(now)
    return done


def index_shown(
    paths: Iterable[str],
    store: TableStore,
    workers: int,
    timeout: float = TASK_SECONDS,
    read_timeout: float = READ_TIMEOUT,
) -> Indexed:
    """Does as `index_videos`, with a bar that tells how long it will take."""
    with progress_bar() as bar:
        task = bar.add_task("index", total=None, count="")

        def show(now: Progress) -> None:
            if not now.done and now.total:
                bar.console.print(
                    f"Each of {now.total:,} videos is decoded once, to know its frames. What is made is kept, so it "
                    "may be interrupted.",
                    highlight=False,
                )
            bar.update(task, completed=now.done_bytes, total=max(1, now.total_bytes), count=str(now))

        return index_videos(paths, store, workers, show, timeout, read_timeout)


def _table_of(read_timeout: float, path: str) -> bytes | TaskFailure:
    """A task of `run_tasks`."""
    try:
        return make_table(path, read_timeout=read_timeout).to_bytes()
    except VideoError as error:
        return TaskFailure(error.reason)


def without_table(paths: Sequence[str], store: TableStore, *, sampled: bool = False) -> dict[str, int]:
    """The videos that have no table, or one of another file or FFmpeg, with their bytes (0 if there is no such file).

    If `sampled`, only some tables are looked at, and no video; all are, if another FFmpeg made one of those.
    """
    missing = dict.fromkeys(store.missing(paths))
    there = [path for path in paths if path not in missing]
    if sampled and not any(_is_old(path, store) for path in there[:: max(1, len(there) // _SAMPLE)]):
        there = []
    sizes = sizes_of([*missing, *there])
    missing |= dict.fromkeys(path for path in there if _is_old(path, store, sizes[path]))
    return {path: sizes[path] for path in missing}


def _is_old(path: str, store: TableStore, size: int | None = None) -> bool:
    """Whether a table is to be made again: another FFmpeg made it, or its video has another size now."""
    try:
        table = FrameTable.from_bytes(store.read(path))
    except (OSError, ValueError):
        return True
    return not table.is_current or (size is not None and table.file_size != size)
