"""How far a command is, and its bar on the terminal."""

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar


@dataclass
class Progress:
    """Where a `prepare` or an `index_videos` is."""

    total: int  # videos to do
    total_bytes: int  # of their files, from which the remaining time is estimated
    done: int = 0  # videos that are done, or broken
    done_bytes: int = 0  # of their files
    broken: int = 0  # videos that are broken

    def __str__(self) -> str:
        return f"{self.done:,} of {self.total:,} videos" + (f", {self.broken:,} broken" if self.broken else "")


def progress_bar() -> Bar:
    """A bar on standard error, for tasks with a field `count`."""
    columns = TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.fields[count]}")
    # Notebooks set FORCE_COLOR, by which Rich would write each state of the bar into a pipe.
    console = Console(stderr=True, force_terminal=sys.stderr.isatty())
    return Bar(SpinnerColumn(), *columns, TimeRemainingColumn(), console=console)


def sizes_of(paths: Iterable[str]) -> dict[str, int]:
    """The bytes of some files, 0 of those that can't be asked."""
    sizes = {}
    for path in paths:
        try:
            sizes[path] = os.stat(path).st_size
        except (OSError, ValueError):
            sizes[path] = 0
    return sizes
