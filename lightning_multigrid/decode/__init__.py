"""Exact frames of a video file: those of a full sequential decode, found through an index of its packets.

Begin with its `README.md`, then `ranges.py` (which packets some frames need) and `reader.py` (decodes them).
"""

from lightning_multigrid.decode.frame_folder import FrameFolder, open_video
from lightning_multigrid.decode.frame_pixels import ONE_THREAD, Box, is_full_range
from lightning_multigrid.decode.packet_index import Orientation, PacketIndex
from lightning_multigrid.decode.reader import VideoReader, build_index, read_frames
from lightning_multigrid.decode.video_file import BrokenVideosError, VideoError

__all__ = ["ONE_THREAD", "Box", "BrokenVideosError", "FrameFolder", "Orientation", "PacketIndex"]
__all__ += ["VideoError", "VideoReader", "build_index", "is_full_range", "open_video", "read_frames"]
