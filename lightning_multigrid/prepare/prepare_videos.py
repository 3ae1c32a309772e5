"""Re-encodes a dataset so that it decodes several times faster: every video small and known to be readable.

The output folder holds `videos/`, named as the sources are, each with its frame table at its end, from which the same
command knows later what is done; `manifest.json`, which `VideoDataModule` takes; `report.csv`, which says what was
broken and why; and `lock`, which keeps a second `prepare` out. Part K of N makes some of the videos, and a report of
its own.
"""

import errno
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

from lightning_multigrid.decode import BrokenVideosError, FrameTable
from lightning_multigrid.files import OutputError, StrPath, path_argument, printable, quoted
from lightning_multigrid.prepare.names import names_of
from lightning_multigrid.prepare.output import REPORT_NAME, Output, PlannedVideo, open_output, write_report
from lightning_multigrid.prepare.processes import TASK_SECONDS, TaskFailure, run_tasks
from lightning_multigrid.prepare.progress import Progress
from lightning_multigrid.prepare.transcode import Encoding, TranscodeJob, require_encoder, transcode
from lightning_multigrid.sources import MANIFEST_NAME, Manifest, renamed, save_manifest


@dataclass(frozen=True)
class Summary:
    """What a `prepare` did."""

    manifest: str  # that of the prepared videos, for `VideoDataModule`; a part doesn't write it
    report: str  # CSV of the broken videos
    made: int  # videos that it made
    kept: int  # videos that were there before
    broken: dict[str, str]  # path and reason of each video that can't be used
    source_bytes: int  # of the sources of all videos that are there now; 0 if those are folders of frames
    bytes: int  # of the videos themselves
    notes: dict[str, tuple[str, ...]]  # path of each video of which a user may want to know something, and what


def prepare(
    manifest: Manifest,
    output: StrPath,
    encoding: Encoding = Encoding(),
    *,
    part: str | None = None,
    workers: int = 0,
    timeout: float = TASK_SECONDS,
    max_bad_fraction: float = 0.25,
    keep_damaged: bool = False,
    progress: Callable[[Progress], None] = lambda now: None,
) -> Summary:
    """Re-encodes the videos of a manifest, except those that are there already.

    Args:
        manifest: The videos.
        output: Folder for all that is written. Nothing outside it is touched, whatever the manifest says.
        encoding: How videos are encoded.
        part: Do only part K of N, given as `K/N`: every N-th video. Several machines may do the parts at once, into one
            folder. A `prepare` of all then does what is left, and writes the manifest.
        workers: Processes; 0 works in this one.
        timeout: Seconds after which a video counts as broken (not with 0 workers).
        max_bad_fraction: Largest share of all videos that may be broken, in [0, 1]; no matter for a part.
        keep_damaged: Whether to write damaged videos as FFmpeg decodes them from their beginning, without the frames
            that don't come out, instead of leaving them out as broken.
        progress: Called after every video.

    Raises:
        BrokenVideosError: If too many videos are broken; the others are there nevertheless, and so is the report.
        OutputError: If the disk is full, or refuses something; or if the system ended the processes of some videos,
            which are then neither broken nor there.
        ValueError: If an argument is outside its range, another `prepare` holds the folder, two videos would share a
            name, or this FFmpeg has no encoder.
    """
    number, parts = (1, 1) if part is None else _part(part)
    if workers < 0 or timeout <= 0 or not 0 <= max_bad_fraction <= 1:
        raise ValueError(
            "`workers` must be at least 0, `timeout` positive and `max_bad_fraction` in [0, 1], got "
            f"{workers}, {timeout} and {max_bad_fraction}."
        )
    require_encoder()
    root = os.path.realpath(path_argument("output", output))
    with open_output(root, encoding, keep_damaged=keep_damaged, shared=part is not None) as folder:
        sources = [manifest.path(row) for row in range(len(manifest))]
        named = list(names_of(sources, manifest.root).items())[number - 1 :: parts]
        videos, broken = _planned(named, root)
        tables = {video.source: table for video in videos.values() if (table := folder.prepared(video))}
        notes = {source: table.notes for source, table in tables.items()}
        kept, pending = len(notes), [video for video in videos.values() if video.source not in notes]
        run = partial(run_tasks, workers=workers, timeout=timeout)
        blank = TranscodeJob("", "", encoding, manifest.frame_rate, keep_damaged)
        broken |= _transcode_all(folder, pending, blank, run, progress, notes)
        report = os.path.join(root, REPORT_NAME if part is None else f"report-{number}-of-{parts}.csv")
        write_report(report, broken)
        good = {source: video for source, video in videos.items() if source in notes}
        path = os.path.join(root, MANIFEST_NAME)
        if good and part is None:
            names = [good[source].name if source in good else None for source in sources]
            save_manifest(renamed(replace(manifest, frame_rate=None), names, path, folder.videos), path)
    size, total = sum(os.path.getsize(folder.path(video)) for video in good.values()), len(named)
    if part is None and (len(broken) > max_bad_fraction * total or not good):
        first = "; ".join(f"{path}: {reason}" for path, reason in islice(broken.items(), 3))
        raise BrokenVideosError(
            f"{len(broken):,} of the {total:,} videos can't be used, more than "
            f"`max_bad_fraction={max_bad_fraction:g}` allows; {report} names them. Check the "
            f"paths and `root`, repair or remove the videos, or raise `max_bad_fraction`. The first: {printable(first)}"
        )
    source_bytes = sum(video.size for video in good.values()) if manifest.frame_rate is None else 0
    said = {source: sentences for source, sentences in notes.items() if sentences}
    return Summary(path, report, len(good) - kept, kept, broken, source_bytes, size, said)


def _part(text: str) -> tuple[int, int]:
    """Reads `K/N`; numbers count from 1, as job arrays do."""
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    number, parts = map(int, match.groups()) if match else (0, 0)
    if not 1 <= number <= parts:
        raise ValueError(
            f"`part` must be K/N with K from 1 to N, for part K of N, got {quoted(text)}. Number the tasks of a "
            "job array from 1, as with `--array=1-64`, and give all the same N: `--part $SLURM_ARRAY_TASK_ID/64`."
        )
    return number, parts


def _planned(named: Sequence[tuple[str, str]], output: str) -> tuple[dict[str, PlannedVideo], dict[str, str]]:
    """Each source with its name in the output; and those that are not there, with the reason."""
    videos: dict[str, PlannedVideo] = {}
    broken: dict[str, str] = {}
    for source, name in named:
        if os.path.realpath(source).startswith(os.path.join(output, "")):
            raise ValueError(
                f"{source} lies in the output folder {output}, where it might be overwritten. Give a folder of its "
                "own as `output`."
            )
        try:
            found = os.stat(source)
            videos[source] = PlannedVideo(source, name, found.st_size, found.st_mtime_ns)
        except (FileNotFoundError, NotADirectoryError):
            broken[source] = "there is no such file"
        except OSError as error:
            broken[source] = error.strerror or str(error)
    return videos, broken


def _transcode_all(
    output: Output,
    pending: list[PlannedVideo],
    blank: TranscodeJob,
    run: Callable[..., Any],
    progress: Callable[[Progress], None],
    notes: dict[str, tuple[str, ...]],
) -> dict[str, str]:
    """Makes videos as `blank` says, and adds the notes of those in place; returns which are broken, and why."""
    now = Progress(len(pending), sum(video.size for video in pending))
    progress(now)
    broken: dict[str, str] = {}
    killed: list[str] = []
    by_temporary: dict[str, PlannedVideo] = {}

    def jobs() -> Iterator[TranscodeJob]:
        for video in pending:
            output.make_room(video)
            by_temporary[video.temporary] = video
            yield replace(blank, source=video.source, target=video.temporary, made_from=output.made_from(video))

    results = run(transcode, jobs())
    try:
        for job, result in results:
            video = by_temporary.pop(job.target)
            if isinstance(result, OSError):
                raise result
            if isinstance(result, FrameTable) and not (changed := output.put_in_place(video)):
                notes[video.source] = result.notes
            else:
                reason = result.reason if isinstance(result, TaskFailure) else changed
                if isinstance(result, TaskFailure) and result.killed:
                    killed.append(f"{video.source}: {reason}")
                else:
                    broken[video.source] = reason
                    now.broken += 1
                with suppress(OSError):
                    os.remove(video.temporary)
            now.done += 1
            now.done_bytes += video.size
            progress(now)
    finally:
        results.close()
        for temporary in by_temporary:
            with suppress(OSError):
                os.remove(temporary)
        output.sync()
    if killed:
        number = f"{len(killed):,} of {now.total:,}"
        raise OutputError(errno.ENOMEM, f"{number} videos are neither made nor broken. The first: {killed[0]}.")
    return broken
