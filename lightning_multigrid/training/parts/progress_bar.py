"""Lightning's progress bar in a run: what it shows, on one line of the terminal."""

import sys
from collections.abc import Mapping
from functools import partial, wraps
from typing import Any

from lightning_multigrid.host import LightningModule, Trainer, is_a, tell_above_bar, terminal_columns
from lightning_multigrid.reports import RunReport
from lightning_multigrid.training.trainer.changes import Changes

_OF_RICH, _OF_TQDM = 4, 38  # characters beside description, bar, count and items: spaces; share, times and speed
_SHORTEST, _LONGEST, _ITEMS = 8, 40, 72  # characters of Rich's bar, and those for all else on its line


def show_on_bar(trainer: Trainer, report: RunReport, changes: Changes) -> None:
    """Shows items of the report on the progress bar, and what it tells on the way above the bar."""
    bar: Any = trainer.progress_bar_callback
    if bar is None:
        return
    if trainer.is_global_zero:
        changes.set_attribute(report, "tell", partial(tell_above_bar, trainer))
    of_lightning = "configure_columns" not in {name for kind in type(bar).__mro__[:-1] for name in _own(kind)}
    rich = is_a(bar, "callbacks.RichProgressBar") and of_lightning
    if rich:
        changes.set_attribute(bar, "configure_columns", lambda _: _rich_columns(bar.theme))
    own = bar.get_metrics

    @wraps(own)
    def get_metrics(trainer: Trainer, module: LightningModule) -> dict[str, Any]:
        # Metrics of the sanity check say nothing, and the logger's version would not leave room for the script's.
        of_script = {} if trainer.sanity_checking else own(trainer, module)
        of_script = {name: value for name, value in of_script.items() if name != "v_num"}
        columns, count = terminal_columns(sys.stdout), 2 * len(str(trainer.num_training_batches)) + 1
        if columns is None:
            return {**report.bar, **of_script}
        epochs = len(f"Epoch {trainer.max_epochs}/{trainer.max_epochs}")
        fixed = _OF_RICH + _bar_width(columns) if rich else _OF_TQDM
        return fitting(report.bar, of_script, columns - max(epochs, len("Validation")) - count - fixed)

    # Items that are text can only come from this method; what is logged for the bar must be a number.
    changes.set_attribute(bar, "get_metrics", get_metrics)


def end_bar(trainer: Trainer) -> None:
    """Ends the line of the bar, before Lightning says on it that the `fit` has reached its end, and draws it again."""
    bar: Any = trainer.progress_bar_callback
    if is_a(bar, "callbacks.RichProgressBar") and bar.progress is not None:
        bar.progress.stop()
    elif is_a(bar, "callbacks.TQDMProgressBar"):
        bar.train_progress_bar.close()


def fitting(ours: Mapping[str, str], of_script: Mapping[str, Any], room: int) -> dict[str, Any]:
    """Returns the items of the script, after as many of ours, from the last, as leave all on a line of `room`."""
    left = room - sum(map(_width, of_script, of_script.values()))
    kept: dict[str, Any] = {}
    for name in reversed(list(ours)):
        left -= _width(name, ours[name])
        if left >= 0:
            kept = {name: ours[name], **kept}
    return {**kept, **of_script}


def _width(name: str, value: Any) -> int:
    return len(name) + len(value if isinstance(value, str) else f"{float(value):.3f}") + 3  # ": " and a space


def _bar_width(columns: int) -> int:
    return max(_SHORTEST, min(_LONGEST, columns - _ITEMS))


def _own(kind: type) -> set[str]:
    """What a class outside of Lightning defines."""
    return set() if kind.__module__.startswith(("lightning.", "pytorch_lightning.")) else set(vars(kind))


def _rich_columns(theme: Any) -> list[Any]:
    """Rich's columns without those of time and speed: `left` is the time of the whole run."""
    from rich.progress import BarColumn, ProgressColumn, Task, TextColumn
    from rich.text import Text

    class Count(ProgressColumn):
        def render(self, task: Task) -> Text:
            total = "--" if task.total is None or task.total == float("inf") else f"{task.total:.0f}"
            return Text(f"{task.completed:.0f}/{total}", style=theme.batch_progress)

    columns = terminal_columns(sys.stdout) or _LONGEST + _ITEMS
    styles = {"complete_style": theme.progress_bar, "finished_style": theme.progress_bar_finished}
    bar = BarColumn(_bar_width(columns), pulse_style=theme.progress_bar_pulse, **styles)
    return [TextColumn("[progress.description]{task.description}"), bar, Count()]
