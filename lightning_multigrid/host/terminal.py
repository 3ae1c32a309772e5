"""What is printed on a terminal: lines that end between words, above a progress bar of Lightning if there is one."""

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from textwrap import wrap
from typing import Any, TextIO

from lightning_multigrid.host.package import is_a

_COLUMNS = 80  # of a line where there is no terminal
_LOGGERS = None, "lightning", "lightning.pytorch", "lightning.fabric", "pytorch_lightning", "lightning_fabric"


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
    """Prints text in lines that end between words, to `sys.stdout` by default."""
    stream = to or sys.stdout
    print(wrapped(text, _columns(stream)), file=stream, flush=True)


class _WholeWords(logging.Formatter):
    """The format that a handler without one has, in lines that end between words on its stream."""

    def __init__(self, handler: Any) -> None:
        super().__init__()
        self._handler = handler

    def format(self, record: logging.LogRecord) -> str:
        return wrapped(super().format(record), _columns(self._handler.stream))


@contextmanager
def whole_words() -> Iterator[None]:
    """Within it, log messages and warnings are printed in lines that end between words.

    The records of messages stay as they are, and so do handlers with a format of their own, and those of files.
    """
    handlers = [handler for name in _LOGGERS for handler in logging.getLogger(name).handlers]
    plain = [handler for handler in handlers if type(handler) is logging.StreamHandler and handler.formatter is None]
    for handler in plain:
        handler.setFormatter(_WholeWords(handler))
    own = warnings.formatwarning

    def formatwarning(*args: Any, **kwargs: Any) -> str:
        return wrapped(own(*args, **kwargs), _columns(sys.stderr))

    warnings.formatwarning = formatwarning
    try:
        yield
    finally:
        warnings.formatwarning = own
        for handler in plain:
            handler.setFormatter(None)


def drawing(bar: Any) -> AbstractContextManager[Any]:
    """Within it, a bar of Rich is not drawn by Lightning's thread: it would overwrite the last line of a message.

    Rich 13 to 15 (`live.py`, `Live.refresh`): the lock of a `Live` is not public.
    """
    lock: AbstractContextManager[Any] | None = getattr(getattr(bar.progress, "live", None), "_lock", None)
    return lock or nullcontext()


class _Newest:
    """The stream that is `sys.stderr` or `sys.stdout` at the moment of writing."""

    def __init__(self, name: str, bar: Any) -> None:
        self._name, self._bar = name, bar

    def write(self, text: str) -> int:
        with drawing(self._bar) if hasattr(self._bar, "progress") else nullcontext():
            return int(getattr(sys, self._name).write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(sys, self._name), name)


class _AboveBar:
    """A stream to the terminal of tqdm's bars, which make way for the text and come back below it."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._process = stream, os.getpid()

    def write(self, text: str) -> int:
        from tqdm import tqdm  # there is a bar of it

        if os.getpid() != self._process:  # a worker of the loader has no bar
            return int(self._stream.write(text))
        with tqdm.external_write_mode(self):
            return int(self._stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def above_bar(bar: Any) -> Iterator[None]:
    """Within it, log messages and warnings appear above a progress bar (`trainer.progress_bar_callback`).

    While Rich shows its bar, what is written to `sys.stderr` appears above it; here, tqdm's does the same. Handlers of
    Lightning's loggers hold the stream of their making, so they are given the one of the moment. Streams that are no
    terminals, and those of notebooks, stay as they are.
    """
    with ExitStack() as undo:
        for name in _LOGGERS if bar is not None else ():
            for handler in logging.getLogger(name).handlers:
                stream = getattr(handler, "stream", None)
                held = next((name for name in ("stderr", "stdout") if stream is getattr(sys, name)), "")
                if isinstance(handler, logging.StreamHandler) and held and handler.stream.isatty():
                    undo.callback(handler.setStream, stream)
                    handler.setStream(_Newest(held, bar))
        if is_a(bar, "callbacks.TQDMProgressBar") and sys.stderr.isatty():
            undo.callback(setattr, sys, "stderr", sys.stderr)
            sys.stderr = _AboveBar(sys.stderr)
        yield
