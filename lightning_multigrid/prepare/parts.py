"""Parts of a `prepare` that several machines do: which videos are in which part, and which parts are missing."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from lightning_multigrid.files import quoted

_FOLDER, _OF = "parts", "-of-"


@dataclass(frozen=True)
class Part:
    """Every `parts`-th video, from the `number`-th one on; numbers count from 1, as job arrays do."""

    number: int
    parts: int

    @staticmethod
    def parse(text: str) -> "Part":
        """Reads `K/N`, or raises a ValueError if there is no such part."""
        part = _part(text, "/")
        if part is None:
            raise ValueError(
                f"`part` must be K/N with K from 1 to N, for part K of N, got {quoted(text)}. Number the tasks of a "
                "job array from 1, as with `--array=1-64`, and give all the same N: `--part $SLURM_ARRAY_TASK_ID/64`."
            )
        return part

    def has(self, place: int) -> bool:
        """Whether a video is in this part, by its place among all videos."""
        return place % self.parts == self.number - 1

    def folder(self, root: str) -> str:
        return os.path.join(root, _FOLDER, f"{self.number}{_OF}{self.parts}")


def parts_begun(root: str) -> list[Part]:
    """The parts that were begun in an output folder. Other things in their folder are not looked at."""
    folder = os.path.join(root, _FOLDER)
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    return [part for name in names if (part := _part(name, _OF))]


def _part(text: str, between: str) -> Part | None:
    """The part that two numbers name; None if there is no such part."""
    match = re.fullmatch(rf"([0-9]{{1,9}}){between}([0-9]{{1,9}})", text)
    number, parts = map(int, match.groups()) if match else (0, 0)
    return Part(number, parts) if 1 <= number <= parts else None


def how_to_finish(places: Sequence[int], root: str) -> str:
    """Says which parts to run for the videos at these places: those of the begun division that needs fewest."""
    missing = {part.parts: sorted({place % part.parts + 1 for place in places}) for part in parts_begun(root)}
    if not missing:
        return "Run the parts first: the same command with `--part K/N` instead of `--merge`, for each K from 1 to N."
    parts = min(missing, key=lambda parts: (len(missing[parts]), parts))
    numbers = ",".join(map(str, missing[parts]))
    return f"Run the same command with `--part K/{parts}` instead of `--merge` for K = {numbers}, and then this one."
