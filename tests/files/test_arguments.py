import pytest

from lightning_multigrid.files import require


def test_it_says_what_is_required_and_the_way_out():
    require(True, "gop", 1, "at least 1")
    with pytest.raises(ValueError, match=r"^`gop` must be at least 1, got 0\. Give more\.$"):
        require(False, "gop", 0, "at least 1", " Give more.")
