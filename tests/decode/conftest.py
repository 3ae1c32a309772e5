"""What the tests of `decode` share."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the files of `codings.written`, which no test changes."""
    return tmp_path_factory.mktemp("written")
