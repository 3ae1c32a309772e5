import sys
from pathlib import Path

import pytest

from lightning_multigrid.files import cache_folder, path_argument, require


def test_it_says_what_is_required_and_the_way_out():
    require(True, "gop", 1, "at least 1")
    with pytest.raises(ValueError, match=r"^`gop` must be at least 1, got 0\. Give more\.$"):
        require(False, "gop", 0, "at least 1", " Give more.")


@pytest.mark.parametrize(
    ("given", "path"), [("~/a b/~", "/home/me/a b/~"), ("~", "~"), ("~root/a", "~root/a"), ("a/~/b", "a/~/b")]
)
def test_paths_may_start_from_the_home_folder(monkeypatch, given, path):
    monkeypatch.setenv("HOME", "/home/me")
    assert path_argument("source", given) == path


@pytest.mark.parametrize(
    ("platform", "environment", "expected"),
    [
        ("linux", {}, "home/.cache/lightning-multigrid"),
        ("linux", {"XDG_CACHE_HOME": "xdg"}, "xdg/lightning-multigrid"),
        ("darwin", {"XDG_CACHE_HOME": "xdg"}, "home/Library/Caches/lightning-multigrid"),
        ("linux", {"XDG_CACHE_HOME": "xdg", "LIGHTNING_MULTIGRID_CACHE": "own"}, "own"),
        ("linux", {"LIGHTNING_MULTIGRID_CACHE": "~/own"}, "home/own"),
    ],
)
def test_cache_folder(monkeypatch, platform, environment, expected):
    for name in ("XDG_CACHE_HOME", "LIGHTNING_MULTIGRID_CACHE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "home", **environment}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert cache_folder() == Path(expected)
