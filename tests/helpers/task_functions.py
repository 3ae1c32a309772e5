"""Functions that the tests of `processes` run in worker processes."""

import os
import signal
import time
from pathlib import Path


def double(task):
    return 2 * task


def misbehave(task):
    """Does what the task says: a word, or a word and a folder."""
    word, _, folder = task.partition(" ") if isinstance(task, str) else ("", "", "")
    if word in ("SIGKILL", "SIGTERM", "SIGSEGV"):
        os.kill(os.getpid(), signal.Signals[word])
        time.sleep(5)
    if word == "exit":
        os._exit(3)
    if word == "ctrl-c":  # whether it would interrupt this process
        return signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    if word == "raise":
        raise KeyError("what")
    if word == "memory":
        raise MemoryError
    if word == "mistake":
        raise AttributeError("no such thing")
    if word == "hang":
        time.sleep(60)
    if word == "forever":  # says where it is, and works until it is not needed any more
        (Path(folder) / "process").write_text(str(os.getpid()))
        while True:
            time.sleep(0.05)
    return task
