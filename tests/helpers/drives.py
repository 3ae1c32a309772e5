"""Drives that are gone."""

import os

import pytest


def nothing_is_in_memory(patch: pytest.MonkeyPatch) -> None:
    """Lets every read ask the drive, as where the system does not tell what it holds in memory."""
    patch.delattr(os, "RWF_NOWAIT", raising=False)
