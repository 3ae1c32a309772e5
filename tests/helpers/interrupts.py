"""A `fit` that Ctrl-C ends."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


def ctrl_c():
    """Sends this process the signal of Ctrl-C, which `NewestCheckpoint` obeys after the step."""
    signal.raise_signal(signal.SIGINT)


@contextmanager
def stopped() -> Iterator[None]:
    """Within it, a `fit` ends by Ctrl-C, after which Lightning leaves the signal ignored."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit):
            yield
    finally:
        signal.signal(signal.SIGINT, handler)
