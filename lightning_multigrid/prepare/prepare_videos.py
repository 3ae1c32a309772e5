"""Re-encodes a dataset so that it decodes several times faster: every video small and known to be readable.

The output folder holds `videos/`, named as the sources are; `manifest.packed`, which `VideoDataModule` takes, with the
packet indices of the videos; `report.csv`, which says what was broken and why; `journal.jsonl`, from which the same
command knows later what is done; and `lock`, which keeps a second `prepare` out. Part K of N has a journal, a report,
a manifest (for the indices of its videos) and a lock of its own in `parts/K-of-N`.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

from lightning_multigrid.decode import BrokenVideosError
from lightning_multigrid.files import StrPath, is_url, path_argument, size_and_change, write_csv
from lightning_multigrid.prepare.index_videos import indices
from lightning_multigrid.prepare.names import names_of
from lightning_multigrid.prepare.output import Output, PlannedVideo, open_output
from lightning_multigrid.prepare.parts import Part, how_to_finish
from lightning_multigrid.prepare.transcode import Encoding, Prepared, TranscodeJob
from lightning_multigrid.prepare.workers import TaskFailure, run_tasks
from lightning_multigrid.sources import INDEX_NAME_0_2_0, MANIFEST_NAME, Manifest, renamed, save_manifest

REPORT_NAME = "report.csv"
_SAMPLE = 16  # videos from which the space for all is estimated


@dataclass
class Progress:
    """Where a `prepare` is."""

    total: int  # videos to make
    total_bytes: int  # of their sources, from which the remaining time is estimated
    done: int = 0  # videos that are made, or broken
    done_bytes: int = 0  # of their sources
    broken: int = 0  # videos that are broken


@dataclass(frozen=True)
class Summary:
    """What a `prepare` did."""

    manifest: str  # the packed manifest, for `VideoDataModule`; after a part, where `merge` will write it
    report: str  # CSV of the broken videos
    made: int  # videos that it made
    kept: int  # videos that were there before
    broken: dict[str, str]  # path and reason of each video that can't be used
    source_bytes: int  # of the sources of all videos that are there now; 0 if those are folders of frames
    bytes: int  # of the videos themselves


def prepare(
    manifest: Manifest,
    output: StrPath,
    encoding: Encoding = Encoding(),
    *,
    part: str | None = None,
    merge: bool = False,
    workers: int = 0,
    timeout: float = 300.0,
    max_bad_fraction: float = 0.25,
    keep_damaged: bool = False,
    progress: Callable[[Progress], None] = lambda now: None,
) -> Summary:
    """Re-encodes the videos of a manifest, except those that are there already.

    Args:
        manifest: The videos.
        output: Folder for all that is written. Nothing outside it is touched, whatever the manifest says.
        encoding: How videos are encoded.
        part: Do only part K of N, given as `K/N`; several machines may do the parts at once, into one folder.
        merge: Encode nothing; write the manifest and the index of all parts, as one `prepare` of all videos does.
        workers: Processes; 0 works in this one.
        timeout: Seconds without a frame after which a video counts as broken (not with 0 workers).
        max_bad_fraction: Largest share of all videos that may be broken, in [0, 1]; parts leave this to `merge`.
        keep_damaged: Whether to write damaged videos as FFmpeg decodes them from their beginning, without the frames
            that don't come out, instead of leaving them out as broken.
        progress: Called after every video.

    Raises:
        BrokenVideosError: If too many videos are broken; the others are there nevertheless, and so is the report.
        OutputError: If the disk is too small or full, or refuses something.
        ValueError: If an argument is outside its range, another `prepare` holds the folder, or `merge` lacks parts.
    """
    if part is not None and merge:
        raise ValueError(f"`part` and `merge` exclude each other, got part={part!r}. Merge when all parts are done.")
    share = None if part is None else Part.parse(part)
    if workers < 0 or timeout <= 0 or not 0 <= max_bad_fraction <= 1:
        raise ValueError(
            "`workers` must be at least 0, `timeout` positive and `max_bad_fraction` in [0, 1], got "
            f"{workers}, {timeout} and {max_bad_fraction}."
        )
    root = os.path.realpath(path_argument("output", output))
    run = partial(run_tasks, workers=workers, timeout=timeout)
    with open_output(root, encoding, keep_damaged, share) as folder:
        sources = [manifest.path(row) for row in range(len(manifest))]
        videos, broken = _planned(sources, manifest.root, root, share)
        total = len(videos) + len(broken)
        kept = {video.name: found for video in videos.values() if (found := folder.prepared(video))}
        pending = [video for video in videos.values() if video.name not in kept]
        if merge:
            broken |= _known_broken(folder, pending, total)
        else:
            blank = TranscodeJob("", "", encoding, manifest.frame_rate, keep_damaged)
            broken |= _transcode_all(folder, pending, blank, run, progress)
        good = {source: video for source, video in videos.items() if source not in broken}
        path, report = os.path.join(root, MANIFEST_NAME), os.path.join(folder.work, REPORT_NAME)
        write_report(report, broken)
        if good:
            names = [good[source].name if source in good else None for source in sources]
            # A part's manifest is not for training: it keeps the indices for `merge`.
            made = renamed(replace(manifest, frame_rate=None), names, path, os.path.join(folder.work, "videos"))
            paths = {video.name: folder.path(video) for video in good.values()}
            indexed = {name: (where, entry.size) for name, (entry, where) in kept.items()}
            save_manifest(made, os.path.join(folder.work, MANIFEST_NAME), indices(paths, indexed, run))
            with suppress(FileNotFoundError):
                os.remove(os.path.join(folder.work, INDEX_NAME_0_2_0))
    if share is None and (len(broken) > max_bad_fraction * total or not good):
        first = "; ".join(f"{path}: {reason}" for path, reason in islice(broken.items(), 3))
        raise BrokenVideosError(
            f"{len(broken):,} of the {total:,} videos can't be used, more than "
            f"`max_bad_fraction={max_bad_fraction:g}` allows; {report} names them. Check the "
            f"paths and `root`, repair or remove the videos, or raise `max_bad_fraction`. The first: {first}"
        )
    entries = [*folder.made.values(), *(entry for entry, _ in kept.values())]
    source_bytes = sum(entry.source_size for entry in entries) if manifest.frame_rate is None else 0
    made_bytes = sum(entry.size for entry in entries)
    return Summary(path, report, len(folder.made), len(kept), broken, source_bytes, made_bytes)


def write_report(path: str, broken: dict[str, str]) -> None:
    """Writes which videos are broken and why, as a CSV with the columns `path` and `reason`."""
    write_csv(path, [("path", "reason"), *sorted(broken.items())])


def _planned(
    sources: Sequence[str], root: str, output: str, share: Part | None
) -> tuple[dict[str, PlannedVideo], dict[str, str]]:
    """Each source, or those of a part, with its name in the output; and those that are not there, with the reason."""
    videos: dict[str, PlannedVideo] = {}
    broken: dict[str, str] = {}
    for place, (source, name) in enumerate(names_of(sources, root).items()):
        if share is not None and not share.has(place):
            continue
        try:
            videos[source] = PlannedVideo(source, name, place, *size_and_change(source))
        except (OSError, ValueError) as error:
            missing = isinstance(error, FileNotFoundError | NotADirectoryError)
            broken[source] = "there is no such file" if missing else str(getattr(error, "strerror", None) or error)
            continue
        if not is_url(source) and os.path.realpath(source).startswith(os.path.join(output, "")):
            raise ValueError(
                f"{source} lies in the output folder {output}, where it might be overwritten. Give a folder of its "
                "own as `output`."
            )
    return videos, broken


def _known_broken(output: Output, pending: list[PlannedVideo], total: int) -> dict[str, str]:
    """Why videos are broken that parts could not prepare. Other videos that are not there are an error."""
    broken = {video.source: entry.broken for video in pending for entry, _ in output.entries(video) if entry.broken}
    if missing := [video for video in pending if video.source not in broken]:
        raise ValueError(
            f"{len(missing):,} of the {total:,} videos are not in {output.root} yet, made from the sources as they are "
            f"now and with these settings. The first: {missing[0].source}. "
            + how_to_finish([video.place for video in missing], output.root)
        )
    return broken


def _transcode_all(
    output: Output,
    pending: list[PlannedVideo],
    blank: TranscodeJob,
    run: Callable[..., Any],
    progress: Callable[[Progress], None],
) -> dict[str, str]:
    """Makes videos as `blank` says, and puts them in their places; returns which are broken, and why."""
    now = Progress(len(pending), sum(video.size for video in pending))
    progress(now)
    broken: dict[str, str] = {}
    made_bytes = read_bytes = 0
    space_was_checked = False
    by_temporary: dict[str, PlannedVideo] = {}

    def jobs() -> Iterator[TranscodeJob]:
        for video in _sample_first(pending):
            output.make_room(video)
            by_temporary[video.temporary] = video
            yield replace(blank, source=video.source, target=video.temporary)

    results = run("lightning_multigrid.prepare.transcode:transcode", jobs())
    try:
        for job, result in results:
            video = by_temporary.pop(job.target)
            if isinstance(result, OSError):
                raise result
            if isinstance(result, Prepared):
                result = output.put_in_place(video, result)
            if isinstance(result, TaskFailure):
                broken[video.source] = result.reason
                output.leave_out(video, result.reason)
                now.broken += 1
                with suppress(OSError):
                    os.remove(video.temporary)
            else:
                made_bytes += result.size
                read_bytes += video.size
            now.done += 1
            now.done_bytes += video.size
            if not space_was_checked and read_bytes and now.done >= min(_SAMPLE, now.total):
                space_was_checked = True
                output.check_space(made_bytes, read_bytes, now.total_bytes - now.done_bytes)
            output.commit(at_once=False)
            progress(now)
    finally:
        results.close()
        for temporary in by_temporary:  # before the journal, which may need their place on the disk
            with suppress(OSError):
                os.remove(temporary)
        output.commit(at_once=True)
    return broken


def _sample_first(videos: list[PlannedVideo]) -> list[PlannedVideo]:
    """All videos, first some from everywhere, from which the space is estimated."""
    step = max(1, len(videos) // _SAMPLE)
    first = range(0, step * min(_SAMPLE, len(videos)), step)
    return [videos[i] for i in first] + [video for i, video in enumerate(videos) if i not in first]
