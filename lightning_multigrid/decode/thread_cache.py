"""What a thread keeps from one video to the next: scalers, indices and decoders."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from av.codec.context import CodecContext
from av.video.codeccontext import VideoCodecContext
from av.video.reformatter import VideoReformatter

from lightning_multigrid.decode.index import MAX_PIXELS, PacketIndex

__all__ = ["FileKey", "Kept"]

FileKey = tuple[str, int, int]
"""What tells a file from others and from its former self: path, time of change, bytes."""

# Of all the indices that a thread keeps: those of 4,000 videos of 10 seconds.
_MOST_BYTES = 1 << 24
# Of a frame of each decoder that a thread keeps, all in all: a dozen of 340 x 256, whose frames take some 30 MB.
_MOST_PIXELS = 1 << 20
# Files that a thread remembers to have an index at odds with what comes out of them.
_MOST_DISTRUSTED = 10_000


class Kept(threading.local):
    """Threads share nothing: neither a scaler nor a decoder bears two at a time.

    Attributes:
        scalers: For each pixel format its own. Before PyAV 17 one takes full-range frames for what came before them,
            and the other way round. They hold megabytes, so there is none per file.
        distrusted: Files whose index is right, and still not what comes out of them.
    """

    def __init__(self) -> None:
        self.scalers: defaultdict[str, VideoReformatter] = defaultdict(VideoReformatter)
        self.distrusted: dict[FileKey, None] = {}
        self._indices: dict[FileKey, bytes] = {}
        self._bytes = 0
        self._decoders: dict[tuple[bytes, tuple[int, int, int, int], int, int], VideoCodecContext] = {}

    def index(self, key: FileKey, build: Callable[[], PacketIndex]) -> PacketIndex:
        """The index of a file, built if it is not kept."""
        data = self._indices.pop(key, None)
        index = PacketIndex.from_bytes(data) if data is not None else build()
        if data is None:
            data = index.to_bytes()
            self._bytes += len(data)
        self._indices[key] = data  # at the end: the first is the one unused for longest
        while self._bytes > _MOST_BYTES and len(self._indices) > 1:
            self._bytes -= len(self._indices.pop(next(iter(self._indices))))
        return index

    def forget(self, key: FileKey) -> None:
        """Lets go of the index of a file."""
        self._bytes -= len(self._indices.pop(key, b""))

    def distrust(self, key: FileKey) -> None:
        """Remembers that an index is of no use."""
        self.distrusted[key] = None
        if len(self.distrusted) > _MOST_DISTRUSTED:
            del self.distrusted[next(iter(self.distrusted))]

    @contextmanager
    def decoder(self, index: PacketIndex) -> Iterator[VideoCodecContext]:
        """A decoder of H.264: one that is kept, if it is for the same parameter sets."""
        key = index.extradata, index.colours, index.stored_height, index.stored_width
        codec = self._decoders.pop(key, None) or _decoder(index)
        with suppress(GeneratorExit):  # all frames wanted are out
            yield codec
        codec.flush_buffers()  # not after an error: who knows what state it is in
        self._decoders[key] = codec  # at the end: the first is the one unused for longest
        pixels = sum(height * width for _, _, height, width in self._decoders)
        while pixels > _MOST_PIXELS and len(self._decoders) > 1:
            _, _, height, width = oldest = next(iter(self._decoders))
            pixels -= height * width
            del self._decoders[oldest]


def _decoder(index: PacketIndex) -> VideoCodecContext:
    codec = CodecContext.create("h264", "r")
    assert isinstance(codec, VideoCodecContext)
    codec.extradata = index.extradata
    codec.thread_count = 1
    codec.colorspace, codec.color_range, codec.color_primaries, codec.color_trc = index.colours
    # Strict: where a stream does not tell how far it reorders frames, the most possible is believed; none gets lost.
    codec.options = {"max_pixels": str(MAX_PIXELS), "strict": "1"}
    return codec
