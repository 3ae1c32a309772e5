"""Functions that the tests of `workers` run in worker processes."""

import os
import signal
import sys
import threading
import time


def double(task, beat):
    print("Noise on standard output.")
    return 2 * task


def misbehave(task, beat):
    """Does what the task says."""
    if task == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if task == "exit":
        sys.exit(3)
    if task == "raise":
        raise KeyError("what")
    if task == "last breath":
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
    if task == "hang":
        time.sleep(60)
    if task == "work":
        for _ in range(6):
            time.sleep(0.5)
            beat()
    if isinstance(task, str) and task.startswith("/"):  # says where it is, and works until it is not needed any more
        with open(task, "w") as file:
            file.write(str(os.getpid()))
        while True:
            time.sleep(0.05)
            beat()
    return task
