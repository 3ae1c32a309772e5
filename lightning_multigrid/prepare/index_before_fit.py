"""Tables that are missing when a training starts: made by a program of its own."""

import errno
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable

from lightning_multigrid.decode import TableStore
from lightning_multigrid.files import OutputError, StrPath, cache_folder, is_url
from lightning_multigrid.prepare.processes import usable_cores
from lightning_multigrid.prepare.tables import index, originals
from lightning_multigrid.sources import Manifest

_FEW = 32  # videos that are done before a program has started


def index_in_subprocess(manifests: Iterable[Manifest], folder: StrPath) -> str:
    """Makes the frame tables that videos of manifests lack, and stores them in a folder.

    It starts `python -m lightning_multigrid.prepare`: processes of the user's own script would run that script again.
    That program also asks which videos at URLs lack a table: this process opens no connection, so that it may fork.
    Returns a sentence that says what was made; empty if nothing was missing. An `OutputError` if the folder of this
    `TableStore` can't be written to.
    """
    missing, remote = defaultdict[str, list[str]](list), False
    for manifest in manifests:
        at_urls = [path for path in originals(manifest) if is_url(path)]
        here = (path for path in originals(manifest) if not is_url(path))
        if lacking := TableStore(folder, manifest.root).known(here).missing + at_urls:
            missing[manifest.root] += lacking
            remote = remote or bool(at_urls)
    if not missing:
        return ""
    if not remote and sum(map(len, missing.values())) <= _FEW:
        return f"Frame tables of {index(missing.items(), folder)}."
    TableStore(folder).begin()
    command = [sys.executable, "-m", __package__, os.fspath(folder), str(usable_cores())]
    pairs = ((root, path) for root, paths in missing.items() for path in dict.fromkeys(paths))
    text = b"".join(os.fsencode(f"{root}\0{path}\0") for root, path in pairs)
    modules = {"PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(command, input=text, check=False, stdout=subprocess.PIPE, env=os.environ | modules)
    if run.returncode:
        said = f"The program that makes frame tables ended with exit status {run.returncode}."
        raise OutputError(errno.EIO, said)
    return run.stdout.decode().splitlines()[-1]


def tables_folder() -> str:
    """Where the frame tables of videos that are not prepared are stored, unless another folder is given."""
    return str(cache_folder() / "tables")
