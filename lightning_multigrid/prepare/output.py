"""The folder that `prepare` writes: what is done, where each file belongs, and how to go on after an error.

Files are written under a temporary name, flushed to disk, and then renamed, by the main process only. Nothing rests on
the locks, which some network file systems lack: two processes that make the same video make the same bytes. Each part
has a folder for its journal and its unfinished files.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass

from lightning_multigrid.files import (
    OutputError,
    output_errors,
    remove_partial,
    size_and_change,
    sync_folder,
    temporary_name,
)
from lightning_multigrid.prepare.parts import Part, parts_begun
from lightning_multigrid.prepare.transcode import Encoding, Prepared
from lightning_multigrid.prepare.workers import TaskFailure

# Part of what makes two prepared files equal; raise it when `transcode` makes other files of the same settings.
_VERSION = 1
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}  # of a file system without locks
# Finished videos are written to the journal in groups of this many seconds: waiting for the disk is slow.
_COMMIT_SECONDS = 1.0


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


@dataclass(frozen=True)
class Entry:
    """A prepared video and its source, sizes in bytes: if any of this has changed, the video is prepared again."""

    video: str  # relative to the folder of all
    source: str
    source_size: int
    source_mtime_ns: int
    settings: str
    size: int  # of the prepared file. Its time is not kept: in a copy of the dataset it is another one
    frames: int
    broken: str = ""  # why there is no prepared file


class Journal:
    """The entries of an output folder, by prepared file. A line without an end was not written whole: it is ignored."""

    def __init__(self, path: str) -> None:
        self._path, self.folder = path, os.path.dirname(path)
        self.entries: dict[str, Entry] = {}
        self._torn = False
        with suppress(FileNotFoundError), open(path, "rb") as file:
            for line in file:
                self._torn = not line.endswith(b"\n")
                if entry := _parsed(line):
                    self.entries[entry.video] = entry

    def add(self, added: list[Entry]) -> None:
        """Adds entries and waits until they are on the disk."""
        if not added:
            return
        # All ASCII: JSON escapes what else is in the names of files.
        lines = "".join(json.dumps(asdict(entry)) + "\n" for entry in added)
        with open(self._path, "ab") as file:
            file.write(("\n" if self._torn else "").encode() + lines.encode())
            file.flush()
            os.fsync(file.fileno())
        self._torn = False
        self.entries.update((entry.video, entry) for entry in added)


def _parsed(line: bytes) -> Entry | None:
    try:
        entry = Entry(**json.loads(line))
    except (ValueError, TypeError, RecursionError):
        return None
    kinds = {name: type(value).__name__ for name, value in asdict(entry).items()}
    return entry if kinds == Entry.__annotations__ else None


class Output:
    """The prepared videos of a folder. `work` is where the journal, the report and the index of this `prepare` lie.

    Those that were encoded otherwise, or from damaged sources without `keep_damaged`, count as not there.
    """

    def __init__(self, root: str, work: str, encoding: Encoding, keep_damaged: bool) -> None:
        self.root, self.work, self.videos = root, work, os.path.join(root, "videos")
        self.made: dict[str, Entry] = {}  # by this `prepare`, by name
        self._settings = json.dumps({"version": _VERSION, **asdict(encoding)}, sort_keys=True)
        self._of_damaged = f"{self._settings} damaged"
        # What is broken without `keep_damaged` may be kept with it.
        self._of_broken = self._of_damaged if keep_damaged else self._settings
        self._accepted = {self._settings, self._of_broken}
        folders = dict.fromkeys([work, root, *(part.folder(root) for part in parts_begun(root))])
        self._journals = [Journal(os.path.join(folder, "journal.jsonl")) for folder in folders]
        self._uncommitted: list[Entry] = []
        self._changed_folders: set[str] = set()
        self._committed_at = 0.0

    def path(self, video: PlannedVideo) -> str:
        return os.path.join(self.videos, video.name)

    def entries(self, video: PlannedVideo) -> Iterator[tuple[Entry, str]]:
        """What journals say of a video with its source as it is now and the same settings; and their folders."""
        wanted = (video.source, video.size, video.mtime_ns)
        for journal in self._journals:
            entry = journal.entries.get(video.name)
            if entry is None or (entry.source, entry.source_size, entry.source_mtime_ns) != wanted:
                continue
            if entry.settings in ({self._of_broken} if entry.broken else self._accepted):
                yield entry, journal.folder

    def prepared(self, video: PlannedVideo) -> tuple[Entry, str] | None:
        """The entry of a video that is there, and the folder of its journal."""
        with suppress(OSError):
            size = os.stat(self.path(video), follow_symlinks=False).st_size
            return next((found for found in self.entries(video) if found[0].size == size and not found[0].broken), None)
        return None

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

    def put_in_place(self, video: PlannedVideo, prepared: Prepared) -> Entry | TaskFailure:
        """Gives a finished video its name, if its source is still the same."""
        try:
            found = size_and_change(video.source)
        except OSError as error:
            return TaskFailure(f"vanished while it was read ({error.strerror or error})")
        if found != (video.size, video.mtime_ns):
            return TaskFailure("changed while it was read")
        path = self.path(video)
        os.replace(video.temporary, path)
        size = os.stat(path).st_size
        settings = self._of_damaged if prepared.damaged else self._settings
        entry = Entry(video.name, video.source, *found, settings, size, prepared.frames)
        self.made[video.name] = entry
        self._uncommitted.append(entry)
        self._changed_folders.add(os.path.dirname(path))
        return entry

    def leave_out(self, video: PlannedVideo, reason: str) -> None:
        """Notes for the journal that a video is broken: parts tell it to the one that merges them."""
        found = (video.source, video.size, video.mtime_ns)
        self._uncommitted.append(Entry(video.name, *found, self._of_broken, 0, 0, reason))

    def commit(self, *, at_once: bool) -> None:
        """Brings the names of finished videos to the disk, and then to the journal: at once, or when it is time."""
        if not at_once and time.monotonic() - self._committed_at < _COMMIT_SECONDS:
            return
        for folder in self._changed_folders:
            sync_folder(folder)
        self._journals[0].add(self._uncommitted)
        self._changed_folders.clear()
        self._uncommitted.clear()
        self._committed_at = time.monotonic()

    def check_space(self, made: int, read: int, rest: int) -> None:
        """Refuses to go on if the rest of the sources will find no room, at the ratio of those done (all in bytes)."""
        required, free = int(rest * made / read), shutil.disk_usage(self.root).free
        if required > free:
            raise OutputError(
                errno.ENOSPC,
                f"About {required / 1e9:,.1f} GB more are required in {self.root}, {free / 1e9:,.1f} GB are free. Free "
                "some space, give another `output`, a smaller `short_side` or a larger `crf`.",
            )
