"""Writes a dataset anew so that it is read several times faster: every video small and known to be readable.

The output folder holds `videos/`, named as the sources are. Each says at its end what it was made from, by which the
same command knows later what is done. Beside them are `metadata.csv`, their list, with `classes.txt`, and `report.csv`,
which says what was broken and why. A video has its name only once it is whole and on the disk, so several may work on
one folder: each takes the videos in an order of its own, and looks for the prepared one before it makes it.
"""

import csv
import errno
import hashlib
import io
import json
import os
import random
import re
import shutil
import unicodedata
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from itertools import compress, islice

import av

from lightning_multigrid.decode import BrokenVideosError, Done, PlaneFile, VideoError, is_plane_file, own_table
from lightning_multigrid.files import (
    InputFile,
    OutputError,
    StrPath,
    is_frame,
    is_url,
    output_errors,
    path_argument,
    printable,
    remove_partial,
    require,
    state_of,
    write_csv,
)
from lightning_multigrid.prepare.check_videos import bytes_of_planes
from lightning_multigrid.prepare.processes import TASK_SECONDS, TaskFailure, run_tasks, shown
from lightning_multigrid.prepare.transcode import ENCODER, Encoding, Planes, TranscodeJob, transcode
from lightning_multigrid.sources import Manifest, save_list

REPORT_NAME = "report.csv"
_OURS = "metadata.csv", "classes.txt", REPORT_NAME

# Part of what makes two prepared files equal; raise it when `transcode` makes other files of the same settings.
_VERSION = 7


@dataclass
class Prepared(Done):
    """What a `prepare` did."""

    folder: str = ""  # with the list of the prepared videos, for `VideoDataModule`
    report: str = ""  # CSV of the broken videos
    bytes: int = 0  # of the videos that are there now


def prepare(
    manifest: Manifest,
    output: StrPath,
    encoding: Encoding | Planes = Encoding(),
    *,
    workers: int = 0,
    timeout: float = TASK_SECONDS,
    max_bad_fraction: float = 0.25,
) -> Prepared:
    """Writes the videos of a manifest anew, except those that are there already, with a bar.

    Nothing outside of the folder `output` is written, whatever the manifest says. `workers` are processes; 0 works in
    this one. After `timeout` seconds a video counts as broken (not with 0 workers). `max_bad_fraction` is the largest
    share of all videos that may be broken, in [0, 1].

    Raises:
        BrokenVideosError: If too many videos are broken; the others are there nevertheless, and so is the report.
        OutputError: If the disk is full, has no room for the planes, or refuses something. The same command goes on.
        ValueError: If an argument is outside its range, two videos would share a name, or this FFmpeg has no encoder.
    """
    require(0 <= max_bad_fraction <= 1, "max_bad_fraction", max_bad_fraction, "in [0, 1]")
    if isinstance(encoding, Encoding):
        av.Codec(ENCODER, "w")  # a ValueError if FFmpeg has none
    root = os.path.realpath(path_argument("output", output))
    folder = os.path.join(root, "videos")
    if os.path.isdir(manifest.origin) and root.startswith(os.path.join(os.path.realpath(manifest.origin), "")):
        raise ValueError(
            f"`output` {root} lies in {manifest.origin}, of which each folder is a class: the next time, the output "
            "would be one, too. Give a folder beside it."
        )
    sources = manifest.paths()
    names = names_of(sources, manifest.root, encoding.suffix)
    with output_errors(root):
        os.makedirs(root, exist_ok=True)
        _refuse_others_files(root, encoding.suffix)
        remove_partial(root)
        jobs, broken, origins = list[TranscodeJob](), dict[str, str](), dict[str, str]()
        for source, name in shown("look", names.items(), len(names)):
            if not is_url(source) and os.path.realpath(source).startswith(os.path.join(root, "")):
                raise ValueError(f"{source} lies in the output folder {root}. Give a folder of its own as `output`.")
            try:
                made_from = origins[source] = _made_from(source, encoding, manifest.images_per_second)
            except OSError as error:
                broken[source] = error.strerror or str(error)
                continue
            target = os.path.join(folder, name)
            if max(len(os.fsencode(part)) for part in name.split("/")) > os.pathconf(root, "PC_NAME_MAX"):
                broken[source] = f"{os.path.basename(name)} is too long a name for the disk of {root}; rename the video"
            elif _own_origin(target) != made_from:
                os.makedirs(os.path.dirname(target), exist_ok=True)
                jobs.append(TranscodeJob(source, target, encoding, manifest.images_per_second, made_from))
        if isinstance(encoding, Planes):
            _check_room(root, bytes_of_planes([job.source for job in jobs], encoding, manifest.images_per_second))
        random.Random().shuffle(jobs)  # other processes may do the same
        made = 0
        for job, result in shown("prepare", run_tasks(_make, jobs, workers, timeout), len(jobs)):
            if isinstance(result, TaskFailure):
                broken[job.source] = result.reason
            else:
                made += result
        report = os.path.join(root, REPORT_NAME)
        write_report(report, broken)
        good = {source: name for source, name in names.items() if source not in broken}
        for source, name in good.items():
            if _origin(os.path.join(folder, name)) != origins[source]:
                raise ValueError(
                    f"{name} in {folder} is not what this `prepare` made of {source}: another one, with other settings "
                    "or of another source, writes there at the same time. Give each an `output` of its own."
                )
        if good:
            save_list(manifest, root, [f"videos/{good[source]}" if source in good else None for source in sources])
    if len(broken) > max_bad_fraction * len(names) or not good:
        first = "; ".join(f"{path}: {reason}" for path, reason in islice(broken.items(), 3))
        raise BrokenVideosError(
            f"{len(broken):,} of the {len(names):,} videos can't be used, more than "
            f"`max_bad_fraction={max_bad_fraction:g}` allows; {report} names them. Check the "
            f"paths and `root`, repair or remove the videos, or raise `max_bad_fraction`. The first: {printable(first)}"
        )
    size = sum(os.path.getsize(os.path.join(folder, name)) for name in good.values())
    return Prepared(made, len(good) - made, broken, folder=root, report=report, bytes=size)


def _refuse_others_files(folder: str, suffix: str) -> None:
    heads = dict.fromkeys(_OURS, "")
    for name in _OURS:
        with suppress(FileNotFoundError), open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
            heads[name] = file.readline() + file.readline()
    listed, classes, report = heads.values()
    of_others = (
        listed and not re.match(".*,prepared\n", listed),
        classes and not (listed or report),  # written last, and not at once
        report and not report.startswith("path,reason\n"),
    )
    for name in compress(_OURS, of_others):
        raise ValueError(
            f"`prepare` would write over {os.path.join(folder, name)}, which is not its own. Give another folder as "
            "`output`."
        )
    first = next(csv.DictReader(io.StringIO(listed)), {}).get("file_name", suffix)
    if not first.lower().endswith(suffix):
        raise ValueError(
            f"`output` {folder} holds {first} and other videos of another `store`, which would stay there. Give a "
            "folder of its own, or remove these."
        )


def _check_room(folder: str, needed: int) -> None:
    if needed > (free := shutil.disk_usage(folder).free):
        raise OutputError(
            errno.ENOSPC,
            f"Planes of the videos that are not there yet take about {needed / 1e9:.1f} GB, and the disk of {folder} "
            f"has {free / 1e9:.1f} GB free. Free some space, give a smaller `short_side`, or write H.264.",
        )


def names_of(sources: Sequence[str], root: str, suffix: str) -> dict[str, str]:
    """Returns a path for each source, a whole path, below the folder of prepared videos; a ValueError if two share one.

    >>> names_of(["/in/run/a.avi", "/other/b.mp4"], "/in", ".mp4")
    {'/in/run/a.avi': 'run/a.avi.mp4', '/other/b.mp4': 'outside/other/b.mp4'}
    >>> names_of(["https://host/in/a.mp4", "https://other/b.mp4"], "https://host/in", ".mp4")
    {'https://host/in/a.mp4': 'a.mp4', 'https://other/b.mp4': 'outside/https/other/b.mp4'}
    """
    names, taken = dict[str, str](), dict[str, str]()
    for source in dict.fromkeys(sources):
        path = source if is_url(source) else os.path.normpath(source)
        inside = path.removeprefix(os.path.join(root, ""))
        name = inside if inside != path else os.path.join("outside", path.replace("://", "/").lstrip(os.sep))
        names[source] = name if name.lower().endswith(suffix) else f"{name}{suffix}"
        # The same for all names that a file system may take for one: some ignore case, or know only one form of `é`.
        known = unicodedata.normalize("NFC", unicodedata.normalize("NFC", names[source]).casefold())
        if (other := taken.setdefault(known, source)) != source:
            raise ValueError(f"{other} and {source} would have one name in the output, or on some disks. Rename one.")
    return names


def _made_from(source: str, encoding: Encoding | Planes, images_per_second: float | None) -> str:
    # Which source it is, its name tells: the path below the root, so that another mount changes nothing.
    about: dict[str, object]
    if not is_url(source) and os.path.isdir(source):
        with os.scandir(source) as entries:
            images = [entry for entry in entries if is_frame(entry.name) and entry.is_file()]
            states = sorted((image.name, image.stat().st_size, image.stat().st_mtime_ns) for image in images)
        images_now = hashlib.sha256(os.fsencode(repr(states))).hexdigest()[:16]
        about = {"frame_rate": images_per_second, "images": images_now}
    else:
        found = state_of(source)
        about = {"bytes": found.size, "changed": found.changed}
    return json.dumps({"version": _VERSION, **asdict(encoding), **about})


def _make(job: TranscodeJob) -> bool:
    """Makes a prepared video, unless another process has by now; returns whether it did."""
    if needed := _own_origin(job.target) != job.made_from:
        transcode(job)
    return needed


def _own_origin(path: str) -> str | None:
    """What a prepared video says that it was made from; None if it isn't there, can't be read, or isn't whole."""
    with suppress(OSError, VideoError):
        return _origin(path)
    return None


def _origin(path: str) -> str | None:
    """The same, but an OSError or a `VideoError` if it can't be read."""
    if is_plane_file(path):
        with PlaneFile(path) as planes:
            return planes.made_from
    with closing(InputFile(path)) as file:
        table = own_table(file)
        return table.made_from if table is not None and table.file_size == file.size else None


def write_report(path: str, broken: Mapping[str, str]) -> None:
    """Writes which videos are broken and why, as a CSV with the columns `path` and `reason`."""
    write_csv(path, [("path", "reason"), *sorted(broken.items())])
