"""The folder that `prepare` writes: what is done, where each file belongs, and how to go on after an error.

Files are written under a temporary name, flushed to disk, and then renamed, by the main process only; each says by its
tag what it was made of. Nothing rests on the locks, which some network file systems lack: two processes that make the
same video make the same bytes. Each part has a folder for its report and its unfinished files.
"""

from __future__ import annotations

import csv
import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass

from lightning_multigrid.files import (
    OutputError,
    output_errors,
    remove_partial,
    size_and_change,
    sync_folder,
    temporary_name,
    write_csv,
)
from lightning_multigrid.prepare.parts import Part, parts_begun
from lightning_multigrid.prepare.tag import Tag, read_tag
from lightning_multigrid.prepare.transcode import Encoding

REPORT_NAME = "report.csv"

# Part of what makes two prepared files equal; raise it when `transcode` makes other files of the same settings.
_VERSION = 2
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}  # of a file system without locks


@dataclass
class PlannedVideo:
    """A source of `size` bytes, its `name` in the folder of all, its `place` among them, and where a worker writes."""

    source: str
    name: str
    place: int
    size: int
    mtime_ns: int
    temporary: str = ""


@contextmanager
def open_output(
    root: str, encoding: Encoding, keep_damaged: bool = False, part: Part | None = None
) -> Iterator[Output]:
    """Makes an output folder and holds it, or a part of it; the system lets go of it however that ends."""
    work = root if part is None else part.folder(root)
    try:
        with output_errors(root), ExitStack() as held:
            os.makedirs(os.path.join(root, "videos"), exist_ok=True)
            os.makedirs(work, exist_ok=True)
            held.enter_context(_lock(root, shared=part is not None))
            if part is not None:
                held.enter_context(_lock(work, shared=False))
            remove_partial(work)
            yield Output(root, work, encoding, keep_damaged)
    except OutputError as error:
        goes_on = "What is there is whole, and the same command goes on from it."
        if error.errno == errno.ENOENT:
            goes_on = f"Perhaps another `prepare` of the same videos has begun and removed unfinished files. {goes_on}"
        raise OutputError(error.errno, f"{error.strerror} {goes_on}") from error


@contextmanager
def _lock(folder: str, *, shared: bool) -> Iterator[None]:
    """Keeps a second `prepare` of the same videos out, where the file system can."""
    with open(os.path.join(folder, "lock"), "a+b") as file:  # network file systems want it readable for a shared lock
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"Another `prepare` is at work in {folder}. Wait for it to end, or give another `output`."
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        yield


class Output:
    """The prepared videos of a folder. `work` is where the report of this `prepare` and its unfinished files lie.

    Those that were encoded otherwise, or from damaged sources without `keep_damaged`, count as not there.
    """

    def __init__(self, root: str, work: str, encoding: Encoding, keep_damaged: bool) -> None:
        self.root, self.work, self.videos = root, work, os.path.join(root, "videos")
        self._settings, self._keep_damaged = {"version": _VERSION, **asdict(encoding)}, keep_damaged
        self._changed_folders: set[str] = set()

    def path(self, video: PlannedVideo) -> str:
        return os.path.join(self.videos, video.name)

    def label(self, video: PlannedVideo) -> str:
        """What a video is made of and how: its source as it is now, and the settings."""
        # Whole paths stay private; a digest tells them apart.
        source = hashlib.sha256(os.fsencode(video.source)).hexdigest()[:16]
        return json.dumps({**self._settings, "source": source, "bytes": video.size, "changed": video.mtime_ns})

    def prepared(self, video: PlannedVideo) -> Tag | None:
        """The tag of a video that is there as it would be made now."""
        path = self.path(video)
        found = None if os.path.islink(path) else read_tag(path)
        if found is None or found[0].label != self.label(video):
            return None
        return found[0] if self._keep_damaged or not found[0].damaged else None

    def make_room(self, video: PlannedVideo) -> None:
        """Makes the folder of a video, and gives the video a temporary file."""
        folder = os.path.dirname(self.path(video))
        # A link that lies in the output folder must not lead what is written out of it.
        if os.path.realpath(folder) != folder:
            raise OutputError(
                errno.ELOOP,
                f"{folder} is reached over a link, and nothing is written outside {self.root}. Remove the link.",
            )
        if not os.path.isdir(folder):
            os.makedirs(folder, exist_ok=True)
            parent = folder
            while parent != self.videos:  # the names of new folders must be on the disk, too
                parent = os.path.dirname(parent)
                self._changed_folders.add(parent)
        video.temporary = temporary_name(self.work)

    def put_in_place(self, video: PlannedVideo) -> str:
        """Gives a finished video its name, and returns ""; or why not, if its source is no longer the same."""
        try:
            found = size_and_change(video.source)
        except OSError as error:
            return f"vanished while it was read ({error.strerror or error})"
        if found != (video.size, video.mtime_ns):
            return "changed while it was read"
        os.replace(video.temporary, self.path(video))
        self._changed_folders.add(os.path.dirname(self.path(video)))
        return ""

    def sync(self) -> None:
        """Brings the names of finished videos to the disk."""
        for folder in self._changed_folders:
            sync_folder(folder)
        self._changed_folders.clear()

    def write_report(self, broken: dict[str, str], videos: Iterable[PlannedVideo]) -> str:
        """Writes which sources are broken and why, and returns where; a part says as what they are, for the merge."""
        path = os.path.join(self.work, REPORT_NAME)
        if self.work == self.root:
            write_report(path, broken)
        else:
            rows = [(v.source, broken[v.source], self._state(v)) for v in videos if v.source in broken]
            write_csv(path, [("path", "reason", "state"), *rows])
        return path

    def known_broken(self, videos: Iterable[PlannedVideo]) -> dict[str, str]:
        """What the reports of parts say of videos that are broken, with their sources as they are now."""
        reasons: dict[tuple[str, ...], str] = {}
        for part in parts_begun(self.root):
            path = os.path.join(part.folder(self.root), REPORT_NAME)
            with (
                suppress(FileNotFoundError),
                open(path, encoding="utf-8", errors="surrogateescape", newline="") as file,
            ):
                reasons |= {(row[0], row[2]): row[1] for row in csv.reader(file) if len(row) == 3}
        states = {video.source: (video.source, self._state(video)) for video in videos}
        return {source: reasons[state] for source, state in states.items() if state in reasons}

    def _state(self, video: PlannedVideo) -> str:
        # What is broken without `keep_damaged` may be kept with it.
        return self.label(video) + (" damaged" if self._keep_damaged else "")

    def check_space(self, made: int, read: int, rest: int) -> None:
        """Refuses to go on if the rest of the sources will find no room, at the ratio of those done (all in bytes)."""
        required, free = int(rest * made / read), shutil.disk_usage(self.root).free
        if required > free:
            raise OutputError(
                errno.ENOSPC,
                f"About {required / 1e9:,.1f} GB more are required in {self.root}, {free / 1e9:,.1f} GB are free. Free "
                "some space, give another `output`, a smaller `short_side` or a larger `crf`.",
            )


def write_report(path: str, broken: Mapping[str, str]) -> None:
    """Writes which videos are broken and why, as a CSV with the columns `path` and `reason`."""
    write_csv(path, [("path", "reason"), *sorted(broken.items())])
