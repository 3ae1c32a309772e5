"""The folder that `prepare` writes: what is done, where each file belongs, and how to go on after an error.

Every file is there whole or not at all: it is written beside its place, flushed to disk, and then renamed. Only
the main process renames; its workers write files under temporary names.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from lightning_multigrid.files import (
    OutputError,
    output_errors,
    remove_partial,
    size_and_change,
    sync_folder,
    temporary_name,
)
from lightning_multigrid.prepare.journal import Entry, Journal
from lightning_multigrid.prepare.transcode import Broken, Encoding, Prepared

# Part of what makes two prepared files equal; raise it when `transcode` makes other files of the same settings.
_VERSION = 1
# Finished videos are written to the journal in groups of this many seconds: waiting for the disk is slow.
_COMMIT_SECONDS = 1.0


@dataclass
class PlannedVideo:
    """A source, its size in bytes, and its place in the output: `name` in the folder of all prepared videos.

    A worker writes to `temporary`.
    """

    source: str
    name: str
    size: int
    mtime_ns: int
    temporary: str = ""


@contextmanager
def open_output(root: str, encoding: Encoding, keep_damaged: bool = False) -> Iterator[Output]:
    """Makes an output folder and holds it for one `prepare`; the system lets go of it however that ends."""
    try:
        with output_errors(root):
            os.makedirs(os.path.join(root, "videos"), exist_ok=True)
            with open(os.path.join(root, "lock"), "ab") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise ValueError(
                        f"Another `prepare` is at work in {root}. Wait for it to end, or give another `output`."
                    ) from None
                remove_partial(root)
                yield Output(root, encoding, keep_damaged)
    except OutputError as error:
        goes_on = "What is there is whole, and the same command goes on from it."
        raise OutputError(error.errno, f"{error.strerror} {goes_on}") from error


class Output:
    """The prepared videos of a folder; those that were encoded otherwise are re-encoded.

    Those whose sources are damaged count as not there unless `keep_damaged`.

    `made` has the names of the videos that this `prepare` made.
    """

    def __init__(self, root: str, encoding: Encoding, keep_damaged: bool) -> None:
        self.root, self.videos = root, os.path.join(root, "videos")
        self.made: set[str] = set()
        self._settings = json.dumps({"version": _VERSION, **asdict(encoding)}, sort_keys=True)
        self._of_damaged = f"{self._settings} damaged"
        self._accepted = {self._settings, self._of_damaged} if keep_damaged else {self._settings}
        self._journal = Journal(os.path.join(root, "journal.jsonl"))
        self._uncommitted: list[Entry] = []
        self._changed_folders: set[str] = set()
        self._committed_at = 0.0

    def path(self, video: PlannedVideo) -> str:
        return os.path.join(self.videos, video.name)

    def entry(self, video: PlannedVideo) -> Entry:
        """What the journal says of a prepared video."""
        return self._journal.entries[video.name]

    def has(self, video: PlannedVideo) -> bool:
        """Whether a video is there, made from the source as it is now and with the same settings."""
        entry = self._journal.entries.get(video.name)
        wanted = (video.source, video.size, video.mtime_ns)
        if entry is None or (entry.source, entry.source_size, entry.source_mtime_ns) != wanted:
            return False
        if entry.settings not in self._accepted:
            return False
        try:
            return os.stat(self.path(video), follow_symlinks=False).st_size == entry.size
        except OSError:
            return False

    def make_room(self, video: PlannedVideo) -> None:
        """Makes the folder of a video, and gives the video a temporary file in it."""
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
        video.temporary = temporary_name(folder)

    def put_in_place(self, video: PlannedVideo, prepared: Prepared) -> Entry | Broken:
        """Gives a finished video its name, if its source is still the same."""
        try:
            found = size_and_change(video.source)
        except OSError as error:
            return Broken(f"vanished while it was read ({error.strerror or error})")
        if found != (video.size, video.mtime_ns):
            return Broken("changed while it was read")
        path = self.path(video)
        os.replace(video.temporary, path)
        size = os.stat(path).st_size
        settings = self._of_damaged if prepared.damaged else self._settings
        entry = Entry(video.name, video.source, *found, settings, size, prepared.frames)
        self.made.add(video.name)
        self._uncommitted.append(entry)
        self._changed_folders.add(os.path.dirname(path))
        return entry

    def commit(self, *, at_once: bool) -> None:
        """Brings the names of finished videos to the disk, and then to the journal: at once, or when it is time."""
        if not at_once and time.monotonic() - self._committed_at < _COMMIT_SECONDS:
            return
        for folder in self._changed_folders:
            sync_folder(folder)
        self._journal.add(self._uncommitted)
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
