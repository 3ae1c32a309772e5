"""How the videos of a dataset are opened."""

import os
import warnings
from functools import lru_cache

from lightning_multigrid.decode import FrameFolder, IndexStore, PacketIndex, VideoReader
from lightning_multigrid.sources import Manifest

Video = VideoReader | FrameFolder


def open_video(manifest: Manifest, path: str, read_timeout: float = 60.0) -> Video:
    """Opens a video of a manifest, or its folder of frames, for a `with`; a read may take `read_timeout` seconds."""
    if manifest.frame_rate is not None:
        return FrameFolder(path, manifest.frame_rate)
    return VideoReader(path, prepared_index(manifest, path), read_timeout=read_timeout)


def prepared_index(manifest: Manifest, path: str) -> PacketIndex | None:
    """Returns the index that `prepare` wrote for a video, or None; the reader then builds its own.

    This does not even ask for the video's size: its drive may hang, and only the reader's calls have a timeout.
    """
    store = None if manifest.index is None else _store(manifest.index)
    try:
        return None if store is None else store.get(os.path.relpath(path, manifest.root))
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
