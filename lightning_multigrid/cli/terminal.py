"""What the commands print."""

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from lightning_multigrid.files import printable
from lightning_multigrid.host import terminal_columns, wrapped


def say(text: str, to: TextIO | None = None) -> None:
    """Prints text, to `sys.stdout` by default; nothing in it controls the terminal, which breaks no word."""
    to = to or sys.stdout
    print(wrapped(printable(text), terminal_columns(to)), file=to, flush=True)


@contextmanager
def ends_unread() -> Iterator[None]:
    """Ends a command without a word if nobody reads what it prints any more, as in front of `head`."""
    try:
        try:
            yield
        except SystemExit:
            sys.stdout.flush()
            raise
        sys.stdout.flush()
    except BrokenPipeError:
        poll = select.poll()
        poll.register(sys.stdout, 0)
        if not poll.poll(0):  # it is another pipe
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python writes when it ends
        raise SystemExit(141) from None  # as a shell has it of programs that end so
