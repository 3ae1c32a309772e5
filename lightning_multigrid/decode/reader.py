"""Frames of a video by their number; see `README.md`. T frames, H W pixels of a frame as it is shown."""

import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing

import numpy as np
import torch
from av.video.frame import VideoFrame
from torch import Tensor

from lightning_multigrid.decode.frame_folder import FrameFolder
from lightning_multigrid.decode.frame_pixels import Box, Pixels, filtered, plane_pixels, rgb_frame, show, yuv_format
from lightning_multigrid.decode.frame_table import FrameTable, Orientation, checksum, kind_of
from lightning_multigrid.decode.full_decode import FullDecode
from lightning_multigrid.decode.own_table import own_table
from lightning_multigrid.decode.packets import decode_packets, grouped, needed_packets
from lightning_multigrid.decode.plane_file import PlaneFile, is_plane_file
from lightning_multigrid.decode.video import Video, places_of
from lightning_multigrid.decode.video_file import VideoError, VideoFile
from lightning_multigrid.files import RemoteFile, StrPath
from lightning_multigrid.pixels import YuvClip, YuvFormat

_HELD_BYTES = 1 << 26  # most of the frames that a reader which makes its own table keeps: small files are decoded once


class TableError(VideoError):
    """The frame table of a file that is not damaged does not fit it."""


class VideoReader(Video):
    """A video file, to read frames by their numbers.

    Errors are those of a `FullDecode`, and a `TableError` if a frame is not the one of the table.

    Args:
        path: An ordinary file, whatever its name looks like, or the URL of one, of which ranges are read.
        table: The file's table from `make_table`; None is the one that a prepared video holds. If there is none, or it
            is of a file of another size, or of another FFmpeg where that matters, the reader makes one without entries:
            it decodes the file once, and later from its beginning.

    Attributes:
        packets_fed: Packets given to the decoder so far: the cost of decoding, free of noise.
        fallbacks: How often frames did not come out as in the table at once, and were decoded again.
    """

    def __init__(self, path: StrPath, table: FrameTable | None = None) -> None:
        self.packets_fed = self.fallbacks = 0
        self._held: dict[int, VideoFrame] = {}
        self.file = VideoFile(os.fspath(path))
        self._own = table is None  # it would be in the video itself
        with self.file.faults():
            table = own_table(self.file.bytes) if table is None else table
        if table is None:
            self.slow_because = "has no frame table"
        elif table.file_size != self.file.bytes.size:
            self.slow_because = "has changed since its frame table was made"
        elif not table.is_current:
            self.slow_because = "has a frame table of another FFmpeg"
        if table is None or self.slow_because:
            self.file.close()
            held = 0
            with FullDecode(self.file.path) as decode:
                for index, frame in enumerate(decode):
                    held += sum(plane.buffer_size for plane in frame.planes)
                    if held <= _HELD_BYTES:
                        # What a damaged frame shows may depend on which memory its decoder has back.
                        self._held[index] = filtered(frame, "copy")
                table = decode.table(entries=False)
            self.file = VideoFile(self.file.path, whole=True)
        elif isinstance(self.file.bytes, RemoteFile) and not table.direct:
            self.slow_because = (
                "is copied from its URL for each clip, as its container lets no packet be read alone: `prepare` it"
            )
            self.file = VideoFile(self.file.path, whole=True)
        self.table, self.damage, self.times, self.last = table, table.damage, table.times, table.last
        self.rate, self.start, self.height, self.width = table.rate, table.start, table.height, table.width

    def __len__(self) -> int:
        return len(self.table)

    def close(self) -> None:
        self._held.clear()
        self.file.close()

    def read(self, indices: Sequence[int], box: Box | None = None) -> Tensor:
        clip = self._clip(indices, box, yuv=False)
        assert isinstance(clip, Tensor)
        return clip

    def read_yuv(self, indices: Sequence[int], box: Box | None = None) -> YuvClip | Tensor:
        """Reads frames as `Video.read_yuv` does.

        As `read` does, it reads frames of odd height, frames that are turned to be shown, colours other than BT.601's
        and BT.709's, and clips whose frames differ in these.
        """
        table = self.table
        plain = table.orientation == Orientation() and table.square_width == table.stored_width
        # FFmpeg's converter interpolates the chroma of odd heights.
        return self._clip(indices, box, yuv=plain and self.height % 2 == 0)

    def _clip(self, indices: Sequence[int], box: Box | None, *, yuv: bool) -> YuvClip | Tensor:
        """Reads a clip as RGB, or if `yuv` and its frames allow that, as they are stored."""
        places = places_of(indices, len(self), self.file.path)
        shown, turn = Box.of(box, self.height, self.width), self.table.orientation
        box_stored = shown.stored(turn, self.height, self.width)
        height, width = self.table.stored_height, self.table.square_width
        kind: tuple[object, ...] = ()
        format: YuvFormat | None = None
        clip: Pixels = np.empty((len(indices), box_stored.height, box_stored.width, 3), np.uint8)
        parts: tuple[Box, ...] = (box_stored,)  # of a frame's planes
        targets: tuple[Pixels, ...] = (clip,)  # the parts of the clip to which these are written
        with self.file.faults():
            for index, frame in self._find(sorted(places)):
                if (own_kind := kind_of(frame)) != kind:
                    as_stored = yuv and (frame.height, frame.width) == (height, self.table.stored_width)
                    own = yuv_format(frame, len(indices), shown) if as_stored else None
                    if kind and own != format:
                        return self.read(indices, box)  # the first frame is not like this one
                    if not kind and own is not None:
                        clip = np.empty(own.nbytes, np.uint8)
                        luma, chroma = own.planes(clip)
                        targets = luma, chroma[:, 0], chroma[:, 1]
                        parts = shown, shown.chroma(), shown.chroma()
                    kind, format = own_kind, own
                # RGB is square, and scaled to the size of the first frame if it has another.
                planes = (frame if format is not None else rgb_frame(frame, height, width)).planes
                for target, plane, part in zip(targets, planes, parts, strict=True):
                    pixels = plane_pixels(plane, part, *target.shape[3:])
                    for place in places[index]:
                        target[place] = pixels
        data = torch.from_numpy(clip)
        return show(data, turn) if format is None else format.view(data)

    def _find(self, wanted: Sequence[int]) -> Iterator[tuple[int, VideoFrame]]:
        """Decodes the frames `wanted`, each with its number. Hands out only what is as the table says."""
        held = self._held
        yield from [(index, held[index]) for index in wanted if index in held]
        wanted = [index for index in wanted if index not in held]
        groups = grouped(wanted, self.table.entries[wanted])
        if isinstance(self.file.bytes, RemoteFile):
            self.file.bytes.will_read(self._spans(groups))
        for entry, members in groups.items():
            missing = set(members)
            for attempt in ("at once", "by a new decoder", "from the start"):
                with closing(self._decoded(attempt, entry, missing)) as decoded:
                    for index, frame in decoded:
                        missing.remove(index)
                        yield index, frame
                        if not missing:
                            break
                self.file.check_reads()
                if not missing:
                    break
                self.fallbacks += 1
            else:
                frame_of = f"frame {min(missing)} of {len(self)}"
                if self.table.damage:
                    raise VideoError(self.file.path, f"damaged: {frame_of} is decoded differently each time")
                self.table_does_not_fit = True
                what = f"{frame_of} is not the one that was found when the file was decoded first"
                way = "Remove it, and run `{} prepare`" if self._own else "Run `{} index`"
                raise TableError(self.file.path, f"changed: {what}. {way.format('lightning-multigrid')} again")

    def _spans(self, groups: Mapping[int, Sequence[int]]) -> Iterator[tuple[int, int]]:
        """Where the packets lie that frames are decoded from, [start, end) in the file: of each entry, in one piece."""
        for entry, members in groups.items():
            needed = slice(entry, int(self.table.packets[members].max()) + 1)
            starts = self.table.positions[needed].astype(np.int64)
            yield int(starts.min()), int((starts + self.table.sizes[needed]).max())

    def _decoded(self, attempt: str, entry: int, missing: set[int]) -> Generator[tuple[int, VideoFrame], None, None]:
        """Decodes frames, and yields those that are missing and as the table says, each with its number."""
        table = self.table
        if attempt == "from the start":
            self.slow_because = self.slow_because or "is not decoded as its frame table says"
            # A frame for which no entry was found has 0. And some damaged files are decoded differently each time.
            self.table_does_not_fit = self.table_does_not_fit or (entry > 0 and not table.damage)
            self.packets_fed += len(table.sizes)
            with FullDecode(self.file.path) as decode:
                for frame in decode:
                    value = checksum(frame)
                    yield from [(index, frame) for index in sorted(missing) if table.checksums[index] == value]
            return
        of_packet = grouped(missing, table.packets[[*missing]])
        new = attempt == "by a new decoder"
        if new:
            self.file.release()
        numbers = range(entry, max(of_packet) + 1) if new else needed_packets(table, entry, of_packet)
        self.packets_fed += len(numbers)
        for number, frame in decode_packets(self.file, table, numbers, new=new):
            if number in of_packet:
                value = checksum(frame)
                for index in of_packet[number]:
                    if index in missing and table.checksums[index] == value:
                        yield index, frame


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
