"""Ctrl-C at a moment at which Python can't raise it."""

import signal
import threading
from typing import Any

from lightning_multigrid.training.trainer.changes import Changes


class Interrupts:
    """Stops a `fit` at the first Ctrl-C.

    Python only reports an exception in a finalizer, and goes on. torch's loaders (2.15) stop their workers in one, at
    the end of each epoch. So the next step raises what was lost. Handlers of the script are left alone.
    """

    def __init__(self) -> None:
        self._came = False

    def start(self, changes: Changes) -> None:
        before = signal.getsignal(signal.SIGINT)
        if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
            return

        def noting(number: int, frame: Any) -> None:
            self._came = True
            signal.default_int_handler(number, frame)

        def undo() -> None:
            if signal.getsignal(signal.SIGINT) is noting:  # Lightning ignores the signal while it shuts down
                signal.signal(signal.SIGINT, before)

        signal.signal(signal.SIGINT, noting)
        changes.callback(undo)

    def raise_lost(self) -> None:
        if self._came:
            self._came = False
            raise KeyboardInterrupt
