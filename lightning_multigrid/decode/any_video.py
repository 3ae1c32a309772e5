"""A video of any kind, opened: a file that FFmpeg decodes, a folder of images, or a file of planes."""

from collections.abc import Sequence

from torch import Tensor

from lightning_multigrid.decode.frame_folder import FrameFolder
from lightning_multigrid.decode.frame_table import FrameTable
from lightning_multigrid.decode.full_decode import FullDecode
from lightning_multigrid.decode.plane_file import PlaneFile, is_plane_file
from lightning_multigrid.decode.reader import VideoReader
from lightning_multigrid.decode.video import Video
from lightning_multigrid.files import StrPath


def open_video(path: StrPath, images_per_second: float | None = None, table: FrameTable | None = None) -> Video:
    """Opens a video to read frames by their numbers; a folder of images, if `images_per_second` is given.

    `table` is the frame table of a file, if that is known. Errors are those of a `VideoReader`.
    """
    if images_per_second is not None:
        return FrameFolder(path, images_per_second)
    return PlaneFile(path) if is_plane_file(path) else VideoReader(path, table)


def open_whole(path: StrPath, images_per_second: float | None = None) -> Video:
    """Opens a video to iterate its frames from the first to the last; folders of images as in `open_video`."""
    whole = images_per_second is None and not is_plane_file(path)
    return FullDecode(path) if whole else open_video(path, images_per_second)


def read_frames(path: StrPath, indices: Sequence[int]) -> Tensor:
    """Reads frames of a video as a uint8 tensor T x H x W x 3 (RGB), one for each index, in the order of `indices`.

    Frames are counted from 0 as a decoder that reads the file from its beginning gives them out, which is the order in
    which they are shown; repeats and any order are allowed. What a damaged file has lost is not counted.

    Raises:
        IndexError: If the video has no such frame.
        VideoError: If the file can't be read as a video, or a frame can't be decoded.
    """
    with open_video(path) as video:
        return video.read(indices)
