"""How large classes are, and which videos two splits share."""

import math

import pytest

from lightning_multigrid.sources.builder import ManifestBuilder
from lightning_multigrid.sources.told import class_sizes, shared_videos


def build(rows, **arguments):
    builder = ManifestBuilder("list.csv", "/data", **arguments)
    for path, label, *stretch in rows:
        builder.add(path, [label], where="", stretch=tuple(stretch) or (0.0, math.inf))
    return builder.build()


@pytest.mark.parametrize(
    ("labels", "classes", "number", "said"),
    [
        ([0, 1, 2] * 8, (), 3, "3, with 8 videos each"),
        ([0, 0, 2, 2, 2, 3, 3, 3], (), 4, "4, with 2 to 3 videos each, median 3; 1 without a video, such as 1"),
        ([0, 0, 1], ("a", "b", "jump up", "d"), 4, "median 1.5; 2 without a video, such as 'jump up'"),
        ([0, 900_000_000], (), 3, "900,000,001, with 1 videos each; 899,999,999 without a video"),
        ([0] * 5000 + [1] * 1000, (), 2, "2, with 1,000 to 5,000 videos each, median 3,000"),
        ([0, 1], ("run", "fly"), 3, "1 without a video, such as 2"),  # of the user's own number of classes
    ],
)
def test_sizes_of_classes(labels, classes, number, said):
    manifest = build([(f"{number}.mp4", label) for number, label in enumerate(labels)], classes=classes)
    assert said in class_sizes(manifest, number)


def test_a_video_is_shared_if_both_show_a_part_of_the_same_file():
    train = build([("a.mp4", 0), ("b.mp4", 0, 0.0, 5.0), ("b.mp4", 1, 9.0, math.inf), ("c.mp4", 0)])
    other = build(
        [("b.mp4", 0, 5.0, 9.0), ("b.mp4", 1, 8.0, 9.5), ("./c.mp4", 3, 1.0, 2.0), ("d.mp4", 0), ("a.mp4", 0)]
    )
    assert shared_videos(train, other) == ["/data/b.mp4", "/data/c.mp4", "/data/a.mp4"]
    assert shared_videos(train, build([("d.mp4", 0)])) == []


def test_paths_are_those_of_the_rows():
    manifest = build([("été.mp4", 0), ("b/c.mp4", 0)])
    assert manifest.paths() == [manifest.path(row) for row in range(2)]
