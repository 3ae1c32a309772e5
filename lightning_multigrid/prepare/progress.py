"""How far a command is, and its bar on the terminal."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from lightning_multigrid.prepare.processes import TaskFailure


def of_videos(number: int) -> str:
    """So many videos.

    >>> of_videos(1), of_videos(1200)
    ('1 video', '1,200 videos')
    """
    return f"{number:,} video{'s' * (number != 1)}"


@dataclass
class Progress:
    """Where a `prepare` is."""

    total: int  # videos to do
    done: int = 0  # videos that are done, or broken
    broken: int = 0  # videos that are broken

    def __str__(self) -> str:
        return f"{self.done:,} of {of_videos(self.total)}" + (f", {self.broken:,} broken" if self.broken else "")


def progress_bar() -> Bar:
    """A bar on standard error, for tasks with a field `count`."""
    columns = TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.fields[count]}")
    # Notebooks set FORCE_COLOR, by which Rich would write each state of the bar into a pipe.
    console = Console(stderr=True, force_terminal=sys.stderr.isatty())
    return Bar(SpinnerColumn(), *columns, TimeRemainingColumn(), console=console)


def shown(name: str, results: Iterable[tuple[Any, Any]], total: int, said: str = "") -> Iterator[tuple[Any, Any]]:
    """Passes on the results of `run_tasks`, with a bar of that name; if there are any, it says something first."""
    if not total:
        yield from results
        return
    now = Progress(total)
    with progress_bar() as bar:
        if said:
            bar.console.print(said, highlight=False)
        task = bar.add_task(name, total=total, count=str(now))
        for done, result in results:
            now.done, now.broken = now.done + 1, now.broken + isinstance(result, TaskFailure)
            bar.update(task, completed=now.done, count=str(now))
            yield done, result
