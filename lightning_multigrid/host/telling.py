"""What is said on the way: once for all ranks, and on a terminal without a break within a word."""

import shutil
import sys
from textwrap import wrap
from typing import Any

from lightning_utilities.core.rank_zero import rank_zero_info


def tell(text: str) -> None:
    """Says something on the first rank, by Lightning's logger."""
    rank_zero_info(wrapped(text, terminal_columns(sys.stderr)))


def tell_above_bar(trainer: Any, text: str) -> None:
    """Says something on the first rank while a progress bar may be on the terminal, whose line would be broken."""
    bar = trainer.progress_bar_callback
    if bar is None or getattr(bar, "is_disabled", False):  # a script's own bar may not know it
        tell(text)
    elif trainer.is_global_zero:
        bar.print(wrapped(text, terminal_columns(sys.stdout)))


def terminal_columns(stream: object) -> int | None:
    """Returns how many characters a line of a stream has; None if it is not a terminal."""
    isatty = getattr(stream, "isatty", None)
    return shutil.get_terminal_size().columns if isatty is not None and isatty() else None


def wrapped(text: str, columns: int | None) -> str:
    r"""Breaks lines at spaces where a terminal would break words; rows of tables and commands, with two spaces, stay.

    >>> print(wrapped("They would take 8 clips/s, and get 4.\n    lightning-multigrid fit --config a.yaml", 20))
    They would take 8
    clips/s, and get 4.
        lightning-multigrid fit --config a.yaml
    """
    if columns is None:
        return text
    of_line = {"width": columns, "break_long_words": False, "break_on_hyphens": False}
    lines = ([line] if "  " in line else wrap(line, **of_line) or [""] for line in text.split("\n"))  # type: ignore[arg-type]
    return "\n".join(line for broken in lines for line in broken)
