"""Tables that are missing when a training starts: made by a program of its own."""

import errno
import os
import subprocess
import sys
from collections.abc import Sequence

from lightning_multigrid.decode import is_plane_file
from lightning_multigrid.files import OutputError, StrPath, cache_folder, is_url
from lightning_multigrid.prepare.processes import usable_cores
from lightning_multigrid.prepare.progress import of_videos
from lightning_multigrid.prepare.tables import index, without_table
from lightning_multigrid.sources import Manifest, TableStore

_FEW = 32  # videos that are done before a program has started


def index_in_subprocess(paths: Sequence[str], folder: StrPath) -> str:
    """Makes the frame tables that some videos lack, and keeps them in a folder.

    It starts `python -m lightning_multigrid.prepare`: processes of the user's own script would run that script again.
    Several that share the folder share the work, and none waits for another. That program also asks which videos at
    URLs lack a table: this process opens no connection, so that it may fork.

    Args:
        paths: Absolute paths, or URLs, of videos.
        folder: That of a `TableStore`.

    Returns:
        A sentence that says what was made; empty if nothing was missing.

    Raises:
        OutputError: If the folder can't be written to.
    """
    store = TableStore(folder)
    remote = [path for path in paths if is_url(path)]
    missing = without_table([path for path in paths if not is_url(path)], store) + remote
    if not missing:
        return ""
    if len(missing) <= _FEW and not remote:
        return str(index(missing, store))
    store.begin()
    command = [sys.executable, "-m", __package__, os.fspath(folder), str(usable_cores())]
    text = b"".join(os.fsencode(path) + b"\0" for path in missing)
    modules = {"PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(command, input=text, check=False, stdout=subprocess.PIPE, env=os.environ | modules)
    if run.returncode:
        said = f"The program that makes frame tables ended with exit status {run.returncode}."
        raise OutputError(errno.EIO, said)
    if remote:
        store.recall()
    there, broken = map(int, run.stdout.split()[-2:])
    said = f"; broken: {of_videos(broken)}" if broken else ""
    return f"Frame tables of {of_videos(there)} are in {os.fspath(folder)}{said}." if there or broken else ""


def tables_folder() -> str:
    """Where the frame tables of videos that are not prepared are kept, unless another folder is given."""
    return str(cache_folder() / "tables")


def paths_without_own_table(manifest: Manifest) -> list[str]:
    """The videos of a manifest that was not prepared, each once; none if it is of folders of frames, and no planes."""
    if manifest.frame_rate is not None or manifest.prepared:
        return []
    return [path for path in dict.fromkeys(manifest.paths()) if not is_plane_file(path)]
