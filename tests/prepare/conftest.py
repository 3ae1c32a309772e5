"""What every test of these needs."""

import pytest


@pytest.fixture(autouse=True)
def _workers_import_little(monkeypatch):
    """Worker processes are as those of a user's: `tests/__init__.py` makes all others import Lightning, for seconds."""
    monkeypatch.delenv("PYTEST_VERSION", raising=False)
