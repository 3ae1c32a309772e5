"""The packet indices of prepared videos, in one file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from lightning_multigrid.decode import IndexStore, PacketIndex, VideoError, build_index


def write_index(
    path: str, videos: Mapping[str, str], kept: Mapping[str, int], run: Callable[..., Iterator[tuple[Any, Any]]]
) -> None:
    """Writes the index of all videos (name to path), in their order, so that the same videos make the same file.

    Videos that were kept (name to bytes) are not read again if an older file has them. `run` works as `run_tasks`.
    """
    try:
        old: IndexStore | None = IndexStore(path)
    except (OSError, ValueError):
        old = None

    def known(name: str) -> PacketIndex | None:
        if old is None or name not in kept:
            return None
        with suppress(ValueError):  # damaged there
            index = old.get(name)
            # A run that was stopped may have made the video anew, and not the index.
            if index is not None and index.file_size == kept[name]:
                return index
        return None

    def indices() -> Iterator[tuple[str, PacketIndex]]:
        unknown = (video for name, video in videos.items() if known(name) is None)
        results = run("lightning_multigrid.prepare.index:built_index", unknown)
        early: dict[str, object] = {}  # results of other workers wait here for their turn
        for name, video in videos.items():
            index = known(name)
            if index is None:
                while video not in early:
                    early.update([next(results)])
                built = early.pop(video)
                if not isinstance(built, bytes):  # the reader will index it, or say what is wrong with it
                    continue
                index = PacketIndex.from_bytes(built)
            yield name, index

    IndexStore.write(path, indices())


def built_index(path: str, beat: object = None) -> bytes | None:
    """Builds the index of a video, as bytes; None if the video can't be read. A task of `run_tasks`."""
    try:
        return build_index(path).to_bytes()
    except VideoError:
        return None
