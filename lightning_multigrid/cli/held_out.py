"""Which videos `init` holds out for validation: if possible whole recordings, as clips of one recording are alike."""

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from lightning_multigrid.sources import Manifest, ManifestError

_SHARE = 5  # a fifth of each class


@dataclass(frozen=True)
class _Recording:
    rows: list[int]
    labels: Counter[int]


def recording_name(path: str, class_name: str = "") -> str:
    """Returns what the videos of a recording have in common: the path without its class and its name's last number.

    >>> recording_name("jump/match1_07.mp4", "jump"), recording_name("run/match1_12.mp4", "run")
    ('match1_', 'match1_')
    """
    folder, name = os.path.split(os.path.splitext(path)[0])
    parts = [part for part in folder.split("/") if part != class_name]
    return "/".join([*parts, re.sub(r"[0-9]+(?=[^0-9]*$)", "", name)])


def hold_out(manifest: Manifest, rows: Sequence[int]) -> tuple[list[int], list[int], int]:
    """Returns rows for training, rows for validation, and how many recordings have some of both.

    About a fifth of each class is held out: its smallest recordings, and of these the last by name. A recording is cut
    only where a class would have less than a tenth to validate, or less than half of its videos to train on.
    """
    ordered = sorted(rows, key=lambda row: (manifest.path(row), row))
    recordings = _recordings(manifest, ordered)
    sizes = Counter(map(manifest.label, rows))
    held, taken = set[int](), Counter[int]()

    def leaves_half(recording: _Recording) -> bool:
        return all(2 * (taken[label] + number) <= sizes[label] for label, number in recording.labels.items())

    for label, size in sorted(sizes.items()):
        share = size // _SHARE
        own = [each for each in reversed(recordings) if each.labels[label] and held.isdisjoint(each.rows)]
        for recording in sorted(own, key=lambda each: each.labels[label]):
            if taken[label] < share and leaves_half(recording):
                held.update(recording.rows)
                taken += recording.labels
        if 2 * taken[label] < share:
            others = [row for row in ordered if manifest.label(row) == label and row not in held]
            held.update(others[taken[label] - share :])
            taken[label] = share
    if not held:
        raise ManifestError(
            f"No class of {manifest.origin} has {_SHARE} videos, so none can be held out for validation. Give `--val`."
        )
    cut = sum(0 < len(held.intersection(recording.rows)) < len(recording.rows) for recording in recordings)
    return sorted(set(rows) - held), sorted(held), cut


def _recordings(manifest: Manifest, ordered: Sequence[int]) -> list[_Recording]:
    named: dict[str, list[int]] = {}
    for row in ordered:
        label = manifest.label(row)
        class_name = manifest.classes[label] if manifest.classes else ""
        named.setdefault(recording_name(manifest.path(row), class_name), []).append(row)
    return [_Recording(rows, Counter(map(manifest.label, rows))) for rows in named.values()]
