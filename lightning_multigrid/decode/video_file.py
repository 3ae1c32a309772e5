"""A file that FFmpeg opens: it can reach no other file or host, and every fault of the file is a `VideoError`."""

import errno
import math
import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import av
from av.codec.context import Flags
from av.container import InputContainer
from av.stream import Disposition
from av.video.stream import VideoStream

from lightning_multigrid.decode.frame_table import MAX_PIXELS
from lightning_multigrid.files import PROGRAM_ERRORS, Cursor, InputFile, open_input, printable

# Containers that hold their own pictures. FFmpeg would also follow playlists, concat scripts and image patterns, which
# name other files and hosts, whatever the name of their file.
_CONTAINERS = "mov,matroska,avi,asf,flv,mpeg,mpegts,mpegvideo,ogg,ivf,gif,h264,hevc,m4v,mjpeg"
_CONTAINERS += ",apng,rm,nut,mxf,dv,obu,h261,h263,swf"
_JPEGS, _START_OF_JPEG = (".mjpeg", ".mjpg"), b"\xff\xd8\xff"  # JPEGs one after the other

_MOST_BOXES = 1 << 20  # of a file that are looked at: days of fragments of two seconds

DECODER_OPTIONS = {"max_pixels": str(MAX_PIXELS)}


class VideoError(ValueError):
    """A file that can't be read as a video, or a frame that can't be decoded: the `path` as given, and the `reason`."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    @property
    def may_pass(self) -> bool:
        """Whether the file may not be to blame: the system could not read it, or had no memory."""
        cause = self.__cause__
        if isinstance(cause, av.FFmpegError):  # they are of the system's kinds, too, but of what is in the file
            return cause.errno == errno.ENOMEM
        return isinstance(cause, OSError)

    def __str__(self) -> str:
        return printable(f"{self.path}: {self.reason}").replace("\n", "\\n")


class VideoFile:
    """An ordinary file, or one at a URL, open until `close`; it is a `VideoError` if it can't be opened.

    A `whole` one FFmpeg reads; from a URL it is then copied to a disk first. `bytes` is what it holds. `until` is the
    CPU time of the thread, in s, at which decoding it must have ended.
    """

    def __init__(self, path: str, *, whole: bool = False) -> None:
        self.path, self.until = path, math.inf
        self._failures: list[OSError] = []  # of reads by FFmpeg
        self._opened: tuple[InputContainer, VideoStream] | None = None
        try:
            self.bytes = open_input(path, whole=whole)  # for reads without FFmpeg, too
        except (OSError, ValueError) as error:  # a ValueError of a path that can't be
            raise VideoError(path, _reason(error)) from error

    def close(self) -> None:
        self.release()
        self.bytes.close()

    @contextmanager
    def faults(self) -> Iterator[None]:
        """Turns every error of FFmpeg and PyAV into a `VideoError`, but for those that only a fault of ours raises."""
        try:
            yield
        except Exception as error:
            # FFmpeg raises a MemoryError, too, if a header asks for more than there can be: a fault of the file.
            if isinstance(error, PROGRAM_ERRORS) and not isinstance(error, av.FFmpegError):
                raise
            self.check_reads()
            if isinstance(error, VideoError):
                raise
            reason = _reason(error)
            if isinstance(error, av.FFmpegError):
                limit = f", or frames of more than {MAX_PIXELS} pixels" if error.errno == errno.EINVAL else ""
                reason = f"damaged{limit} ({error.strerror})"
            raise VideoError(self.path, reason) from error
        self.check_reads()

    def check_reads(self) -> None:
        if self._failures:  # FFmpeg took it for the end of the file
            error = self._failures.pop()
            self._failures.clear()
            raise VideoError(self.path, _reason(error)) from error

    def check_time(self) -> None:
        if self.until < math.inf and time.thread_time() > self.until:
            raise VideoError(self.path, f"takes too long to decode, for a file of {self.bytes.size} bytes")

    def container(self, *, new: bool) -> tuple[InputContainer, VideoStream]:
        """Returns the file's container and video, to be read by one at a time.

        To open one, FFmpeg decodes some of it. Only transport streams are sought alike whatever was read before, if no
        `new` one is asked for: MPEG program streams and ASF go by an index that grows.
        """
        if new or self._opened is None or self._opened[0].format.name != "mpegts":
            self.release()
            self._opened = self.open()
        return self._opened

    def release(self) -> None:
        if self._opened is not None:
            self._opened[0].close()
        self._opened = None

    def open(self) -> tuple[InputContainer, VideoStream]:
        """Opens the file's container and its video, at the beginning, with a new decoder."""
        assert isinstance(self.bytes, InputFile)
        if (claimed := _claimed(self.bytes)) > self.bytes.size:
            raise VideoError(self.path, f"damaged: its frames claim {claimed} bytes, {self.bytes.size} are there")
        # The suffix helps to tell containers apart. More of the name might be taken for a protocol or a pattern.
        suffix = os.path.splitext(self.path)[1]
        suffix = suffix if suffix[1:].isalnum() and suffix.isascii() else ""
        options = {"format_whitelist": _CONTAINERS, "protocol_whitelist": "none"}
        source = Cursor(self.bytes, f"video{suffix}", self._failures)
        try:
            # FFmpeg takes JPEGs one after the other for a picture if the first has more than 2 KB.
            jpegs = suffix.lower() in _JPEGS and self.bytes.read(0, len(_START_OF_JPEG)) == _START_OF_JPEG
            format = "mjpeg" if jpegs else None
            container = av.open(source, "r", format, container_options=options, metadata_errors="replace")
        except av.FFmpegError as error:
            self.check_reads()
            if error.errno == errno.EINVAL:
                raise VideoError(self.path, f"not a video in one of the containers {_CONTAINERS}") from error
            raise VideoError(self.path, f"not a video, or damaged, or cut short ({error.strerror})") from error
        with ExitStack() as opened:
            opened.enter_context(container)  # to close it if it is refused
            best = container.streams.best("video")
            # FFmpeg takes the cover picture of a sound file for video.
            if not isinstance(best, VideoStream) or best.disposition & Disposition.attached_pic:
                raise VideoError(self.path, "holds no video, only other streams")
            codec = best.codec_context
            if codec is None:
                raise VideoError(self.path, "holds video that this FFmpeg has no decoder for")
            if codec.width * codec.height > MAX_PIXELS:
                pixels = f"{codec.width} x {codec.height} pixels, more than {MAX_PIXELS}"
                raise VideoError(self.path, f"declares frames of {pixels}")
            codec.thread_count = 1  # a loader has workers; FFmpeg's own threads would cost more than they gain
            codec.options = DECODER_OPTIONS
            codec.flags |= Flags.copy_opaque  # frames say from which packet they are
            opened.pop_all()
        return container, best


_EACH_LASTS_1 = re.compile(rb"stts.{4}\0{3}\x01.{4}\0{3}\x01", re.DOTALL)  # ISO/IEC 14496-12, 8.6.1.2


def _claimed(file: InputFile) -> int:
    """Bytes that the frames of an mp4 file claim, at least, where no table lists them one by one.

    FFmpeg allocates dozens of bytes for each of them before it looks for any.
    """
    of_track, of_fragments, at = 0, 0, 0
    for _ in range(_MOST_BOXES):  # ISO/IEC 14496-12, 4.2
        if len(head := file.read(at, 16)) < 8:
            break
        size = int.from_bytes(head[:4], "big")
        size = int.from_bytes(head[8:], "big") if size == 1 else size
        size = size if size >= 8 else file.size  # to the end of the file
        if head[4:8] in (b"moov", b"moof"):
            box = file.read(at, size)
            for track in box.split(b"trak"):
                # Sound that QuickTime compresses counts its samples, each of 1 byte, and FFmpeg goes by its chunks.
                if re.search(rb"hdlr.{8}soun", track, re.DOTALL) and _EACH_LASTS_1.search(track):
                    continue
                for each, count in re.findall(rb"stsz.{4}(.{4})(.{4})", track, re.DOTALL):  # 8.7.3: 0 in a list
                    of_track = max(of_track, int.from_bytes(each, "big") * int.from_bytes(count, "big"))
            # 8.8.8; the other box may hold such words as "trunk" in the film's title.
            runs = re.findall(rb"trun.{4}(.{4})", box, re.DOTALL) if head[4:8] == b"moof" else ()
            of_fragments += sum(int.from_bytes(count, "big") for count in runs)
        at += size
    return max(of_track, of_fragments)


def _reason(error: Exception) -> str:
    return f"cannot be read ({getattr(error, 'strerror', None) or f'{type(error).__name__}: {error}'})"


class BrokenVideosError(ValueError):
    """Too many videos of a dataset are broken: they can't be read."""
