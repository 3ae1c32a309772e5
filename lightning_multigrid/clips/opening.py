"""How the videos of a dataset are opened."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, TypeAlias

from torch import Tensor

from lightning_multigrid.decode import Box, FrameFolder, FrameTable, VideoReader
from lightning_multigrid.pixels import YuvClip
from lightning_multigrid.sources import Manifest

Video: TypeAlias = VideoReader | FrameFolder


def read_pixels(
    video: Video, indices: Sequence[int], box: Box | None = None, pixels: Literal["rgb", "yuv"] = "rgb"
) -> Tensor | YuvClip:
    """Reads frames as `VideoReader.read` does, or with `yuv` as its `read_yuv` does, where the video has it."""
    if pixels == "yuv" and isinstance(video, VideoReader):
        return video.read_yuv(indices, box)
    return video.read(indices, box)


@contextmanager
def open_row(manifest: Manifest, row: int, read_timeout: float = 60.0) -> Iterator[Video]:
    """Opens a row of a manifest for a `with`: a video or a folder of frames.

    A read may take `read_timeout` seconds.
    """
    path = manifest.path(row)
    opened: Video
    if manifest.frame_rate is None:
        opened = VideoReader(path, frame_table(manifest, row), read_timeout=read_timeout)
    else:
        opened = FrameFolder(path, manifest.frame_rate, read_timeout)
    with opened as video:
        yield video


def frame_table(manifest: Manifest, row: int) -> FrameTable | None:
    """Returns the kept frame table of a row's video, or None; the reader then takes the one that the video holds.

    This does not even ask for the video's size: its drive may hang, and only the reader's calls have a timeout.
    """
    if manifest.tables is None:
        return None
    try:
        data = manifest.tables.read(manifest.path(row))
        return FrameTable.from_bytes(data) if data else None
    except (OSError, ValueError) as error:
        # Without the name of the file, which would make a warning of each.
        why = getattr(error, "strerror", None) or error
        warnings.warn(
            f"Frame tables in {manifest.tables.folder} are damaged: {why}. Videos are read from their beginning, "
            "which is slower. Make the tables again: run `lightning-multigrid index`.",
            stacklevel=2,
        )
        return None
