"""What is kept of a video once it was decoded: its frame table, or why it can't be read."""

import errno
import json

import av
import xxhash

from lightning_multigrid import __version__
from lightning_multigrid.decode.frame_table import MADE_BY, FrameTable
from lightning_multigrid.decode.full_decode import make_table
from lightning_multigrid.decode.video_file import VideoError
from lightning_multigrid.files import StrPath

_HEAD, _CHECK = b"broken ", 8  # bytes of the checksum
_BY = f"lightning-multigrid {__version__}, {MADE_BY}"


def make_kept(path: StrPath) -> tuple[bytes, bool]:
    """Returns what to keep of a video, and whether it is whole.

    That a file is broken or damaged holds as long as it is not modified: a repaired one may have the same ends.

    Raises:
        VideoError: If it can't be read now, for which the file is not to blame.
    """
    try:
        table = make_table(path)
        return table.to_bytes(), not table.damage
    except VideoError as error:
        cause = error.__cause__
        # FFmpeg's errors are of the system's kinds, too, but of what is in the file.
        of_system = isinstance(cause, OSError) and not isinstance(cause, av.FFmpegError)
        if of_system or (isinstance(cause, av.FFmpegError) and cause.errno == errno.ENOMEM):
            raise
        data = json.dumps({"reason": error.reason, "made_by": _BY}).encode()
        return _HEAD + data + xxhash.xxh3_64_digest(data), False


def read_kept(path: str, data: bytes) -> FrameTable | None:
    """Returns the frame table that was kept of a video; None if it was broken for another version, or for no bytes.

    Raises:
        VideoError: If the video is broken.
        ValueError: If what was kept is damaged.
    """
    if not data.startswith(_HEAD):
        return FrameTable.from_bytes(data) if data else None
    data, check = data[len(_HEAD) : -_CHECK], data[-_CHECK:]
    if xxhash.xxh3_64_digest(data) != check:
        raise ValueError("they are no frame table, or a damaged one: their checksum is wrong")
    kept = json.loads(data)
    if kept["made_by"] == _BY:
        raise VideoError(path, kept["reason"])
    return None
