"""The frame tables of videos that are not prepared, made once and stored: a training then reads clips of them fast."""

import errno
import os
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator

from lightning_multigrid.decode import Done, TableStore, is_plane_file
from lightning_multigrid.files import OutputError, StrPath, cache_folder, is_url, of_videos
from lightning_multigrid.prepare.processes import TASK_SECONDS, TaskFailure, run_tasks, shown, usable_cores
from lightning_multigrid.sources import Manifest

_FEW = 32  # videos that are done before a program has started
_Videos = Iterable[tuple[str, Iterable[str]]]  # their paths, with the root that these are below


def originals(manifest: Manifest) -> Iterator[str]:
    """The videos of a manifest that need a stored table, row by row: neither prepared ones nor folders of images."""
    if manifest.images_per_second is None and not manifest.prepared:
        yield from (path for path in manifest.each_path() if not is_plane_file(path))


def missing_tables(manifest: Manifest) -> list[str]:
    """The videos of a manifest that lack the table by which they would be read."""
    return TableStore(manifest.tables, manifest.root).known(originals(manifest)).missing if manifest.tables else []


def index(videos: _Videos, folder: StrPath, workers: int = 0, timeout: float = TASK_SECONDS) -> Done:
    """Makes the frame tables that videos lack, with a bar; stores each in the folder of a `TableStore` at once.

    Several processes share the work: each takes the videos in an order of its own, and looks for the table before it
    makes it. That a video is broken is stored instead of its table, and holds for this version of the package.
    `workers` are processes; 0 works in this one. After `timeout` seconds a video counts as broken, until the next call
    (not with 0 workers). An `OutputError` if tables can't be written.
    """
    done, missing = Done(), dict[tuple[TableStore, str], None]()
    for root, paths in videos:
        store = TableStore(folder, root)
        known = store.known(paths)
        done.there, done.broken = done.there + known.there, done.broken | known.broken
        missing |= dict.fromkeys((store, path) for path in known.missing)
    tasks = list(missing)
    if not tasks:
        return done
    each = "Each of " if len(tasks) > 1 else ""
    said = f"{each}{of_videos(len(tasks))} is decoded once, to know its frames. Tables are kept for the next run."
    tasks[0][0].begin()
    if remote := sum(is_url(path) for _, path in tasks):
        said += f" Copied from URLs for that, one at a time for each process: {remote:,}."
    random.Random().shuffle(tasks)
    for (_, path), made in shown("index", run_tasks(_make, tasks, workers, timeout), len(tasks), said):
        if isinstance(made, TaskFailure):
            done.broken[path] = made.reason
        else:
            done.made, done.there = done.made + made, done.there + (not made)
    return done


def _make(task: tuple[TableStore, str]) -> bool:
    store, path = task
    return store.make(path)


def index_in_subprocess(manifests: Iterable[Manifest], folder: StrPath) -> str:
    """As `index`, of manifests: returns a sentence that says what was made; empty if nothing was missing.

    It starts `python -m lightning_multigrid.prepare`: processes of the user's own script would run that script again.
    That program also asks which videos at URLs lack a table: this process opens no connection, so that it may fork.
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
        raise OutputError(errno.EIO, f"The program that makes frame tables ended with exit status {run.returncode}.")
    return run.stdout.decode().splitlines()[-1]


def tables_folder(given: object) -> str:
    """Where the frame tables of videos that are not prepared are stored: in a given folder, or the user's cache."""
    return given if isinstance(given, str) else str(cache_folder() / "tables")
