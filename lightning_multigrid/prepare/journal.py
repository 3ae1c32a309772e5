"""What `prepare` has done, a line per video: after it was stopped, the same command continues from here."""

from __future__ import annotations

import json
import os
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
        if os.path.exists(path):
            with open(path, "rb") as file:
                for line in file:
                    self._torn = not line.endswith(b"\n")
                    entry = _parsed(line)
                    if entry is not None:
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
    texts = (entry.video, entry.source, entry.settings, entry.broken)
    numbers = (entry.source_size, entry.source_mtime_ns, entry.size, entry.frames)
    return entry if all(type(t) is str for t in texts) and all(type(n) is int for n in numbers) else None
