"""Ctrl-C at a moment at which Python can't raise it."""

import sys
from typing import Any

from lightning_multigrid.training.trainer.changes import Changes


class Interrupts:
    """Stops a `fit` at the first Ctrl-C.

    Python only reports an exception in a finalizer, and goes on. torch's loaders (2.15) stop their workers in one, at
    the end of each epoch. So the next step raises what was lost.
    """

    def __init__(self) -> None:
        self._lost = False

    def start(self, changes: Changes) -> None:
        before = sys.unraisablehook

        def noting(unraisable: Any) -> None:
            self._lost = self._lost or issubclass(unraisable.exc_type, KeyboardInterrupt)
            before(unraisable)

        def undo() -> None:
            if sys.unraisablehook is noting:
                sys.unraisablehook = before

        sys.unraisablehook = noting
        changes.callback(undo)

    def raise_lost(self) -> None:
        if self._lost:
            self._lost = False
            raise KeyboardInterrupt
