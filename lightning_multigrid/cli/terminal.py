"""What the commands print."""

import sys
from typing import TextIO

from lightning_multigrid.files import printable
from lightning_multigrid.host import terminal_columns, wrapped


def say(text: str, to: TextIO | None = None) -> None:
    """Prints text, to `sys.stdout` by default; nothing in it controls the terminal, which breaks no word."""
    to = to or sys.stdout
    print(wrapped(printable(text), terminal_columns(to)), file=to, flush=True)
