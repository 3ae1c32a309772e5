"""The folder that `prepare` writes: what is done, where each file belongs, and how to go on after an error.

Files are written under a temporary name, flushed to disk, and then renamed, by the main process only; each says by its
own table what it was made from. Nothing rests on the lock, which some network file systems lack: two processes that
make the same video make the same bytes.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass

from lightning_multigrid.decode import FrameTable, own_table
from lightning_multigrid.files import (
    OutputError,
    WatchedFile,
    output_errors,
    remove_partial,
    sync_folder,
    temporary_name,
    write_csv,
)
from lightning_multigrid.prepare.transcode import DAMAGED, Encoding

REPORT_NAME = "report.csv"

# Part of what makes two prepared files equal; raise it when `transcode` makes other files of the same settings.
_VERSION = 3
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}  # of a file system without locks


@dataclass
class PlannedVideo:
    """A source of `size` bytes, its `name` in the folder of all, and where a worker writes."""

    source: str
    name: str
    size: int
    mtime_ns: int
    temporary: str = ""


@contextmanager
def open_output(root: str, encoding: Encoding, *, keep_damaged: bool, shared: bool) -> Iterator[Output]:
    """Makes an output folder and holds it, perhaps together with others; the system lets go of it however that ends.

    Who holds it alone removes what killed processes left unfinished.
    """
    try:
        with output_errors(root):
            os.makedirs(os.path.join(root, "videos"), exist_ok=True)
            with open(os.path.join(root, "lock"), "a+b") as file:  # network file systems want it readable, too
                _lock(file.fileno(), root, shared)
                if not shared:
                    remove_partial(root)
                yield Output(root, encoding, keep_damaged)
    except OutputError as error:
        goes_on = "What is there is whole, and the same command goes on from it."
        if error.errno == errno.ENOENT:
            goes_on = f"Perhaps another `prepare` of the same videos has begun and removed unfinished files. {goes_on}"
        raise OutputError(error.errno, f"{error.strerror} {goes_on}") from error


def _lock(file: int, folder: str, shared: bool) -> None:
    """Keeps a second `prepare` of the same videos out, where the file system can."""
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(
            f"Another `prepare` is at work in {folder}. Wait for it to end, or give another `output`."
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


class Output:
    """The prepared videos of a folder.

    Those that were encoded otherwise, or from damaged sources without `keep_damaged`, count as not there.
    """

    def __init__(self, root: str, encoding: Encoding, keep_damaged: bool) -> None:
        self.root, self.videos = root, os.path.join(root, "videos")
        self._settings, self._keep_damaged = {"version": _VERSION, **asdict(encoding)}, keep_damaged
        self._changed_folders: set[str] = set()

    def path(self, video: PlannedVideo) -> str:
        return os.path.join(self.videos, video.name)

    def made_from(self, video: PlannedVideo) -> str:
        """What a video is made of and how: its source as it is now, and the settings."""
        # Whole paths stay private; a digest tells them apart.
        source = hashlib.sha256(os.fsencode(video.source)).hexdigest()[:16]
        return json.dumps({**self._settings, "source": source, "bytes": video.size, "changed": video.mtime_ns})

    def prepared(self, video: PlannedVideo) -> FrameTable | None:
        """The table of a video that is there as it would be made now."""
        path = self.path(video)
        if os.path.islink(path):
            return None
        try:
            file = WatchedFile(path)
        except FileNotFoundError:
            return None
        with closing(file):
            table = own_table(file) if file.is_ordinary else None
        if table is None or table.file_size != file.size:
            return None
        is_same = table.made_from.removesuffix(DAMAGED) == self.made_from(video)
        return table if is_same and (self._keep_damaged or not table.made_from.endswith(DAMAGED)) else None

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
        video.temporary = temporary_name(self.root)

    def put_in_place(self, video: PlannedVideo) -> str:
        """Gives a finished video its name, and returns ""; or why not, if its source is no longer the same."""
        try:
            found = os.stat(video.source)
        except OSError as error:
            return f"vanished while it was read ({error.strerror})"
        if (found.st_size, found.st_mtime_ns) != (video.size, video.mtime_ns):
            return "changed while it was read"
        os.replace(video.temporary, self.path(video))
        self._changed_folders.add(os.path.dirname(self.path(video)))
        return ""

    def sync(self) -> None:
        """Brings the names of finished videos to the disk."""
        for folder in self._changed_folders:
            sync_folder(folder)
        self._changed_folders.clear()


def write_report(path: str, broken: Mapping[str, str]) -> None:
    """Writes which videos are broken and why, as a CSV with the columns `path` and `reason`."""
    write_csv(path, [("path", "reason"), *sorted(broken.items())])
