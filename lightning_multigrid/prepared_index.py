"""The packet indices that `prepare` wrote, for the videos of its manifest."""

from __future__ import annotations

import os
import warnings
from functools import lru_cache

from lightning_multigrid.decode import VideoError, build_index
from lightning_multigrid.index_store import IndexStore
from lightning_multigrid.packed import Manifest
from lightning_multigrid.packet_index import PacketIndex

__all__ = ["built_index", "prepared_index"]


def built_index(path: str, beat: object = None) -> bytes | None:
    """The index of a video as bytes, or None if it can't be read: a task of `run_tasks`."""
    try:
        return build_index(path).to_bytes()
    except VideoError:
        return None


def prepared_index(manifest: Manifest, path: str) -> PacketIndex | None:
    """The index of a video of a manifest, if there is one. Without it, the reader builds its own.

    The video itself is not looked at, not even for its size: its drive may hang, and the reader is who can bear that.
    """
    store = None if manifest.index is None else _store(manifest.index)
    if store is None:
        return None
    try:
        return store.get(os.path.relpath(path, manifest.root))
    except ValueError as error:
        warnings.warn(f"{error} Videos are indexed as they are read.", stacklevel=2)
        return None


@lru_cache(maxsize=8)
def _store(path: str) -> IndexStore | None:
    """The store, opened once in each process."""
    try:
        return IndexStore(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        warnings.warn(f"{error} Videos are indexed as they are read.", stacklevel=3)
        return None
