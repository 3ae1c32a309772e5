"""How the videos of a dataset are opened."""

import warnings

from lightning_multigrid.decode import FrameFolder, PacketIndex, VideoReader
from lightning_multigrid.sources import Manifest

Video = VideoReader | FrameFolder


def open_row(manifest: Manifest, row: int, read_timeout: float = 60.0) -> Video:
    """Opens a video of a manifest, or its folder of frames, for a `with`; a read may take `read_timeout` seconds."""
    path = manifest.path(row)
    if manifest.frame_rate is not None:
        return FrameFolder(path, manifest.frame_rate, read_timeout)
    return VideoReader(path, prepared_index(manifest, row), read_timeout=read_timeout)


def prepared_index(manifest: Manifest, row: int) -> PacketIndex | None:
    """Returns the index that `prepare` wrote for a video, or None; the reader then builds its own.

    This does not even ask for the video's size: its drive may hang, and only the reader's calls have a timeout.
    """
    try:
        data = b"" if manifest.index is None else manifest.index[row]
        return PacketIndex.from_bytes(data) if data else None
    except (OSError, ValueError) as error:
        warnings.warn(
            f"Packet indices of {manifest.origin} are damaged, or were written anew since it was read: {error} Videos "
            "are indexed as they are read. Start again, or run `lightning-multigrid prepare` again.",
            stacklevel=2,
        )
        return None
