"""The bar of a command on the terminal."""

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from lightning_multigrid.files import of_videos
from lightning_multigrid.prepare.processes import TaskFailure


def shown(name: str, results: Iterable[tuple[Any, Any]], total: int, said: str = "") -> Iterator[tuple[Any, Any]]:
    """Passes on results of `run_tasks`, with a bar on standard error; if there are any, it says something first."""
    if not total:
        yield from results
        return
    columns = TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.fields[count]}")
    # Notebooks set FORCE_COLOR, by which Rich would write each state of the bar into a pipe.
    console = Console(stderr=True, force_terminal=sys.stderr.isatty())
    with Progress(SpinnerColumn(), *columns, TimeRemainingColumn(), console=console) as bar:
        if said:
            console.print(said, highlight=False)
        task, broken = bar.add_task(name, total=total, count=f"0 of {of_videos(total)}"), 0
        for number, (done, result) in enumerate(results, start=1):
            broken += isinstance(result, TaskFailure)
            bad = f", {broken:,} broken" if broken else ""
            bar.update(task, completed=number, count=f"{number:,} of {of_videos(total)}{bad}")
            yield done, result
