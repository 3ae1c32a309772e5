"""What a thread keeps from one video to the next: indices, decoders and scalers."""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from av.codec.context import CodecContext
from av.video.codeccontext import VideoCodecContext
from av.video.reformatter import VideoReformatter

from lightning_multigrid.decode.packet_index import MAX_PIXELS, PacketIndex

_Kind = tuple[bytes, tuple[int, int, int, int], int, int]
FileKey = tuple[str, int, int]
"""What tells a file from others, and from itself before a change: path, time of change, size in bytes."""

_MOST_BYTES = 1 << 24  # of all kept indices together: those of 4,000 videos of 10 seconds
_MOST_PIXELS = 1 << 20  # of the kept decoders, one frame of each: a dozen of 340 x 256, which take some 30 MB
_MOST_REMEMBERED = 10_000  # files of which it is kept whether their times tell frames apart


class ThreadCache(threading.local):
    """The cache of each thread. Scalers and decoders are not thread-safe, so threads share nothing."""

    def __init__(self) -> None:
        # They hold megabytes. One per pixel format, as before PyAV 17 a scaler for several confuses the ranges.
        self.scalers: defaultdict[str, VideoReformatter] = defaultdict(VideoReformatter)
        # Whether times tell frames apart, for files whose decoder disagrees with an index that was just built.
        self.by_time: dict[FileKey, bool] = {}
        self._indices: dict[FileKey, bytes] = {}
        self._bytes = 0
        self._decoders: dict[_Kind, VideoCodecContext] = {}

    def index(self, key: FileKey, build: Callable[[], PacketIndex]) -> PacketIndex:
        data = self._indices.pop(key, None)
        index = build() if data is None else PacketIndex.from_bytes(data)
        if data is None:
            data = index.to_bytes()
            self._bytes += len(data)
        self._indices[key] = data  # at the end, so that the first is the least recently used
        while self._bytes > _MOST_BYTES and len(self._indices) > 1:
            self._bytes -= len(self._indices.pop(next(iter(self._indices))))
        return index

    def forget(self, key: FileKey) -> None:
        self._bytes -= len(self._indices.pop(key, b""))

    def is_by_time(self, key: FileKey, find_out: Callable[[], bool]) -> bool:
        """Whether times tell the frames of a file apart, found out if that is not kept."""
        if key not in self.by_time:
            self.by_time[key] = find_out()
            if len(self.by_time) > _MOST_REMEMBERED:
                del self.by_time[next(iter(self.by_time))]
        return self.by_time[key]

    def forget_decoder(self, index: PacketIndex) -> None:
        self._decoders.pop(_kind(index), None)

    @contextmanager
    def decoder(self, index: PacketIndex) -> Iterator[VideoCodecContext]:
        """Lends a decoder of H.264 for the file of an index: a kept one if there is one for the same parameter sets."""
        key = _kind(index)
        codec = self._decoders.pop(key, None) or _decoder(index)
        with suppress(GeneratorExit):  # the reader has its frames, and stops in the middle of a range
            yield codec
        codec.flush_buffers()  # not reached after an error: the state of the decoder is unknown then
        self._decoders[key] = codec  # at the end, so that the first is the least recently used
        pixels = sum(height * width for _, _, height, width in self._decoders)
        while pixels > _MOST_PIXELS and len(self._decoders) > 1:
            _, _, height, width = oldest = next(iter(self._decoders))
            pixels -= height * width
            del self._decoders[oldest]


def _kind(index: PacketIndex) -> _Kind:
    """What one decoder can serve: the same parameter sets, colours and size."""
    return index.extradata, index.colours, index.stored_height, index.stored_width


def _decoder(index: PacketIndex) -> VideoCodecContext:
    codec = CodecContext.create("h264", "r")
    assert isinstance(codec, VideoCodecContext)
    codec.extradata = index.extradata
    codec.thread_count = 1
    codec.colorspace, codec.color_range, codec.color_primaries, codec.color_trc = index.colours
    # "strict": if a stream does not state how far it reorders frames, the decoder assumes the most, and loses none.
    codec.options = {"max_pixels": str(MAX_PIXELS), "strict": "1", "err_detect": "explode"}
    return codec
