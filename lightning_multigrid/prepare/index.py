"""The packet indices of prepared videos, in one file."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Any

from lightning_multigrid.decode import IndexStore, PacketIndex, VideoError, build_index


def write_index(
    path: str, videos: Mapping[str, str], kept: Mapping[str, tuple[str, int]], run: Callable[..., Iterator[Any]]
) -> None:
    """Writes the index of all videos (name to path), in their order, so that the same videos make the same file.

    Videos in `kept` (name to an older index file, and bytes) are not read again if that has them. `run` is `run_tasks`.
    """

    @cache
    def older(file: str) -> IndexStore | None:
        with suppress(OSError, ValueError):  # no index file, or a damaged one
            return IndexStore(file)
        return None

    def known(name: str) -> PacketIndex | None:
        file, size = kept.get(name, ("", 0))
        store = older(file) if file else None
        with suppress(ValueError):  # damaged there
            index = None if store is None else store.get(name)
            # A run that was stopped may have made the video anew, and not the index.
            return index if index and index.file_size == size else None
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
