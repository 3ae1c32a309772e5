"""What is said of manifests before a training: how large the classes are, and which videos two splits share."""

from statistics import median

import numpy as np

from lightning_multigrid.files import quoted
from lightning_multigrid.sources.manifest import Manifest


def class_sizes(manifest: Manifest, num_classes: int) -> str:
    """Says how many videos the classes have, and how many classes have none, of videos that have one label each.

    It reads "5, with 2 to 8 videos each, median 4; 2 without a video, such as 'run'".
    """
    labels, counts = (found.tolist() for found in np.unique(manifest.rows.labels, return_counts=True))
    number, there = max(num_classes, labels[-1] + 1), set(labels)
    few, most = min(counts), max(counts)
    sizes = f"{few:,} videos each" if few == most else f"{few:,} to {most:,} videos each, median {median(counts):,g}"
    said = f"{number:,}, with {sizes}"
    first = next((label for label in range(number) if label not in there), None)
    if first is None:
        return said
    name = quoted(manifest.classes[first]) if first < len(manifest.classes) else first
    return f"{said}; {number - len(labels):,} without a video, such as {name}"


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
