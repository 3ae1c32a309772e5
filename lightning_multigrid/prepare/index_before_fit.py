"""Tables that are missing when a training starts: made by a program of its own, once for all that share the folder."""

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from lightning_multigrid.files import READ_TIMEOUT, OutputError, StrPath, cache_folder
from lightning_multigrid.prepare.processes import usable_cores
from lightning_multigrid.prepare.tables import index_videos, without_table
from lightning_multigrid.sources import Manifest, TableStore

_FEW, _FEW_BYTES = 64, 1 << 26  # videos that are done before a program has started


def index_in_subprocess(paths: Sequence[str], folder: StrPath, read_timeout: float = READ_TIMEOUT) -> str:
    """Makes the frame tables that some videos lack, and keeps them in a folder.

    It starts `python -m lightning_multigrid.prepare`: processes of the user's own script would run that script again.
    Of several that share the folder, one works and the others wait, where the file system has locks.

    Args:
        paths: Absolute paths of videos.
        folder: That of a `TableStore`.
        read_timeout: Seconds that a read of a video may take.

    Returns:
        A sentence that says what was made; empty if nothing was missing.

    Raises:
        OutputError: If the folder can't be written to.
    """
    store = TableStore(folder)
    if not without_table(paths, store, sampled=True):
        return ""
    with _held(folder):
        missing = without_table(paths, store, sampled=True)  # another process may have made them
        if not missing:
            return ""
        if len(missing) <= _FEW and sum(missing.values()) <= _FEW_BYTES:
            return str(index_videos(missing, store, read_timeout=read_timeout))
        command = [sys.executable, "-m", __package__, os.fspath(folder), str(usable_cores()), str(read_timeout)]
        text = b"".join(os.fsencode(path) + b"\0" for path in missing)
        modules = {"PYTHONPATH": os.pathsep.join(sys.path)}
        run = subprocess.run(command, input=text, check=False, env=os.environ | modules)
        if run.returncode:
            said = f"The program that makes frame tables ended with exit status {run.returncode}."
            raise OutputError(errno.EIO, said)
        return f"Frame tables of {len(missing) - len(store.missing(missing)):,} videos are in {os.fspath(folder)}."


def tables_folder() -> str:
    """Where the frame tables of videos that are not prepared are kept, unless another folder is given."""
    return str(cache_folder() / "tables")


def paths_without_own_table(manifest: Manifest) -> list[str]:
    """The videos of a manifest that was not prepared, each once; none if it is of folders of frames."""
    if manifest.frame_rate is not None or manifest.prepared:
        return []
    return list(dict.fromkeys(manifest.path(row) for row in range(len(manifest))))


def open_store(folder: StrPath) -> TableStore:
    """Opens a store that tables can be added to; an `OutputError` if they can't."""
    try:
        os.makedirs(folder, exist_ok=True)
        with open(_lock(folder), "a+b"):
            return TableStore(folder)
    except OSError as error:
        said = f"Frame tables can't be kept in {os.fspath(folder)} ({error.strerror}). Give another folder: `--output`"
        raise OutputError(
            error.errno, f"{said} of `index`, `index` of the data module, or LIGHTNING_MULTIGRID_CACHE."
        ) from error


@contextmanager
def _held(folder: StrPath) -> Iterator[None]:
    """Waits until no other process makes tables in a folder."""
    open_store(folder)
    with open(_lock(folder), "a+b") as file:  # network file systems want it readable, too
        with suppress(OSError):  # a file system without locks: at worst tables are made twice
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _lock(folder: StrPath) -> str:
    return os.path.join(folder, "lock")
