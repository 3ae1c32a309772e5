"""A dataset made anew for training: every video small, quick to decode and known to be readable.

The output folder holds `videos/`, named as the sources are; `manifest.packed`, which `VideoDataModule` takes; the
`packets.index` of all videos; `report.csv`, which says what was bad and why; and `journal.jsonl`, by which the next run
knows what is done. Every file is there whole or not at all: it is written beside its place, brought to the disk, and
then renamed. Only the run that is asked for does that; its workers leave files that are not yet called anything.
"""

from __future__ import annotations

import csv
import errno
import fcntl
import io
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import islice

from lightning_multigrid.decode import IndexStore, PacketIndex
from lightning_multigrid.files import (
    OutputError,
    StrPath,
    is_url,
    new_file,
    output_error,
    output_errors,
    path_argument,
    remove_partial,
    size_and_change,
    sync_folder,
    temporary_name,
)
from lightning_multigrid.prepare.journal import Entry, Journal
from lightning_multigrid.prepare.names import names_of
from lightning_multigrid.prepare.transcode import Bad, Encoding, Prepared, TranscodeJob, WriteFailure
from lightning_multigrid.prepare.workers import Lost, run_tasks
from lightning_multigrid.sources import INDEX_NAME, MANIFEST_NAME, Manifest, renamed, save_manifest

__all__ = ["BadVideosError", "Progress", "Summary", "prepare", "write_report"]

VIDEOS_NAME, REPORT_NAME, _JOURNAL_NAME, _LOCK_NAME = "videos", "report.csv", "journal.jsonl", "lock"
# Part of what makes two prepared files equal; to be raised when `transcode` makes other ones of the same settings.
_VERSION = 1
# Videos by which the space for all is estimated.
_SAMPLE = 16
# Finished videos are written to the journal in groups of this many seconds: waiting for the disk is slow.
_COMMIT_SECONDS = 1.0


class BadVideosError(ValueError):
    """Too many videos of a dataset cannot be read."""


@dataclass
class Progress:
    """Where a run is.

    Args:
        total: Videos that are to be made.
        total_bytes: Bytes of their sources, by which the remaining time is told.
        done: Videos that are made, or bad.
        done_bytes: Bytes of their sources.
        bad: Videos that are bad.
    """

    total: int
    total_bytes: int
    done: int = 0
    done_bytes: int = 0
    bad: int = 0


@dataclass(frozen=True)
class Summary:
    """What came of a run.

    Args:
        manifest: The packed manifest, to be given to `VideoDataModule`.
        made: Videos made by this run.
        kept: Videos that were there.
        bad: Path and reason of each video that can't be used.
        source_bytes: Bytes of the sources of all videos that are there now; 0 if those are folders of frames.
        bytes: Their own.
    """

    manifest: str
    made: int
    kept: int
    bad: dict[str, str]
    source_bytes: int
    bytes: int


@dataclass
class _Video:
    """A source and its place in the output."""

    source: str
    name: str
    size: int = 0
    mtime_ns: int = 0
    temporary: str = ""


@dataclass
class _Run:
    """A run's state: what is to be done, and what came of it so far."""

    root: str
    videos: str
    settings: str
    journal: Journal
    bad: dict[str, str] = field(default_factory=dict)
    made: set[str] = field(default_factory=set)
    uncommitted: list[Entry] = field(default_factory=list)
    folders: set[str] = field(default_factory=set)
    committed_at: float = 0.0


def prepare(
    manifest: Manifest,
    output: StrPath,
    encoding: Encoding = Encoding(),
    *,
    workers: int = 0,
    timeout: float = 300.0,
    max_bad_fraction: float = 0.25,
    progress: Callable[[Progress], None] = lambda now: None,
) -> Summary:
    """Makes the videos of a manifest anew, those that are not yet there.

    Args:
        manifest: The videos.
        output: Folder for all that is written. Nothing outside it is touched, whatever the manifest says.
        encoding: How videos are encoded.
        workers: Processes; 0 works in this one.
        timeout: Seconds without a frame after which a video counts as unreadable (not with 0 workers).
        max_bad_fraction: Largest share of the videos that may be unreadable, in [0, 1].
        progress: Called after every video.

    Raises:
        BadVideosError: If too many videos are bad; what is good is there nevertheless, and so is the report.
        OutputError: If the disk is too small or full, or refuses something.
        ValueError: If an argument is outside its range, or another run is at work in the folder.
    """
    if workers < 0 or timeout <= 0 or not 0 <= max_bad_fraction <= 1:
        raise ValueError(
            "`workers` must be at least 0, `timeout` positive and `max_bad_fraction` in [0, 1], got "
            f"{workers}, {timeout} and {max_bad_fraction}."
        )
    root = os.path.realpath(path_argument("output", output))
    with ExitStack() as stack:
        stack.enter_context(output_errors(root))
        os.makedirs(os.path.join(root, VIDEOS_NAME), exist_ok=True)
        stack.enter_context(_locked(root))
        remove_partial(root)
        run = _Run(
            root,
            os.path.join(root, VIDEOS_NAME),
            json.dumps({"version": _VERSION, **asdict(encoding)}, sort_keys=True),
            Journal(os.path.join(root, _JOURNAL_NAME)),
        )
        sources = [manifest.path(row) for row in range(len(manifest))]
        videos = _planned(run, sources, manifest)
        pending = [video for video in videos.values() if video.source not in run.bad and not _is_done(run, video)]
        kept = len(videos) - len(run.bad) - len(pending)
        _transcode_all(run, pending, encoding, manifest.frame_rate, workers, timeout, progress)
        good = {path: video for path, video in videos.items() if path not in run.bad}
        write_report(os.path.join(root, REPORT_NAME), run.bad)
        if good:
            names = [good[path].name if path in good else None for path in sources]
            path = os.path.join(root, MANIFEST_NAME)
            made = renamed(replace(manifest, frame_rate=None), names, path, run.videos)
            _write_index(run, list(good.values()), workers, timeout)
            save_manifest(made, path)
    if len(run.bad) > max_bad_fraction * len(videos) or not good:
        first = "; ".join(f"{path}: {reason}" for path, reason in islice(run.bad.items(), 3))
        raise BadVideosError(
            f"{len(run.bad):,} of the {len(videos):,} videos can't be used, more than "
            f"`max_bad_fraction={max_bad_fraction:g}` allows; {os.path.join(root, REPORT_NAME)} names them. Check the "
            f"paths and `root`, repair or remove the videos, or raise `max_bad_fraction`. The first: {first}"
        )
    entries = [run.journal.entries[video.name] for video in good.values()]
    return Summary(
        path,
        len(good) - kept,
        kept,
        run.bad,
        sum(entry.source_size for entry in entries) if manifest.frame_rate is None else 0,
        sum(entry.size for entry in entries),
    )


def write_report(path: str, bad: dict[str, str]) -> None:
    """Writes which videos are bad and why, as a CSV with the columns `path` and `reason`."""
    with new_file(path) as file:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("path", "reason"))
        writer.writerows(sorted(bad.items()))
        file.write(text.getvalue().encode("utf-8", "surrogateescape"))


@contextmanager
def _locked(root: str) -> Iterator[None]:
    """Holds a folder for one run. The system lets go of it however the run ends."""
    with open(os.path.join(root, _LOCK_NAME), "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"Another `prepare` is at work in {root}. Wait for it to end, or give another `output`."
            ) from None
        yield


def _planned(run: _Run, sources: Sequence[str], manifest: Manifest) -> dict[str, _Video]:
    """Each source with its place; those that can't be prepared are noted as bad."""
    videos = {source: _Video(source, name) for source, name in names_of(sources, manifest.root).items()}
    for source, video in videos.items():
        try:
            video.size, video.mtime_ns = size_and_change(source)
        except (OSError, ValueError) as error:
            missing = isinstance(error, FileNotFoundError | NotADirectoryError)
            run.bad[source] = "there is no such file" if missing else str(getattr(error, "strerror", None) or error)
            continue
        if not is_url(source) and os.path.realpath(source).startswith(os.path.join(run.root, "")):
            raise ValueError(
                f"{source} lies in the output folder {run.root}, where it might be overwritten. Give a folder of its "
                "own as `output`."
            )
    return videos


def _is_done(run: _Run, video: _Video) -> bool:
    entry = run.journal.entries.get(video.name)
    if entry is None or (entry.source, entry.source_size, entry.source_mtime_ns, entry.settings) != (
        video.source,
        video.size,
        video.mtime_ns,
        run.settings,
    ):
        return False
    try:
        found = os.stat(os.path.join(run.videos, video.name), follow_symlinks=False)
    except OSError:
        return False
    return found.st_size == entry.size


def _transcode_all(
    run: _Run,
    pending: list[_Video],
    encoding: Encoding,
    frame_rate: float | None,
    workers: int,
    timeout: float,
    progress: Callable[[Progress], None],
) -> None:
    now = Progress(len(pending), sum(video.size for video in pending))
    progress(now)
    made_bytes = read_bytes = 0
    estimated = False
    by_temporary: dict[str, _Video] = {}

    def jobs() -> Iterator[TranscodeJob]:
        for video in _sample_first(pending):
            folder = os.path.dirname(os.path.join(run.videos, video.name))
            _make_folder(run, folder)
            video.temporary = temporary_name(folder)
            by_temporary[video.temporary] = video
            yield TranscodeJob(video.source, video.temporary, encoding, frame_rate)

    results = run_tasks("lightning_multigrid.prepare.transcode:transcode", jobs(), workers, timeout)
    try:
        for job, result in results:
            video = by_temporary.pop(job.target)
            if isinstance(result, WriteFailure):
                raise output_error(run.root, result.number, result.text)
            if isinstance(result, Prepared):
                result = _put_in_place(run, video, result)
            if isinstance(result, Bad | Lost):
                run.bad[video.source] = result.reason
                now.bad += 1
                with suppress(OSError):
                    os.remove(video.temporary)
            else:
                made_bytes += result.size
                read_bytes += video.size
            now.done += 1
            now.done_bytes += video.size
            if not estimated and read_bytes and now.done >= min(_SAMPLE, now.total):
                estimated = True
                _check_space(run.root, made_bytes, read_bytes, now.total_bytes - now.done_bytes)
            _commit(run, waiting=False)
            progress(now)
    finally:
        results.close()
        _commit(run, waiting=True)
        for temporary in by_temporary:
            with suppress(OSError):
                os.remove(temporary)


def _sample_first(videos: list[_Video]) -> list[_Video]:
    """All videos, first some from everywhere: by them the space is estimated."""
    step = max(1, len(videos) // _SAMPLE)
    first = range(0, step * min(_SAMPLE, len(videos)), step)
    return [videos[i] for i in first] + [video for i, video in enumerate(videos) if i not in first]


def _make_folder(run: _Run, folder: str) -> None:
    # A link that lies in the output folder must not lead what is written out of it.
    if os.path.realpath(folder) != folder:
        raise OutputError(
            errno.ELOOP,
            f"{folder} is reached over a link, and nothing is written outside {run.root}. Remove the link.",
        )
    if not os.path.isdir(folder):
        os.makedirs(folder, exist_ok=True)
        parent = folder
        while parent != run.videos:  # each new folder's name is to be on the disk, too
            parent = os.path.dirname(parent)
            run.folders.add(parent)


def _put_in_place(run: _Run, video: _Video, made: Prepared) -> Entry | Bad:
    """Gives a finished video its name."""
    try:
        found = size_and_change(video.source)
    except OSError as error:
        return Bad(f"vanished while it was read ({error.strerror or error})")
    if found != (video.size, video.mtime_ns):
        return Bad("changed while it was read")
    path = os.path.join(run.videos, video.name)
    os.replace(video.temporary, path)
    entry = Entry(
        video.name,
        video.source,
        video.size,
        video.mtime_ns,
        run.settings,
        os.stat(path).st_size,
        made.frames,
    )
    run.made.add(video.name)
    run.uncommitted.append(entry)
    run.folders.add(os.path.dirname(path))
    return entry


def _commit(run: _Run, *, waiting: bool) -> None:
    """Brings the names of finished videos to the disk, and then to the journal, now or when it is time."""
    if not waiting and time.monotonic() - run.committed_at < _COMMIT_SECONDS:
        return
    for folder in run.folders:
        sync_folder(folder)
    run.journal.add(run.uncommitted)
    run.folders.clear()
    run.uncommitted.clear()
    run.committed_at = time.monotonic()


def _write_index(run: _Run, videos: list[_Video], workers: int, timeout: float) -> None:
    """Writes the index of all videos; those that an index written before has are not read again."""
    path = os.path.join(run.root, INDEX_NAME)
    try:
        known: IndexStore | None = IndexStore(path)
    except (OSError, ValueError):
        known = None

    def known_index(video: _Video) -> PacketIndex | None:
        if known is None or video.name in run.made:
            return None
        with suppress(ValueError):  # damaged there
            index = known.get(video.name)
            # A run that was stopped may have made the video anew, and not the index.
            if index is not None and index.file_size == run.journal.entries[video.name].size:
                return index
        return None

    def entries() -> Iterator[tuple[str, PacketIndex]]:
        # Always in the order of the manifest, so that the same videos make the same file; results of several processes
        # wait for their turn here.
        place = {video.name: os.path.join(run.videos, video.name) for video in videos}
        unknown = (place[video.name] for video in videos if known_index(video) is None)
        results = run_tasks("lightning_multigrid.prepare.index:built_index", unknown, workers, timeout)
        early: dict[str, object] = {}
        for video in videos:
            index = known_index(video)
            if index is None:
                while place[video.name] not in early:
                    early.update([next(results)])
                made = early.pop(place[video.name])
                if not isinstance(made, bytes):  # the reader will index it, or say what is wrong with it
                    continue
                index = PacketIndex.from_bytes(made)
            yield video.name, index

    IndexStore.write(path, entries())


def _check_space(root: str, made: int, read: int, rest: int) -> None:
    """Refuses to go on if the rest of the sources will not find room, at the ratio of those done."""
    required, free = int(rest * made / read), shutil.disk_usage(root).free
    if required > free:
        raise OutputError(
            errno.ENOSPC,
            f"About {required / 1e9:,.1f} GB more are required in {root}, {free / 1e9:,.1f} GB are free. What is there "
            "is whole, and the same command goes on from it. Free some space, give another `output`, a smaller "
            "`short_side` or a larger `crf`.",
        )
