"""What `prepare` has done, a line per video: after it was stopped, the same command continues from here."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Entry:
    """A prepared video and its source: if any of this has changed, the video is prepared again.

    `video` is relative to the folder of all; sizes are in bytes. The time of the prepared file is not kept: in a copy
    of the dataset it is another one. `broken` says why there is no prepared file.
    """

    video: str
    source: str
    source_size: int
    source_mtime_ns: int
    settings: str
    size: int
    frames: int
    broken: str = ""


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
