"""Parts of a `prepare` that several machines do: which videos are in which part, and which parts are missing."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from lightning_multigrid.files import quoted

_FOLDER = "parts"


@dataclass(frozen=True)
class Part:
    """Every `parts`-th video, from the `number`-th one on; numbers count from 1, as job arrays do.

    Raises:
        ValueError: If there is no such part.
    """

    number: int
    parts: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.parts:
            raise _no_part(f"{self.number}/{self.parts}")

    @staticmethod
    def parse(text: str) -> Part:
        """Reads `K/N`.

        >>> Part.parse("3/64")
        Part(number=3, parts=64)
        """
        match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
        if match is None:
            raise _no_part(text)
        return Part(*map(int, match.groups()))

    def has(self, place: int) -> bool:
        """Whether a video is in this part, by its place among all videos."""
        return place % self.parts == self.number - 1

    def folder(self, root: str) -> str:
        """The folder for the journal, the report and the index of this part."""
        return os.path.join(root, _FOLDER, f"{self.number}-of-{self.parts}")


def part_folders(root: str) -> dict[str, Part]:
    """The folders of the parts that were begun in an output folder."""
    found: dict[str, Part] = {}
    with suppress(FileNotFoundError):
        for name in sorted(os.listdir(os.path.join(root, _FOLDER))):
            with suppress(ValueError):
                part = Part.parse(name.replace("-of-", "/"))
                found[part.folder(root)] = part
    return found


def how_to_finish(places: Sequence[int], root: str) -> str:
    """Says which parts to run for the videos at these places: those of the begun division that needs fewest."""
    divisions = {part.parts for part in part_folders(root).values()}
    ways = [(parts, sorted({place % parts + 1 for place in places})) for parts in divisions]
    if not ways:
        return "Run the parts first: the same command with `--part K/N` instead of `--merge`, for each K from 1 to N."
    parts, numbers = min(ways, key=lambda way: (len(way[1]), way))
    return (
        f"Run the same command with `--part K/{parts}` instead of `--merge` for K = {_ranges(numbers)} "
        f"(`--array={_ranges(numbers)}` of a job array), and then this one."
    )


def _ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as job arrays take them.

    >>> _ranges([1, 3, 4, 5, 9])
    '1,3-5,9'
    """
    breaks = [i for i in range(1, len(numbers)) if numbers[i] != numbers[i - 1] + 1]
    runs = zip([0, *breaks], [*breaks, len(numbers)], strict=True)
    return ",".join(
        f"{numbers[start]}-{numbers[end - 1]}" if end - start > 1 else str(numbers[start]) for start, end in runs
    )


def _no_part(text: str) -> ValueError:
    return ValueError(
        f"`part` must be K/N with K from 1 to N, for part K of N, got {quoted(text)}. Number the tasks of a job array "
        "from 1, as `--array=1-64` does, and give the same N to all: `--part $SLURM_ARRAY_TASK_ID/64`."
    )
