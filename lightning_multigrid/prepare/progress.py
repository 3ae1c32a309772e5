"""How far a command is, and its bar on the terminal."""

import sys
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar


@dataclass
class Progress:
    """Where a `prepare` is."""

    total: int  # videos to do
    done: int = 0  # videos that are done, or broken
    broken: int = 0  # videos that are broken

    def __str__(self) -> str:
        return f"{self.done:,} of {self.total:,} videos" + (f", {self.broken:,} broken" if self.broken else "")


def progress_bar() -> Bar:
    """A bar on standard error, for tasks with a field `count`."""
    columns = TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.fields[count]}")
    # Notebooks set FORCE_COLOR, by which Rich would write each state of the bar into a pipe.
    console = Console(stderr=True, force_terminal=sys.stderr.isatty())
    return Bar(SpinnerColumn(), *columns, TimeRemainingColumn(), console=console)
