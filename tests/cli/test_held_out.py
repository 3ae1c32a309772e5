"""Validation is on recordings that training has not seen, where the names of videos tell recordings apart."""

from collections import Counter

import pytest

from lightning_multigrid.cli.held_out import hold_out, recording_name
from lightning_multigrid.sources import VideoList


def split(tmp_path, names, classes=()):
    """The videos for training and for validation, and the recordings that are cut."""
    (path := tmp_path / "list.csv").write_text("\n".join(f"{name} {label}" for name, label in names))
    train, val, cut = hold_out(VideoList(path).read(classes))
    assert sorted([*train, *val]) == list(range(len(names)))
    return [names[row] for row in train], [names[row] for row in val], cut


def test_a_fifth_of_each_class_is_held_out_and_no_recording_is_on_both_sides(tmp_path):
    # As UCF101 names its videos: 25 groups of 4 to 7 clips in each class.
    names = [(f"v_c{c}_g{g:02}_c{i:02}.avi", c) for c in range(3) for g in range(25) for i in range(4 + (g + c) % 4)]
    train, val, cut = split(tmp_path, names)
    assert cut == 0
    assert not {recording_name(name) for name, _ in train} & {recording_name(name) for name, _ in val}
    sizes, held = (Counter(label for _, label in part) for part in (names, val))
    for label, size in sizes.items():
        assert 0.17 < held[label] / size < 0.23


def test_a_recording_with_several_classes_stays_whole(tmp_path):
    names = [(f"{c}/match{m}_{i}.mp4", int(c == "kick")) for c in ("kick", "pass") for m in range(5) for i in range(4)]
    train, val, cut = split(tmp_path, names, classes=("pass", "kick"))
    assert (len(train), len(val), cut) == (32, 8, 0)


def test_kinds_are_held_out_like_classes_and_recordings_with_several_stay_whole(tmp_path):
    path = tmp_path / "list.csv"
    names = [
        f"{game}_{i}.mp4" for game in ("a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l") for i in range(5)
    ]
    path.write_text("\n".join(f"{name} 0" for name in names))
    kinds = ["avi" if name < "d" and name != "a_0.mp4" else "mp4" for name in names]
    train, val, cut = hold_out(VideoList(path).read(), kinds)
    assert cut == 0
    assert {names[row][0] for row in val} == {"c", "k", "l"}  # `a` counts as its first video
    assert sorted([*train, *val]) == [*range(60)]


def test_what_can_only_be_cut_is_cut_and_counted(tmp_path):
    names = [(f"{c}/{i}.mp4", c) for c in range(2) for i in range(10)] + [(f"2/x{i}.mp4", 2) for i in range(4)]
    train, val, cut = split(tmp_path, names)
    assert [name for name, _ in val] == ["0/8.mp4", "0/9.mp4", "1/8.mp4", "1/9.mp4"]
    assert cut == 2
    assert sum(label == 2 for _, label in train) == 4  # too few to hold any out


@pytest.mark.timeout(20)
def test_the_time_depends_on_the_videos_and_not_on_the_number_of_classes(tmp_path):
    names = [(f"{label}/{i}.mp4", label) for i in range(10) for label in (10**8, 3)]
    _, val, cut = split(tmp_path, names)
    assert val == [(f"{label}/{i}.mp4", label) for i in (8, 9) for label in (10**8, 3)]
    assert cut == 2


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/videos/jump/7.mp4", "/videos/"),
        ("/videos/jump/day2/take 7b.mp4", "/videos/day2/take b"),
        ("s3://bucket/jump/first.webm", "s3://bucket/first"),
    ],
)
def test_names_of_recordings(path, name):
    assert recording_name(path, "jump") == name
