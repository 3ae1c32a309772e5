"""Exact frames of a video file: those of a full sequential decode, told from others by their checksums.

Begin with its `README.md`, then `frame_table.py` (what is known of a file), `full_decode.py` (how that is found out)
and `reader.py` (frames by their numbers).
"""

from lightning_multigrid.decode.frame_folder import FrameFolder
from lightning_multigrid.decode.frame_pixels import Box, is_full_range
from lightning_multigrid.decode.frame_table import Damage, FrameTable, Orientation
from lightning_multigrid.decode.full_decode import FullDecode, make_table
from lightning_multigrid.decode.own_table import append_table, own_table
from lightning_multigrid.decode.plane_file import PlaneFile, PlaneWriter, is_plane_file, planes_bytes
from lightning_multigrid.decode.reader import TableError, VideoReader, open_video, open_whole, read_frames
from lightning_multigrid.decode.table_store import Done, TableStore
from lightning_multigrid.decode.video import FrameClock, Video
from lightning_multigrid.decode.video_file import BrokenVideosError, VideoError, VideoFile

__all__ = ["Box", "BrokenVideosError", "Damage", "Done", "FrameClock", "FrameFolder", "FrameTable", "FullDecode"]
__all__ += ["Orientation", "PlaneFile", "PlaneWriter", "TableError", "TableStore", "Video", "VideoError", "VideoFile"]
__all__ += ["VideoReader", "append_table", "is_full_range", "is_plane_file", "make_table", "open_video"]
__all__ += ["open_whole", "own_table", "planes_bytes", "read_frames"]
