"""How the videos of a dataset are opened."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from functools import lru_cache

from lightning_multigrid.decode import FrameFolder, IndexStore, PacketIndex, VideoReader
from lightning_multigrid.sources import Manifest

Video = VideoReader | FrameFolder


@dataclass(frozen=True)
class VideoOpener:
    """Opens the videos, or folders of frames, of a manifest.

    Args:
        read_timeout: Seconds that a read of a video file may take.

    Raises:
        ValueError: If `read_timeout` is not above 0.
    """

    read_timeout: float = 60.0

    def __post_init__(self) -> None:
        if not self.read_timeout > 0:  # also for NaN
            raise ValueError(f"`read_timeout` must be above 0 (seconds), got {self.read_timeout}.")

    def open(self, manifest: Manifest, path: str) -> Video:
        """Opens a video of a manifest, for use in a `with`.

        Raises:
            VideoError: If it cannot be read.
        """
        if manifest.frame_rate is not None:
            return FrameFolder(path, manifest.frame_rate)
        return VideoReader(path, prepared_index(manifest, path), read_timeout=self.read_timeout)


def prepared_index(manifest: Manifest, path: str) -> PacketIndex | None:
    """Returns the index that `prepare` wrote for a video, or None; the reader then builds its own.

    This does not touch the video, not even to ask for its size: its drive may hang, and only the reader's calls have
    a timeout.
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
    """Opens a store, once in each process; None if there is none."""
    try:
        return IndexStore(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        warnings.warn(f"{error} Videos are indexed as they are read.", stacklevel=3)
        return None
