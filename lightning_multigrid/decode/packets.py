"""The packets of a video file, given to a decoder that has just been opened: from the file itself, or its container."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from operator import add
from typing import Any

import av
from av.codec.context import CodecContext, Flags
from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter

from lightning_multigrid.decode.frame_table import Coding, FrameTable, Integers
from lightning_multigrid.decode.video_file import DECODER_OPTIONS, VideoFile

_MOST_PIXELS = 1 << 20  # of the decoders of a thread, one frame of each: a dozen of 340 x 256, which take some 30 MB
_AT_ONCE = 1 << 18  # packets that lie within this many bytes of the file are read at once, with what lies between them
_PADDING = 64  # FFmpeg's AV_INPUT_BUFFER_PADDING_SIZE


def decode_packets(
    file: VideoFile, table: FrameTable, numbers: Sequence[int], *, new: bool = True, references_only: bool = False
) -> Iterator[tuple[int, VideoFrame]]:
    """Decodes some packets (ascending) to frames, each with the number of its packet.

    The decoder is a `new` one, or one that this thread has used. An error of FFmpeg ends a packet, not the decoding.
    With `references_only` frames are left out to which no other one refers, as far as FFmpeg knows.
    """
    codec = (None if new else of_thread.decoders.pop(table.coding, None)) or _bare_decoder(table.coding)
    if references_only:
        codec.skip_frame = "NONREF"
    packets = (_from_file if table.direct else _from_container)(file, table, numbers)
    given: Iterator[Packet[Any] | None] = chain(packets, [None])
    try:
        for packet in given:
            file.check_time()
            try:
                frames = codec.decode(packet)
            except av.FFmpegError:
                continue  # what comes out, or doesn't, is compared with the table
            for frame in frames:
                yield number_of(frame), frame
    finally:
        if not references_only:
            of_thread.put(table.coding, codec)


def grouped(frames: Iterable[int], numbers: Integers) -> dict[int, list[int]]:
    """The frames that have the same number, of a packet or an entry, by this number."""
    groups: dict[int, list[int]] = defaultdict(list)
    for frame, number in zip(frames, numbers.tolist(), strict=True):
        groups[number].append(frame)
    return groups


def needed_packets(table: FrameTable, entry: int, wanted: Collection[int]) -> list[int]:
    """The packets to decode for the frames of some packets that have the same entry, ascending."""
    last = max(wanted)
    if not len(table.droppable):
        return list(range(entry, last + 1))
    droppable = table.droppable[entry : last + 1].tolist()
    return [number for number, drop in enumerate(droppable, entry) if not drop or number in wanted]


def give_number(packet: Packet[Any], number: int) -> None:
    """Gives a packet a number, which the frames that are decoded from it have, too."""
    # In an object of its own: PyAV (seen in 18.1) loses an object that two packets share when the first one goes.
    packet.opaque = (number,)


def number_of(frame: VideoFrame) -> int:
    """The number of the packet from which a frame was decoded, -1 if its decoder can't tell."""
    opaque = frame.opaque
    return opaque[0] if isinstance(opaque, tuple) else -1


def _bare_decoder(coding: Coding) -> VideoCodecContext:
    codec = CodecContext.create(coding.decoder, "r")
    assert isinstance(codec, VideoCodecContext)
    # FFmpeg reads on after the end, where PyAV (seen in 18.1) leaves what was in memory: these zeros stay there.
    codec.extradata = coding.extradata + bytes(_PADDING)
    codec.extradata = coding.extradata or None
    codec.width, codec.height, codec.codec_tag = coding.width, coding.height, coding.tag
    if coding.bits:
        codec.bits_per_coded_sample = coding.bits
    codec.colorspace, codec.color_range, codec.color_primaries, codec.color_trc = coding.colours
    codec.thread_count = 1
    # "strict": if a stream does not state how far it reorders frames, the decoder assumes the most, and loses none.
    codec.options = {**DECODER_OPTIONS, "strict": "1"}
    codec.flags |= Flags.copy_opaque
    return codec


class _OfThread(threading.local):
    """What each thread has: decoders, as to open one costs as much as some packets, and a scaler, of megabytes."""

    def __init__(self) -> None:
        self.scaler = VideoReformatter()
        self.decoders: dict[Coding, VideoCodecContext] = {}  # only what has its checksum is taken from them

    def put(self, coding: Coding, codec: VideoCodecContext) -> None:
        codec.flush_buffers()
        self.decoders[coding] = codec  # at the end, so that the first is the least recently used
        while len(self.decoders) > 1 and sum(coding.width * coding.height for coding in self.decoders) > _MOST_PIXELS:
            del self.decoders[next(iter(self.decoders))]


of_thread = _OfThread()


def _from_file(file: VideoFile, table: FrameTable, numbers: Sequence[int]) -> Iterator[Packet[Any]]:
    positions, sizes = (column[numbers].tolist() for column in (table.positions, table.sizes))
    first, end = min(positions), max(map(add, positions, sizes))
    group = file.bytes.read(first, end - first) if end - first <= _AT_ONCE else None
    for number, position, size in zip(numbers, positions, sizes, strict=True):
        # Made by its size and then filled: after the bytes that a packet is made of, PyAV (seen in 18.1) leaves no
        # zeros, and some decoders read on there.
        packet = Packet(size)
        at = position - first
        packet.update(file.bytes.read(position, size) if group is None else group[at : at + size])
        packet.is_keyframe = number == numbers[0]  # the entry: else the decoder of PNG adds the frame to another one
        give_number(packet, number)
        yield packet


def _from_container(file: VideoFile, table: FrameTable, numbers: Sequence[int]) -> Iterator[Packet[Any]]:
    container, stream = file.container(new=not numbers[0])
    try:
        if numbers[0]:
            container.seek(int(table.clock[numbers[0]]), stream=stream)
        yield from _numbered(container.demux(stream), table, numbers)
    except av.FFmpegError:  # it can't be sought, or not be read on
        file.release()


def _numbered(packets: Iterator[Packet[Any]], table: FrameTable, numbers: Sequence[int]) -> Iterator[Packet[Any]]:
    """Finds packets after a seek: the first by its time, the others by counting on. Ends where they are others."""
    first, last, asked, number = numbers[0], numbers[-1], set(numbers), -1
    for packet in packets:
        if not packet.size:  # it would end decoding
            continue
        if number < 0 and first and not (packet.is_keyframe and packet.dts == table.clock[first]):
            continue
        number = first if number < 0 else number + 1
        if packet.size != table.sizes[number] or packet.dts not in (None, table.clock[number]):
            return
        if number in asked:
            give_number(packet, number)
            yield packet
        if number == last:
            return
