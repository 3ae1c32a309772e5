"""Names of prepared videos: each its own, in every file system, and none out of the folder."""

from __future__ import annotations

import os
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from lightning_multigrid.prepare.names import names_of

PARTS = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=90).filter(
    lambda part: part not in (".", "..")
)
PATHS = st.lists(PARTS, min_size=1, max_size=3).map(lambda parts: os.path.join("/data", *parts))


@given(st.lists(PATHS, max_size=12))
def test_names_are_different_wherever_case_and_accents_are_not(paths: list[str]) -> None:
    clashes = [changed for path in paths for changed in (path, path.upper(), path + ".mp4")]
    names = names_of(clashes, root="/data")
    assert list(names) == list(dict.fromkeys(clashes))
    known = {unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold()) for name in names.values()}
    assert len(known) == len(names)


@given(st.lists(PATHS, max_size=6))
def test_names_fit_lie_inside_and_are_the_same_each_time(paths: list[str]) -> None:
    names = names_of([*paths, *paths], root="/data")
    assert names == names_of(paths, root="/data")
    for name in names.values():
        parts = name.split(os.sep)
        assert all(part not in ("", ".", "..") and len(os.fsencode(part)) <= 255 for part in parts)
        assert parts[-1].lower().endswith(".mp4")


def test_what_lies_elsewhere_keeps_its_whole_path() -> None:
    assert names_of(["/other/a.avi", "s3://bucket/b.mp4"], root="/data") == {
        "/other/a.avi": "outside/other/a.avi.mp4",
        "s3://bucket/b.mp4": "outside/s3:/bucket/b.mp4",
    }
