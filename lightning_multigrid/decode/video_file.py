"""A file that FFmpeg opens: it can reach no other file or host, and every fault of the file is a `VideoError`."""

import errno
import os
from bisect import bisect_left
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import av
from av.container import InputContainer
from av.packet import Packet
from av.stream import Disposition
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from lightning_multigrid.decode.file_boxes import UNKNOWN_SIZE, claimed_by_samples, promised_size
from lightning_multigrid.decode.packet_index import MAX_PIXELS
from lightning_multigrid.files import Cursor, HangError, ReadableFile, RemoteFile, WatchedFile, is_url

# Containers that hold their own pictures. FFmpeg would also follow playlists, concat scripts and image patterns, which
# name other files and hosts, whatever the name of their file.
_CONTAINERS = "mov,matroska,avi,asf,flv,mpeg,mpegts,mpegvideo,ogg,ivf,gif,h264,hevc,m4v,mjpeg"
_CONTAINERS += ",apng,rm,nut,mxf,dv,obu,h261,h263,swf"

_RAW_JPEG = (".mjpeg", ".mjpg")


class VideoError(ValueError):
    """A file that can't be read as a video, or a frame that can't be decoded: the `path` as given, and the `reason`."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        text = f"{self.path}: {self.reason}"
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@dataclass
class Damage:
    """The frames at which a video is damaged, as far as it was decoded from its beginning. False if there are none."""

    concealed: list[int] = field(default_factory=list)  # FFmpeg marks them as corrupt, or makes up their lost parts
    refused: list[int] = field(default_factory=list)  # it can't decode their packets, or can't read on after them
    missing: list[int] = field(default_factory=list)  # listed, but don't come out; known at the end of the file only
    packets_fed: int = 0  # how many packets the decoder got

    def __bool__(self) -> bool:
        return bool(self.concealed or self.refused or self.missing)

    def __str__(self) -> str:
        places = self.concealed + self.refused + self.missing
        if not places:
            return "no damage met"
        return (
            f"damaged from frame {min(places)} to frame {max(places)} (frames that FFmpeg conceals: "
            f"{len(self.concealed)}, packets that it can't decode: {len(self.refused)}, frames that don't come out: "
            f"{len(self.missing)})"
        )


class VideoFile:
    """An ordinary file on disk or at a URL, open until `close`; it is a `VideoError` if it can't be opened."""

    def __init__(self, path: str, timeout: float) -> None:
        self.path = path
        self.bytes: ReadableFile  # for reads without FFmpeg, of at most `timeout` seconds
        try:
            self.bytes = RemoteFile(path, timeout) if is_url(path) else WatchedFile(path, timeout)
        except FileNotFoundError as error:
            raise VideoError(path, "there is no such file") from error
        except PermissionError as error:
            raise VideoError(path, "may not be read by this user") from error
        except (OSError, ValueError) as error:
            raise VideoError(path, _reason(error)) from error
        if not (self.bytes.is_ordinary and self.bytes.size):
            self.close()
            other = "a directory" if self.bytes.is_folder else "not an ordinary file"
            raise VideoError(path, "empty, 0 bytes" if self.bytes.is_ordinary else other)

    def close(self) -> None:
        self.bytes.close()

    @contextmanager
    def faults(self) -> Iterator[None]:
        """Turns every error of FFmpeg and PyAV into a `VideoError`. One wrong bit may make PyAV raise anything."""
        try:
            yield
        except VideoError:
            raise
        except Exception as error:
            # FFmpeg raises one, too, if a header asks for more memory than there can be: a fault of the file.
            if isinstance(error, MemoryError) and not isinstance(error, av.FFmpegError):
                raise
            self.check_reads()
            reason = _reason(error)
            if isinstance(error, av.FFmpegError):
                limit = f", or frames of more than {MAX_PIXELS} pixels" if error.errno == errno.EINVAL else ""
                reason = f"damaged{limit} ({error.strerror})"
            raise VideoError(self.path, reason) from error
        self.check_reads()

    def check_reads(self) -> None:
        """Raises the error of a read, if there was one: FFmpeg took it for the end of the file."""
        error, self.bytes.failure = self.bytes.failure, None
        if error is not None:
            raise VideoError(self.path, _reason(error)) from error

    def open(self, *, strict: bool = False) -> tuple[InputContainer, VideoStream]:
        """Opens the file's container and its video, at the beginning. If `strict`, the decoder conceals no fault."""
        try:
            container = self._container()
        except av.FFmpegError as error:
            self.check_reads()
            if error.errno == errno.EINVAL:
                raise VideoError(self.path, f"not a video in one of the containers {_CONTAINERS}") from error
            if isinstance(error, av.InvalidDataError):
                self.refuse_cut_short()
                raise VideoError(self.path, f"no video, or damaged at its head ({error.strerror})") from error
            raise
        try:
            return container, self._video_of(container, strict)
        except BaseException:
            container.close()
            raise

    def sequential(self, times: list[int], met: Damage) -> Generator[tuple[int, VideoFrame], None, None]:
        """Decodes the file from its beginning as FFmpeg does by default: past damage, which is noted in `met`.

        Yields each frame with the place of its time in `times`, ascending (-1 if none); if that is empty, its count.
        """
        missing = set(range(len(times)))
        count, time = 0, None

        def number(time: int | None) -> int:
            if not times:
                return count
            place = len(times) if time is None else bisect_left(times, time)
            return place if times[place : place + 1] == [time] else -1

        container, stream = self.open()
        with container:
            packets = demuxed(container, stream)
            while True:
                try:
                    if (packet := next(packets, None)) is None:
                        break
                    time = packet.pts
                    met.packets_fed += packet.size > 0
                    frames = packet.decode()
                except av.FFmpegError:
                    met.refused.append(max(number(time), 0))
                    continue
                for frame in frames:
                    place = number(frame.pts)
                    if frame.is_corrupt:
                        met.concealed.append(max(place, 0))
                    yield place, frame
                    missing.discard(place)
                    count += 1
        if count < len(times):
            met.missing += sorted(missing)

    def _container(self) -> InputContainer:
        # The suffix helps to tell containers apart. More of the name might be taken for a protocol or a pattern.
        suffix = os.path.splitext(self.path)[1]
        suffix = suffix if suffix[1:].isalnum() and suffix.isascii() else ""
        # FFmpeg takes a row of JPEG pictures for the first of them, a picture, if that has the head that most programs
        # write. Only the name tells that it is a video.
        is_raw = suffix.lower() in _RAW_JPEG and self.bytes.read([(0, 2)]) == [b"\xff\xd8"]
        return av.open(
            Cursor(self.bytes, f"video{suffix}"),
            "r",
            format="mjpeg" if is_raw else None,
            container_options={"format_whitelist": _CONTAINERS, "protocol_whitelist": "none"},
            metadata_errors="replace",
        )

    def _video_of(self, container: InputContainer, strict: bool) -> VideoStream:
        # FFmpeg takes the cover picture of a sound file for video.
        streams = [stream for stream in container.streams.video if not stream.disposition & Disposition.attached_pic]
        if not streams:
            raise VideoError(self.path, "holds no video, only other streams")
        codec = streams[0].codec_context
        if codec is None:
            raise VideoError(self.path, "holds video that this FFmpeg has no decoder for")
        if codec.width * codec.height > MAX_PIXELS:
            raise VideoError(
                self.path, f"declares frames of {codec.width} x {codec.height} pixels, more than {MAX_PIXELS}"
            )
        codec.thread_count = 1  # a loader has workers; FFmpeg's own threads would cost more than they gain
        codec.options = {"max_pixels": str(MAX_PIXELS), **({"err_detect": "explode"} if strict else {})}
        return streams[0]

    def refuse_cut_short(self) -> None:
        """Raises a `VideoError` if the file is shorter than it says. FFmpeg would read what is left of it."""
        promised, claimed = promised_size(self.bytes), claimed_by_samples(self.bytes)
        if promised > self.bytes.size and (claimed > self.bytes.size or not self._has_all_packets()):
            there = f"{self.bytes.size} of {promised} bytes are there"
            raise VideoError(self.path, f"cut short: {'its blocks break off' if promised == UNKNOWN_SIZE else there}")
        if claimed > self.bytes.size:
            raise VideoError(
                self.path, f"damaged: its frames claim at least {claimed} bytes, {self.bytes.size} are there"
            )

    def _has_all_packets(self) -> bool:
        """Whether all packets that the file's head counts are there: only the size that it states is wrong then."""
        with suppress(av.FFmpegError, VideoError), self._container() as container:
            stream = self._video_of(container, strict=False)
            if container.format.name == "gif":  # FFmpeg counts what is there
                return False
            broken = [packet.is_corrupt for packet in container.demux(stream) if packet.size]
            return len(broken) == stream.frames and not any(broken)
        self.check_reads()
        return False


def demuxed(container: InputContainer, stream: VideoStream) -> "Iterator[Packet[VideoStream]]":
    """Reads packets in decoding order. The last is empty, and makes the decoder give out the frames it still holds."""
    for packet in container.demux(stream):
        if packet.size or packet.dts is None:  # an empty sample before the end would end decoding
            yield packet


def _reason(error: Exception) -> str:
    if isinstance(error, HangError):
        return f"cannot be read: {error.args[0]}, as on a network drive that is gone"
    return f"cannot be read ({type(error).__name__}: {error})"


class BrokenVideosError(ValueError):
    """Too many videos of a dataset are broken: they can't be read."""
