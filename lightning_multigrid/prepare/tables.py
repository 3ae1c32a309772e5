"""The frame tables of videos that are not prepared, made once and kept: a training then reads clips of them fast."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from lightning_multigrid.decode import FrameTable, make_table
from lightning_multigrid.prepare.processes import TASK_SECONDS, TaskFailure, run_tasks
from lightning_multigrid.prepare.progress import Progress, progress_bar
from lightning_multigrid.sources import TableStore

_SAMPLE = 100  # tables that tell for all whether another FFmpeg made them


@dataclass
class Indexed:
    """What `index` did."""

    made: int = 0  # tables
    kept: int = 0  # tables that were there before
    broken: dict[str, str] = field(default_factory=dict)  # path and reason of each video that can't be read

    def __str__(self) -> str:
        there = f", {self.kept:,} were there" if self.kept else ""
        broken = f", {len(self.broken):,} broken" if self.broken else ""
        return f"Frame tables of {self.made:,} videos made{there}{broken}."


def index(paths: Iterable[str], store: TableStore, workers: int = 0, timeout: float = TASK_SECONDS) -> Indexed:
    """Makes the frame tables of the videos that have none, or an old one, with a bar; adds each to a store at once.

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
    now, done = Progress(len(missing)), Indexed(kept=len(distinct) - len(missing))
    with progress_bar() as bar:
        if missing:
            store.remove_unused()
            said = f"Each of {now.total:,} videos is decoded once, to know its frames. What is made is kept."
            bar.console.print(said, highlight=False)
        task = bar.add_task("index", total=now.total, count=str(now))
        for path, made in run_tasks(_table_of, missing, workers, timeout):
            if isinstance(made, TaskFailure):
                done.broken[path] = made.reason
            else:
                store.add(path, made)
                done.made += 1
            now.done, now.broken = now.done + 1, len(done.broken)
            bar.update(task, completed=now.done, count=str(now))
    return done


def _table_of(path: str) -> bytes:
    return make_table(path).to_bytes()


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
