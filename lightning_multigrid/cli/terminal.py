"""What the commands print: lines that end between words."""

import os
import sys
from textwrap import wrap
from typing import Any, TextIO

from lightning_multigrid.files import printable

_COLUMNS = 80  # of a line where there is no terminal


def wrapped(text: str, columns: int = _COLUMNS) -> str:
    """Returns text whose lines end between words, where they would be wider than a terminal.

    Lines with two blanks in a row are tables and code, and stay as they are; so do words that are longer than a line.

    >>> wrapped("one two three", columns=8).splitlines()
    ['one two', 'three']
    """
    lines = text.split("\n")
    return "\n".join(
        line if "  " in line else "\n".join(wrap(line, columns, break_long_words=False, break_on_hyphens=False))
        for line in lines
    )


def _columns(stream: Any) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or _COLUMNS
    except (AttributeError, OSError, ValueError):  # no file, no terminal, or closed
        return _COLUMNS


def say(text: str, to: TextIO | None = None) -> None:
    """Prints text in lines that end between words, to `sys.stdout` by default; nothing in it controls the terminal."""
    stream = to or sys.stdout
    print(wrapped(printable(text), _columns(stream)), file=stream, flush=True)
