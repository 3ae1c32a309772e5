"""What the tests of `decode` share."""

import pytest


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A folder for the files of `codings.written`, which no test changes."""
    return tmp_path_factory.mktemp("written")
