"""What the commands print."""

import sys
from typing import TextIO

from lightning_multigrid.files import printable


def say(text: str, to: TextIO | None = None) -> None:
    """Prints text, to `sys.stdout` by default; nothing in it controls the terminal."""
    print(printable(text), file=to or sys.stdout, flush=True)
