"""Folders that `prepare` writes, compared; and a `prepare` in a process of its own, which may be limited or killed."""

import json
import subprocess
import sys

from lightning_multigrid.decode import append_table, make_table
from lightning_multigrid.decode.full_decode import FullDecode
from lightning_multigrid.prepare.transcode import Encoding
from lightning_multigrid.sources.builder import ManifestBuilder
from tests.helpers.videos import numbered_frames, write_video

FAST = Encoding(preset="ultrafast")


def videos(folder, names):
    """Videos of 20 frames that begin with frame 0, 20, 40 ..., and their manifest; labels 0, 1, 0, 1 ..."""
    builder = ManifestBuilder(folder / "list.csv", classes=["run", "swim"])
    for place, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        suffix = path.suffix.lower().lstrip(".")
        written = write_video(folder / f"made.{suffix}", numbered_frames(20, first=20 * place % 200))
        written.rename(path)
        builder.add(name, [place % 2], where=name)
    return builder.build()


def add_table(path):
    """Puts the frame table of a video behind it, as `prepare` does: no clip of it needs a decode of the whole."""
    with open(path, "r+b") as file:
        append_table(file, make_table(path))


def decoded_whole(monkeypatch):
    """The paths of the files that are decoded whole from now on."""
    paths, own = [], FullDecode.__iter__
    monkeypatch.setattr(FullDecode, "__iter__", lambda self: paths.append(self.file.path) or own(self))
    return paths


def is_of_the_runs(name):
    """Whether a file tells of the runs, not of the videos."""
    return name.name.startswith(".lightning-multigrid-")


def contents(folder):
    """Bytes of all files in a folder but those that tell of the runs."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    names = {path: path.relative_to(folder) for path in files}
    return {name: path.read_bytes() for path, name in names.items() if not is_of_the_runs(name)}


RUN = """
import json, sys
from lightning_multigrid.sources import VideoList
from lightning_multigrid.prepare import Encoding, prepare
source, output, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
if limit := options.pop("limit"):
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
print("ready", flush=True)
prepare(VideoList(source).read(), output, Encoding(preset="ultrafast"), **options)
"""


def start(source, output, *, limit=0, **options):
    """Starts a `prepare` of a list; `options` are its arguments.

    `limit` is the largest size of a file.
    """
    settings = json.dumps({"limit": limit, **options})
    command = [sys.executable, "-c", RUN, str(source), str(output), settings]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def check_whole(folder, expected):
    """Every file that has a name is the whole one."""
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        if path.is_file() and not is_of_the_runs(name):
            found, whole = path.read_bytes(), expected[name]
            assert found == whole, f"{name} is not whole: {len(found)} bytes instead of {len(whole)}, {found[:32]}"
