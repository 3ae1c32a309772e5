"""What is said of manifests before a training: how large the classes are, and which videos two splits share."""

from itertools import islice
from statistics import median

import numpy as np

from lightning_multigrid.files import quoted
from lightning_multigrid.sources.manifest import Manifest

_NAMED = 5  # classes


def class_sizes(manifest: Manifest, num_classes: int) -> str:
    """Says how many videos the classes have, and which have none, of videos that have one label each.

    It reads "3, each with 8 videos", or "3 of 5, with 2 to 8 videos, median 4; without a video: run, swim".
    """
    labels, counts = (found.tolist() for found in np.unique(manifest.rows.labels, return_counts=True))
    sizes, number = sorted(counts), max(num_classes, labels[-1] + 1)
    there, without = set(labels), number - len(labels)
    said = f"{len(labels):,} of {number:,}" if without else f"{number:,}"
    if sizes[0] == sizes[-1]:
        said += f", each with {sizes[0]:,} video{'s' * (sizes[0] > 1)}"
    else:
        said += f", with {sizes[0]:,} to {sizes[-1]:,} videos, median {median(sizes):,g}"
    named = islice((label for label in range(number) if label not in there), _NAMED)
    known = len(manifest.classes)  # of `num_classes`, which may be more
    names = [quoted(manifest.classes[label]) if label < known else str(label) for label in named]
    more = f" and {without - _NAMED:,} more" if without > _NAMED else ""
    return f"{said}; without a video: {', '.join(names)}{more}" if without else said


def shared_videos(train: Manifest, other: Manifest) -> list[str]:
    """The paths of the rows of `other` that overlap with a row of `train`, in the same file by its path."""
    rows: dict[str, list[int]] = {}
    for row, path in enumerate(train.paths()):
        rows.setdefault(path, []).append(row)
    return [
        path
        for row, path in enumerate(other.paths())
        if any(_overlap(train.stretch(of_train), other.stretch(row)) for of_train in rows.get(path, ()))
    ]


def _overlap(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return max(one[0], other[0]) < min(one[1], other[1])
