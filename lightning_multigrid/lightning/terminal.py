"""Messages and a progress bar of Lightning on one terminal: messages are whole lines above the bar."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from lightning_multigrid.lightning.package import is_a

_LOGGERS = None, "lightning", "lightning.pytorch", "lightning.fabric", "pytorch_lightning", "lightning_fabric"


class _Newest:
    """The stream that is `sys.stderr` or `sys.stdout` at the moment of writing."""

    def __init__(self, name: str) -> None:
        self._name = name

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
                    handler.setStream(_Newest(held))
        if is_a(bar, "callbacks.TQDMProgressBar") and sys.stderr.isatty():
            undo.callback(setattr, sys, "stderr", sys.stderr)
            sys.stderr = _AboveBar(sys.stderr)
        yield
