"""What the commands print: lines that end between words."""

import shutil
import sys
from textwrap import wrap
from typing import TextIO

from lightning_multigrid.files import printable


def wrapped(text: str, columns: int) -> str:
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


def say(text: str, to: TextIO | None = None) -> None:
    """Prints text in lines that end between words, to `sys.stdout` by default; nothing in it controls the terminal."""
    print(wrapped(printable(text), shutil.get_terminal_size().columns), file=to or sys.stdout, flush=True)
