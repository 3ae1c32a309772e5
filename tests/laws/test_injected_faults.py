"""A fault of the system at any moment: a command ends in a sentence or goes on, and the same command mends it.

All that Python code asks of the system for a path of the proof's folder is counted, whoever asks: the package,
Lightning, fsspec, or FFmpeg and torch through a file of `open`. The n-th call goes wrong, and with some draws, so do
all later ones of its kind. Each command runs in a fork, which a fault may also kill.
"""

import builtins
import errno
import hashlib
import io
import os
import pickle
import random
import signal
import sys
import time
import warnings
from contextlib import ExitStack
from functools import cache, partial
from types import SimpleNamespace
from unittest import mock

import pytest

from lightning_multigrid import AtomicCheckpointIO, MultigridCallback, NewestCheckpoint, VideoDataModule
from lightning_multigrid.prepare import Planes, index, originals, prepare
from lightning_multigrid.sources import VideoList
from tests.helpers.preparing import FAST, contents, videos
from tests.helpers.processes import start_method
from tests.helpers.recorder import TINY, Recorder
from tests.helpers.sampling import sampled
from tests.helpers.tiny import fit

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="open files are named by /proc")

ANYTHING = ("EIO", "ENOMEM", "kill", "clock")  # `clock`: three days back
FAULTS = {
    **dict.fromkeys(("stat", "lstat", "fstat", "scandir", "pread", "read"), ("ESTALE", *ANYTHING)),
    **dict.fromkeys(("open", "open to read"), ("EMFILE", "ESTALE", *ANYTHING)),
    **dict.fromkeys(("mkdir", "replace", "rename", "fsync", "write"), ("ENOSPC", "EDQUOT", *ANYTHING)),
    "open to write": ("EMFILE", "ENOSPC", *ANYTHING),
    "remove": ANYTHING,
}
BY_OS = ("stat", "lstat", "fstat", "scandir", "open", "pread", "mkdir", "replace", "rename", "fsync", "remove")


class Injection:
    """Counts what is done in a folder, and lets the `at`-th call go wrong."""

    def __init__(self, folder, at=0, seed=0):
        self.folder, self.at, self.done = str(folder), at, 0
        self.draw = random.Random(seed)
        self.lasts = self.draw.random() < 0.3
        self.what, self.fault = "", ""

    def __str__(self):
        return f"call {self.at}, {self.what}: {self.fault}{' from then on' * self.lasts}"

    def inside(self, path):
        path = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else path
        return os.path.abspath(os.fsdecode(path)).startswith(self.folder)

    def count(self, what, path):
        if not self.inside(path):
            return
        self.done += 1
        if self.done == self.at:
            self.what, self.fault = what, self.draw.choice(FAULTS[what])
            if self.fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
        if self.at and (self.done == self.at or (self.lasts and self.done > self.at and what == self.what)):
            number = getattr(errno, self.fault, 0)
            names = [os.fspath(path)] if what not in ("pread", "read", "write", "fsync", "fstat") else []
            if number:
                raise OSError(number, os.strerror(number), *names)

    def time(self, _now=time.time):
        return _now() - 3 * 86_400 * (self.fault == "clock")

    def by_os(self, name):
        own = getattr(os, name)

        def counted(path=".", *arguments, **options):
            self.count(name, path)
            return own(path, *arguments, **options)

        return counted

    def open(self, path, mode="r", buffering=-1, *text, _open=open, **of_text):
        if isinstance(path, int) or not self.inside(path):
            return _open(path, mode, buffering, *text, **of_text)
        writes = mode.strip("bt") != "r"
        self.count("open to write" if writes else "open to read", path)
        raw = _File(path, mode.replace("b", "").replace("t", ""))
        raw.count = self.count
        file = (io.BufferedWriter if writes else io.BufferedReader)(raw)
        return file if "b" in mode else io.TextIOWrapper(file, *text, **of_text)

    def run(self, command):
        """Calls a command in a fork of this process; returns what became of it."""
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            found = SimpleNamespace(error=None, result=None)
            try:
                with warnings.catch_warnings(record=True) as caught, ExitStack() as patches:
                    warnings.simplefilter("always")
                    patches.enter_context(mock.patch("time.time", self.time))
                    for name in BY_OS:
                        patches.enter_context(mock.patch(f"os.{name}", self.by_os(name)))
                    for module in (builtins, io):
                        patches.enter_context(mock.patch.object(module, "open", self.open))
                    try:
                        found.result = command()
                    except Exception as error:
                        found.error = f"{type(error).__name__}: {error}"
                found.told = [str(warning.message) for warning in caught]
                found.done, found.fault, found.shown = self.done, self.fault, str(self)
                with os.fdopen(writer, "wb") as pipe:
                    pickle.dump(found, pipe)
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            said = pipe.read()
        os.waitpid(child, 0)
        killed = SimpleNamespace(error=None, result=None, told=[], fault="kill", shown=f"call {self.at}: killed")
        return pickle.loads(said) if said else killed


class _File(io.FileIO):
    """Counts what is read or written through a file of `open`."""

    def write(self, data):
        self.count("write", self.name)
        return super().write(data)

    def readinto(self, target):
        self.count("read", self.name)
        return super().readinto(target)

    def readall(self):
        self.count("read", self.name)
        return super().readall()


def copies(source, output, encoding=FAST):
    return prepare(VideoList(source).read(), output, encoding).broken


def tables(source, output):
    manifest = VideoList(source).read()
    return index([(manifest.root, originals(manifest))], output / "tables").broken


def train(source, output, workers=0):
    """Trains, or continues, and writes a checkpoint after each step; returns a hash of the weights."""
    module, options = Recorder(), {**TINY, "batch_size": 2, "repeats": 8, "num_workers": workers}
    data = VideoDataModule(source, source, num_classes=3, index=str(output / "tables"), **options)
    newest = NewestCheckpoint(output / "checkpoints", minutes=0)
    whole = {"plugins": [AtomicCheckpointIO()], "enable_checkpointing": True, "max_epochs": 2}
    fit(module, MultigridCallback(), newest, train=data, ckpt_path="last", **whole)
    return hashlib.sha256(b"".join(value.numpy().tobytes() for value in module.state_dict().values())).hexdigest()


COMMANDS = {
    "copies": copies,
    "planes": partial(copies, encoding=Planes(32)),
    "tables": tables,
    "fit": train,
    "fit with a worker": partial(train, workers=1),
}


def left(output):
    """The files that a command leaves, by their names, but for checkpoints, which hold times."""
    return {str(name): data for name, data in contents(output).items() if name.parts[0] != "checkpoints"}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Finds for each command the videos, and what it does if nothing goes wrong."""

    @cache
    def of(name):
        folder = tmp_path_factory.mktemp("undisturbed")
        source = folder / "in" / "list.csv"
        videos(folder / "in", [f"{number}.mp4" for number in range(4)])
        source.write_text("".join(f"{number}.mp4 {number % 3}\n" for number in range(4)))
        start_method()  # what a fork may not import
        found = Injection(folder).run(partial(COMMANDS[name], source, folder / "whole"))
        assert found.error is None
        return source, found, left(folder / "whole")

    return of


CASES = [(name, number) for name in COMMANDS for number in range(40)]
ORDINARY = [("copies", 4), ("planes", 37), ("tables", 36), ("fit", 9), ("fit", 0), ("fit with a worker", 1)]


@pytest.mark.usefixtures("_unrehearsed")
@pytest.mark.parametrize(("name", "number"), sampled(CASES, *ORDINARY))
def test_a_fault_at_any_moment_loses_nothing(undisturbed, name, number):
    source, whole, expected = undisturbed(name)
    folder = source.parents[1]
    output, at = folder / f"disturbed {number}", 1 + random.Random(number).randrange(whole.done)
    command = partial(COMMANDS[name], source, output)
    first = Injection(folder, at, number).run(command)
    # What has its name by now is whole; the lists name what was not broken.
    there = {file: data for file, data in left(output).items() if "/" in file} if output.exists() else {}
    assert {*there.values()} <= {b"", *expected.values()}, first
    # Of a worker, only it knows; and Python's `makedirs` hides why a folder can't be looked at.
    faults = [first.fault] if first.fault else {fault for kinds in FAULTS.values() for fault in kinds}
    causes = [os.strerror(getattr(errno, fault, 0)) for fault in faults]
    ended = first.error and "DataLoader worker (pid" in first.error and name.endswith("worker")
    if first.error and not ended:
        assert str(folder) in first.error, first
        assert any(cause in first.error for cause in [*causes, "File exists while writing to"]), first
    if isinstance(first.result, dict):
        assert all(causes[0] in reason for reason in first.result.values()), first
    again = Injection(folder).run(command)
    assert again.error is None, (first, again)
    found = left(output)
    if name.endswith("worker") or (first.fault == "EIO" and name in ("tables", "fit")):
        # A table that the disk could not read is made anew, under the name of that very file.
        assert {*found.values()} - {b""} == {*expected.values()}, first
    else:
        assert found == expected, first
    # Where another video took the place of one that could not be read, it was named.
    if not any(str(source.parent) in one and any(cause in one for cause in causes) for one in first.told):
        assert again.result == whole.result, (first, again)
