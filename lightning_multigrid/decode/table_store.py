"""A folder of what is known of videos that were decoded once: a frame table of each, or why it can't be read."""

import errno
import json
import os
from array import array
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path

import numpy as np
from xxhash import xxh3_64_digest, xxh3_128_hexdigest

from lightning_multigrid import __version__
from lightning_multigrid.decode.frame_table import MADE_BY, FrameTable
from lightning_multigrid.decode.full_decode import make_table
from lightning_multigrid.decode.video_file import VideoError
from lightning_multigrid.files import StrPath, begin_in, new_file, of_videos, output_errors, path_argument, state_of

_SUFFIX = ".table"
_FORMAT = 1  # part of each name; raise it when tables of before can't be read
_BROKEN, _CHECK = b"broken ", 8  # what a reason begins with; bytes of its checksum
_BY = f"lightning-multigrid {__version__}, {MADE_BY}"
_OF_THE_TABLE = errno.EIO, errno.EACCES, errno.EPERM
_READERS = 16  # threads, as a file on a server takes milliseconds
_AT_ONCE, _PIECE = 1 << 12, 1 << 5  # paths that they share, and that one takes at a time


@dataclass
class Done:
    """What became of some videos, by their paths, or is known of them."""

    made: int = 0  # videos of which a table or a copy was made
    there: int = 0  # videos of which it was there before, or another process made it
    broken: dict[str, str] = field(default_factory=dict)  # videos that can't be used, each with the reason
    missing: list[str] = field(default_factory=list)  # videos that are still to do

    def __str__(self) -> str:
        there = f", {self.there:,} there before" if self.there else ""
        broken = f", {len(self.broken):,} broken" if self.broken else ""
        return f"{of_videos(self.made)} made{there}{broken}"


@dataclass(frozen=True)
class TableStore:
    """Frame tables of the videos below a root, in a folder that any number of processes may add to.

    A table is a file, whole or absent. Its name tells to which video it belongs: by the path below `root`, the size,
    and where another FFmpeg would decode other pixels, what made it. So nothing of a video is read to find its table,
    and videos that are mounted elsewhere keep theirs. If its checksums show that a table does not fit, the next one is
    of that very file, by its whole path and its time of change, and so is that of a damaged file.
    """

    folder: StrPath
    root: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", os.path.abspath(path_argument("folder", self.folder)))

    def find(self, path: str) -> FrameTable | None:
        """Returns the table of a video; None if there is none, or one that can't be read, which is then rejected.

        A `VideoError` if the video is known to be broken.
        """
        try:
            files = self._files(path)
        except (OSError, ValueError):  # who opens the video says why
            return None
        for file in files:
            try:
                data = Path(file).read_bytes()
                return _unpacked(path, data) if data else None  # without data since `reject`
            except (FileNotFoundError, NotADirectoryError):
                continue
            except VideoError:
                raise
            except (OSError, ValueError) as error:
                # It is damaged, or another user's; other errors of the system may pass, and say nothing of the table.
                if not isinstance(error, OSError) or error.errno in _OF_THE_TABLE:
                    self.reject(path)
                return None
        return None

    def make(self, path: str) -> bool:
        """Makes the table of a video, unless another process has by now; returns whether it did.

        A `VideoError` if the video is broken, an `OutputError` if the table can't be written.
        """
        if self.find(path) is not None:
            return False
        before = _state(path)
        try:
            made: FrameTable | str = make_table(path)
        except VideoError as error:
            if error.may_pass:  # then the file is not to blame
                raise
            made = error.reason
        if _state(path) != before:
            raise VideoError(path, "changed while it was decoded. Try it again")
        self.add(path, made)
        if isinstance(made, str):
            raise VideoError(path, made)
        return True

    def add(self, path: str, made: FrameTable | str) -> None:
        """Adds the table of a video, or why it is broken; an `OutputError` if it can't be written."""
        own, everywhere, by_this = self._files(path)
        if isinstance(made, str):
            reason = json.dumps(made).encode()
            self._write(own, _BROKEN + reason + xxh3_64_digest(reason))
        elif made.damage or os.path.exists(own):
            self._write(own, made.to_bytes())
        else:
            self._write(everywhere if made.is_bit_exact else by_this, made.to_bytes())

    def reject(self, path: str) -> None:
        """Marks, as far as this user may, that the table of a video does not fit: it is missing until `make` makes it.

        The table stays for another video of the same name and size.
        """
        with suppress(OSError, ValueError):
            self._write(self._files(path)[0], b"")

    def known(self, paths: Iterable[str]) -> Done:
        """Looks for the tables of videos; those of files that can't be read are missing."""
        found, missing, distinct, paths = Done(), dict[str, None](), array("q"), iter(paths)
        with ThreadPoolExecutor(_READERS) as threads:
            while block := list(dict.fromkeys(islice(paths, _AT_ONCE))):
                pieces = [block[first : first + _PIECE] for first in range(0, len(block), _PIECE)]
                for path, known in zip(block, chain.from_iterable(threads.map(self._look, pieces)), strict=True):
                    if isinstance(known, str):
                        found.broken[path] = known
                    elif not known:
                        missing[path] = None
                distinct.extend(map(hash, block))
        found.missing = list(missing)
        found.there = len(np.unique(np.array(distinct))) - len(missing) - len(found.broken)
        return found

    def _look(self, paths: Sequence[str]) -> list[bool | str]:
        """Whether each video has a table, or why it is broken. Only those of damaged and rejected ones are read."""
        known: list[bool | str] = []
        for path in paths:
            try:
                own, *shared = self._files(path)
                known.append(self.find(path) is not None if os.path.exists(own) else any(map(os.path.exists, shared)))
            except VideoError as error:
                known.append(error.reason)
            except (OSError, ValueError):
                known.append(False)
        return known

    def begin(self) -> None:
        """Begins to add tables: an `OutputError` if none can be added, so that none is made in vain."""
        begin_in(str(self.folder))

    def _files(self, path: str) -> tuple[str, str, str]:
        """Where a table may be: that of this very file, of any version of FFmpeg, and of this one."""
        state = state_of(path)
        video = f"{_FORMAT}\0{path.removeprefix(os.path.join(self.root, ''))}\0{state.size}"
        of_file = f"{_FORMAT}\0{path}\0{state.size}\0{state.changed}\0{_BY}"
        own, everywhere, by_this = map(self._file, (of_file, video, f"{video}\0{MADE_BY}"))
        return own, everywhere, by_this

    def _file(self, text: str) -> str:
        digest = xxh3_128_hexdigest(text.encode("utf-8", "surrogateescape"))
        return f"{self.folder}/{digest[:2]}/{digest[2:]}{_SUFFIX}"  # in 256 folders, as large ones are slow

    def _write(self, file: str, data: bytes) -> None:
        with output_errors(str(self.folder)):
            os.makedirs(os.path.dirname(file), exist_ok=True)
            with new_file(file, synced=False) as part:  # a table has a checksum
                part.write(data)


def _state(path: str) -> tuple[int, int]:
    try:
        return state_of(path)
    except (OSError, ValueError) as error:
        raise VideoError(path, f"cannot be read ({getattr(error, 'strerror', None) or error})") from error


def _unpacked(path: str, data: bytes) -> FrameTable:
    """Returns the stored table; a `VideoError` if the video is broken, a ValueError if what is stored is."""
    if not data.startswith(_BROKEN):
        return FrameTable.from_bytes(data)
    reason, check = data[len(_BROKEN) : -_CHECK], data[-_CHECK:]
    if xxh3_64_digest(reason) != check:
        raise ValueError("its checksum is wrong")
    raise VideoError(path, json.loads(reason))
