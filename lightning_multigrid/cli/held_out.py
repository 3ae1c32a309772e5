"""Which videos `init` holds out for validation: if possible whole recordings, as clips of one recording are alike."""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import groupby

from lightning_multigrid.sources import Manifest, ManifestError

_SHARE = 5  # a fifth of each class


def recording_name(path: str, class_name: str = "") -> str:
    """Returns what the videos of a recording have in common: the path without its class and its name's last number.

    >>> recording_name("jump/match1_07.mp4", "jump"), recording_name("run/match1_12.mp4", "run")
    ('match1_', 'match1_')
    """
    folder, name = os.path.split(os.path.splitext(path)[0])
    parts = [part for part in folder.split("/") if part != class_name]
    return "/".join([*parts, re.sub(r"[0-9]+(?=[^0-9]*$)", "", name)])


def hold_out(manifest: Manifest, kinds: Sequence[str] = ()) -> tuple[list[int], list[int], int]:
    """Returns rows for training, rows for validation, and how many recordings have some of both.

    `kinds` say how each row is coded. A kind with at least 5 videos in a class is held out like a class of its own.

    Held out is the end of each class in the order of names: from where a recording begins, as near to a fifth as there
    is one; a recording is cut where that would be less than a tenth, or more than half.
    """
    rows = range(len(manifest))
    labels = [manifest.label(row) for row in rows]
    names = [manifest.classes[label] if manifest.classes else "" for label in labels]
    recordings = [recording_name(manifest.path(row), names[row]) for row in rows]
    held: list[int] = []
    groups = _groups(labels, recordings, kinds or [""] * len(rows))
    # A group is together in this order.
    by_name = sorted(rows, key=lambda row: (groups[row], recordings[row], manifest.path(row), row))
    for _, of_class in groupby(by_name, key=lambda row: groups[row][:2]):
        own = list(of_class)
        share = len(own) // _SHARE
        whole = (
            number
            for number in range(max(1, share // 2), len(own) // 2 + 1)
            if recordings[own[-number]] != recordings[own[-number - 1]]
        )
        if share:
            held += own[-min(whole, key=lambda number: abs(number - share), default=share) :]
    if not held:
        raise ManifestError(
            f"No class of {manifest.origin} has {_SHARE} videos, so none can be held out for validation. Give `--val`."
        )
    train = sorted({*rows} - {*held})
    cut = {recordings[row] for row in train} & {recordings[row] for row in held}
    return train, sorted(held), len(cut)


def _groups(labels: Sequence[int], recordings: Sequence[str], kinds: Sequence[str]) -> list[tuple[int, str, bool]]:
    """For each row its class, the kind of its recording, and whether that is frequent; else the class's most frequent.

    Rare ones come first in their order, so that they are not held out.
    """
    of_class = defaultdict[int, dict[str, str]](dict)
    for label, recording, kind in zip(labels, recordings, kinds, strict=True):
        of_class[label].setdefault(recording, kind)
    # A class without recordings is one by the names of its videos, which is cut in any case.
    own = [
        kind if len(of_class[label]) == 1 else of_class[label][recording]
        for label, recording, kind in zip(labels, recordings, kinds, strict=True)
    ]
    groups = [*zip(labels, own, strict=True)]
    numbers = Counter(groups)
    most = {label: kind for (label, kind), _ in reversed(numbers.most_common())}
    frequent = [numbers[group] >= _SHARE or most[group[0]] == group[1] for group in groups]
    pairs = zip(groups, frequent, strict=True)
    return [(label, kind if often else most[label], often) for (label, kind), often in pairs]
