"""The packet indices of prepared videos."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Any

from lightning_multigrid.decode import PacketIndex, VideoError, build_index
from lightning_multigrid.sources import MANIFEST_NAME, IndexColumn, ManifestError, read_manifest


def indices(
    videos: Mapping[str, str], kept: Mapping[str, tuple[str, int]], run: Callable[..., Iterator[Any]]
) -> Iterator[bytes]:
    """Yields the index of each video (name to path), in their order; empty if it can't be read.

    Videos in `kept` (name to the folder of an older manifest, and bytes) are not read again if that has their indices.
    `run` is `run_tasks`.
    """

    @cache
    def older(folder: str) -> dict[str, tuple[IndexColumn, int]]:
        with suppress(ManifestError):  # no manifest, or a damaged one
            manifest = read_manifest(os.path.join(folder, MANIFEST_NAME))
            if manifest.index is not None:
                names = (os.path.relpath(manifest.path(row), manifest.root) for row in range(len(manifest)))
                return {name: (manifest.index, row) for row, name in enumerate(names)}
        return {}

    def known(name: str) -> bytes:
        folder, size = kept.get(name, ("", 0))
        column, row = older(folder).get(name, (None, 0)) if folder else (None, 0)
        with suppress(ValueError, OSError):  # there is none, it is damaged, or can't be read
            index = b"" if column is None else column[row]
            # A run that was stopped may have made the video anew, and not the index.
            return index if PacketIndex.from_bytes(index).file_size == size else b""
        return b""

    unknown = (video for name, video in videos.items() if not known(name))
    results = run("lightning_multigrid.prepare.index_videos:built_index", unknown)
    early: dict[str, object] = {}  # results of other workers wait here for their turn
    for name, video in videos.items():
        index = known(name)
        while not index and video not in early:
            early.update([next(results)])
        built = index or early.pop(video)
        yield built if isinstance(built, bytes) else b""  # the reader will index it, or say what is wrong with it


def built_index(path: str, beat: object = None) -> bytes:
    """Builds the index of a video, as bytes; empty if the video can't be read. A task of `run_tasks`."""
    try:
        return build_index(path).to_bytes()
    except VideoError:
        return b""
