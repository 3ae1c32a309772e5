"""Re-encodes a dataset so that it decodes several times faster: every video small and known to be readable.

The output folder holds `videos/`, named as the sources are, each with a tag and its frame table at its end, from which
the same command knows later what is done; `manifest.safetensors`, which `VideoDataModule` takes, with the frame tables
of all; `report.csv`, which says what was broken and why; and `lock`, which keeps a second `prepare` out. Part K of N
has a report and a lock of its own in `parts/K-of-N`.
"""

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

from lightning_multigrid.decode import BrokenVideosError
from lightning_multigrid.files import OutputError, StrPath, is_url, path_argument, printable, sizes_and_changes
from lightning_multigrid.prepare.names import names_of
from lightning_multigrid.prepare.output import Output, PlannedVideo, open_output
from lightning_multigrid.prepare.parts import Part, how_to_finish
from lightning_multigrid.prepare.processes import TaskFailure, run_tasks
from lightning_multigrid.prepare.progress import Progress
from lightning_multigrid.prepare.tag import Tag, read_tag
from lightning_multigrid.prepare.transcode import Encoding, Prepared, TranscodeJob, require_encoder, transcode
from lightning_multigrid.sources import MANIFEST_NAME, Manifest, renamed, save_manifest

_SAMPLE = 16  # videos from which the space for all is estimated


@dataclass(frozen=True)
class Summary:
    """What a `prepare` did."""

    manifest: str  # that of the prepared videos, for `VideoDataModule`; after a part, where `merge` will write it
    report: str  # CSV of the broken videos
    made: int  # videos that it made
    kept: int  # videos that were there before
    broken: dict[str, str]  # path and reason of each video that can't be used
    source_bytes: int  # of the sources of all videos that are there now; 0 if those are folders of frames
    bytes: int  # of the videos themselves
    notes: dict[
        str, tuple[str, ...]
    ]  # path of each video that is there, and what a user may want to know of it, if any


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
        merge: Encode nothing; write the manifest of all parts, as one `prepare` of all videos does.
        workers: Processes; 0 works in this one.
        timeout: Seconds without a frame after which a video counts as broken (not with 0 workers).
        max_bad_fraction: Largest share of all videos that may be broken, in [0, 1]; parts leave this to `merge`.
        keep_damaged: Whether to write damaged videos as FFmpeg decodes them from their beginning, without the frames
            that don't come out, instead of leaving them out as broken.
        progress: Called after every video.

    Raises:
        BrokenVideosError: If too many videos are broken; the others are there nevertheless, and so is the report.
        OutputError: If the disk is too small or full, or refuses something; or if the system ended the processes of
            some videos twice, which are then neither broken nor there.
        ValueError: If an argument is outside its range, another `prepare` holds the folder, `merge` lacks parts, or
            this FFmpeg has no encoder.
    """
    if part is not None and merge:
        raise ValueError(f"`part` and `merge` exclude each other, got part={part!r}. Merge when all parts are done.")
    share = None if part is None else Part.parse(part)
    if workers < 0 or timeout <= 0 or not 0 <= max_bad_fraction <= 1:
        raise ValueError(
            "`workers` must be at least 0, `timeout` positive and `max_bad_fraction` in [0, 1], got "
            f"{workers}, {timeout} and {max_bad_fraction}."
        )
    if not merge:
        require_encoder()
    root = os.path.realpath(path_argument("output", output))
    with open_output(root, encoding, keep_damaged, share) as folder:
        sources = [manifest.path(row) for row in range(len(manifest))]
        videos, broken = _planned(sources, manifest.root, root, share)
        total = len(videos) + len(broken)
        tags = {video.source: tag for video in videos.values() if (tag := folder.prepared(video))}
        kept, pending = len(tags), [video for video in videos.values() if video.source not in tags]
        if merge:
            broken |= _known_broken(folder, pending, total)
        else:
            run = partial(run_tasks, workers=workers, timeout=timeout)
            blank = TranscodeJob("", "", encoding, manifest.frame_rate, keep_damaged)
            broken |= _transcode_all(folder, pending, blank, run, progress, tags)
        report = folder.write_report(broken, videos.values())
        good = {source: video for source, video in videos.items() if source in tags}
        path = os.path.join(root, MANIFEST_NAME)
        if good and share is None:
            names = [good[source].name if source in good else None for source in sources]
            made = renamed(replace(manifest, frame_rate=None, tables=None), names, path, folder.videos)
            save_manifest(made, path, dict(_tables(map(folder.path, good.values()))))
    size = sum(os.path.getsize(folder.path(video)) for video in good.values())
    if share is None and (len(broken) > max_bad_fraction * total or not good):
        first = "; ".join(f"{path}: {reason}" for path, reason in islice(broken.items(), 3))
        raise BrokenVideosError(
            f"{len(broken):,} of the {total:,} videos can't be used, more than "
            f"`max_bad_fraction={max_bad_fraction:g}` allows; {report} names them. Check the "
            f"paths and `root`, repair or remove the videos, or raise `max_bad_fraction`. The first: {printable(first)}"
        )
    source_bytes = sum(video.size for video in good.values()) if manifest.frame_rate is None else 0
    notes = {source: tag.notes for source, tag in tags.items() if tag.notes}
    return Summary(path, report, len(good) - kept, kept, broken, source_bytes, size, notes)


def _tables(paths: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """The paths of prepared videos with their tables."""
    for path in paths:
        if (found := read_tag(path)) is not None:
            yield path, found[1]


def _planned(
    sources: Sequence[str], root: str, output: str, share: Part | None
) -> tuple[dict[str, PlannedVideo], dict[str, str]]:
    """Each source, or those of a part, with its name in the output; and those that are not there, with the reason."""
    videos: dict[str, PlannedVideo] = {}
    broken: dict[str, str] = {}
    all_named = enumerate(names_of(sources, root).items())
    named = [(place, names) for place, names in all_named if share is None or share.has(place)]
    found = sizes_and_changes(source for _, (source, _) in named)
    for place, (source, name) in named:
        size = found[source]
        if isinstance(size, OSError | ValueError):
            missing = isinstance(size, FileNotFoundError | NotADirectoryError)
            broken[source] = "there is no such file" if missing else str(getattr(size, "strerror", None) or size)
            continue
        videos[source] = PlannedVideo(source, name, place, *size)
        if not is_url(source) and os.path.realpath(source).startswith(os.path.join(output, "")):
            raise ValueError(
                f"{source} lies in the output folder {output}, where it might be overwritten. Give a folder of its "
                "own as `output`."
            )
    return videos, broken


def _known_broken(output: Output, pending: list[PlannedVideo], total: int) -> dict[str, str]:
    """Why videos are broken that parts could not prepare. Other videos that are not there are an error."""
    broken = output.known_broken(pending)
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
    tags: dict[str, Tag],
) -> dict[str, str]:
    """Makes videos as `blank` says, and adds the tags of those in place; returns which are broken, and why."""
    now = Progress(len(pending), sum(video.size for video in pending))
    progress(now)
    broken: dict[str, str] = {}
    killed: list[str] = []
    made_bytes = read_bytes = 0
    space_was_checked = False
    by_temporary: dict[str, PlannedVideo] = {}

    def jobs() -> Iterator[TranscodeJob]:
        for video in _sample_first(pending):
            output.make_room(video)
            by_temporary[video.temporary] = video
            yield replace(blank, source=video.source, target=video.temporary, label=output.label(video))

    results = run(transcode, jobs())
    try:
        for job, result in results:
            video = by_temporary.pop(job.target)
            if isinstance(result, OSError):
                raise result
            if isinstance(result, Prepared) and not (changed := output.put_in_place(video)):
                tags[video.source] = result.tag
                made_bytes += os.path.getsize(output.path(video))
                read_bytes += video.size
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
            if not space_was_checked and read_bytes and now.done >= min(_SAMPLE, now.total):
                space_was_checked = True
                output.check_space(made_bytes, read_bytes, now.total_bytes - now.done_bytes)
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


def _sample_first(videos: list[PlannedVideo]) -> list[PlannedVideo]:
    """All videos, first some from everywhere, from which the space is estimated."""
    step = max(1, len(videos) // _SAMPLE)
    first = range(0, step * min(_SAMPLE, len(videos)), step)
    return [videos[i] for i in first] + [video for i, video in enumerate(videos) if i not in first]
