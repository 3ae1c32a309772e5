"""Names of prepared videos: each its own, in every file system, and none out of the folder."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_multigrid.prepare.names import names_of

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=60)
PARTS = TEXT.filter(lambda part: part not in (".", ".."))
PATHS = st.lists(PARTS, min_size=1, max_size=3).map(lambda parts: os.path.join("/data", *parts))


@given(st.lists(PATHS, max_size=6))
def test_names_lie_inside_and_are_different_or_refused(paths):
    try:
        names = names_of([*paths, *paths], root="/data")
    except ValueError:  # two would share a name
        return
    assert list(names) == list(dict.fromkeys(paths))
    assert len({name.casefold() for name in names.values()}) == len(names)
    for name in names.values():
        parts = name.split(os.sep)
        assert all(part not in ("", ".", "..") for part in parts)
        assert parts[-1].lower().endswith(".mp4")


@pytest.mark.parametrize("pair", [("a.avi", "a.avi.mp4"), ("b.mp4", "B.mp4"), ("\u00e9.mp4", "e\u0301.mp4")])
def test_names_that_some_file_systems_take_for_one(pair):
    """The file system of a Mac knows no case, and one form of an accent only."""
    with pytest.raises(ValueError, match="would have the same name in the output, or on some disks. Rename one"):
        names_of([f"/data/{name}" for name in pair], root="/data")


def test_what_lies_elsewhere_keeps_its_whole_path():
    assert names_of(["/other/a.avi", "/data/b.mp4"], root="/data") == {
        "/other/a.avi": "outside/other/a.avi.mp4",
        "/data/b.mp4": "b.mp4",
    }
