"""The packet indices that `prepare` wrote, for the videos of its manifest."""

from __future__ import annotations

from lightning_multigrid.decode import VideoError, build_index

__all__ = ["built_index"]


def built_index(path: str, beat: object = None) -> bytes | None:
    """The index of a video as bytes, or None if it can't be read: a task of `run_tasks`."""
    try:
        return build_index(path).to_bytes()
    except VideoError:
        return None
