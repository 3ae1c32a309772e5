"""Messages and a progress bar of Lightning on one terminal: messages are whole lines above the bar."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

from lightning_multigrid.host.package import is_a

_LOGGERS = None, "lightning", "lightning.pytorch", "lightning.fabric", "pytorch_lightning", "lightning_fabric"


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
