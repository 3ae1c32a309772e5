"""How the videos of a dataset are opened."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_multigrid.decode import VideoReader
from lightning_multigrid.frame_folder import FrameFolder
from lightning_multigrid.packed import Manifest
from lightning_multigrid.prepared_index import prepared_index

__all__ = ["Video", "VideoOpener", "open_video"]

Video = VideoReader | FrameFolder


def open_video(path: str, frame_rate: float | None) -> VideoReader | FrameFolder:
    """A video, for use in a `with`.

    Args:
        path: The video file, or the folder of frames.
        frame_rate: Frames per second if `path` is a folder of frames, None if it is a file.

    Raises:
        VideoError: If it cannot be read.
    """
    return VideoReader(path) if frame_rate is None else FrameFolder(path, frame_rate)


@dataclass(frozen=True)
class VideoOpener:
    """Opens videos, and folders of frames, of a manifest.

    Args:
        read_timeout: Seconds that a read of a video file may take.

    Raises:
        ValueError: If it is out of range.
    """

    read_timeout: float = 60.0

    def __post_init__(self) -> None:
        if not self.read_timeout > 0:  # also for NaN
            raise ValueError(f"`read_timeout` must be above 0 (seconds), got {self.read_timeout}.")

    def open(self, manifest: Manifest, path: str) -> Video:
        """A video of a manifest, for use in a `with`.

        Raises:
            VideoError: If it cannot be read.
        """
        if manifest.frame_rate is not None:
            return FrameFolder(path, manifest.frame_rate)
        return VideoReader(path, prepared_index(manifest, path), read_timeout=self.read_timeout)
