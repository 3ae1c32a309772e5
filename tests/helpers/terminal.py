"""What a person sees on a terminal: another process runs on a pseudo-terminal, and `pyte` draws its output."""

import fcntl
import logging
import multiprocessing
import os
import pty
import struct
import sys
import termios
import traceback
import warnings
from dataclasses import dataclass

import pyte


@dataclass(frozen=True)
class Seen:
    """Lines of a terminal, scrolled ones first, and what `watch` kept of the screens on the way."""

    lines: list[str]
    status: int
    watched: list[list[str]]

    @property
    def text(self):
        """The lines, wrapped ones joined by a blank."""
        return " ".join(" ".join(self.lines).split())


def _server():
    """Starts processes that are forks of one that has imported all and computed nothing: autograd works in them."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.helpers.tiny"])
    return context


def on_terminal(run, columns, rows=50, watch=None):
    """Calls a function that can be pickled on a terminal of its own; `watch` picks lines of each screen on the way."""
    terminal, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    child = _server().Process(target=_run, args=(run, os.ttyname(inside)))
    child.start()
    begin = os.read(terminal, 1)  # `inside` must be open until the child has opened it
    os.close(inside)
    screen = pyte.HistoryScreen(columns, rows, history=10_000, ratio=1)
    stream, watched = pyte.ByteStream(screen), []
    stream.feed(begin)
    while True:
        try:
            output = os.read(terminal, 4096)
        except OSError:  # Linux's end of a terminal
            break
        if not output:
            break
        stream.feed(output)
        if watch is not None and (picked := [line.rstrip() for line in screen.display if watch(line)]):
            watched.append(picked)
    os.close(terminal)
    child.join()
    scrolled = ["".join(line[column].data for column in range(columns)) for line in screen.history.top]
    lines = [line.rstrip() for line in (*scrolled, *screen.display)]
    while lines and not lines[-1]:
        lines.pop()
    return Seen(lines, child.exitcode, watched)


def _run(run, terminal):
    status = 1
    try:
        os.setsid()
        opened = os.open(terminal, os.O_RDWR)  # the first that a new session opens controls it
        for standard in range(3):
            os.dup2(opened, standard)
        os.write(1, b"\r")
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            os.environ.pop(name, None)
        os.environ["TERM"] = "xterm-256color"
        sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
        sys.stderr = sys.__stderr__ = open(2, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
        for name in ("lightning.pytorch", "pytorch_lightning"):  # as these do when a script imports them
            logger = logging.getLogger(name)
            logger.handlers, logger.propagate = [logging.StreamHandler()], False
            logger.setLevel(logging.INFO)
        logging.getLogger().handlers = []
        warnings.simplefilter("default")
        warnings.showwarning = _show
        run()
        status = 0
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _show(message, category, filename, lineno, file=None, line=None):
    """As Python does; pytest has put something else there."""
    (file or sys.stderr).write(warnings.formatwarning(message, category, filename, lineno, line))
