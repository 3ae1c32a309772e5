"""Encodes small videos by PyAV, takes them apart and puts them together again as rare and hostile ones."""

from __future__ import annotations

import io
import os
import random
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any

import av
import av.bitstream
import numpy as np

from tests.helpers.videos import numbered_frames

Matrix = tuple[int, int, int, int]
COUNT = 40
"""Frames of most files. Those of `long` have none but the first that can be decoded alone."""


@dataclass(frozen=True)
class Coding:
    """How frames are encoded. `colours` are the numbers of matrix and range, 0 for none."""

    encoder: str
    pix_fmt: str = "yuv420p"
    height: int = 48
    width: int = 64
    options: tuple[tuple[str, str], ...] = ()
    count: int = COUNT
    colours: tuple[int, int] = (0, 0)
    interlaced: bool = False
    palettes: int = 1
    tag: str = ""

    def having(self, **options: Any) -> Coding:
        """The same with other options of the encoder."""
        return replace(self, options=tuple((dict(self.options) | {k: str(v) for k, v in options.items()}).items()))


# Frames


@lru_cache(maxsize=16)
def _pictures(count: int, height: int, width: int, first: int) -> np.ndarray:
    return numbered_frames(count, height, width, first=first)


def _frame(coding: Coding, pixels: np.ndarray, number: int) -> av.VideoFrame:
    if coding.pix_fmt == "pal8":
        shades = np.arange(256, dtype=np.uint8) % 64 * 4
        turn = number * coding.palettes // coding.count
        palette = np.stack([np.full_like(shades, 255), *np.roll([shades, shades, 255 - shades], turn, axis=0)], axis=1)
        return av.VideoFrame.from_ndarray((pixels[..., 0] // 4, palette), format="pal8")
    matrix, full = coding.colours
    frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
    colours = {"dst_colorspace": matrix or None, "dst_color_range": full or None}
    frame = frame.reformat(format=coding.pix_fmt, interpolation="BILINEAR", **colours)
    if matrix:
        frame.colorspace, frame.color_range = matrix, full
    return frame


@lru_cache(maxsize=64)
def encoded(
    coding: Coding,
    container: str,
    *,
    first: int = 0,
    times: tuple[int, ...] = (),
    rate: int = 25,
    muxer: tuple[tuple[str, str], ...] = (),
    audio: bool = False,
) -> bytes:
    """A video of frames that tell their number, from `first` on, shown at `times` (in units of 1 / rate)."""
    os.environ.setdefault("SVT_LOG", "1")  # its errors only
    if ("movflags", "faststart") in muxer:
        return _faststart(encoded(coding, container, first=first, times=times, rate=rate, audio=audio))
    out = io.BytesIO()
    with av.open(out, "w", format=container, options=dict(muxer)) as target:
        stream: Any = target.add_stream(coding.encoder, rate=rate, options=dict(coding.options))
        stream.height, stream.width = coding.height, coding.width
        stream.pix_fmt, stream.thread_count = coding.pix_fmt, 1
        if coding.tag:
            stream.codec_context.codec_tag = coding.tag
        if coding.colours[0]:
            stream.codec_context.colorspace, stream.codec_context.color_range = coding.colours
        sound: Any = target.add_stream("mp2" if container in ("mpegts", "mpeg", "avi") else "aac") if audio else None
        for place, pixels in enumerate(_pictures(coding.count, coding.height, coding.width, first)):
            frame = _frame(coding, pixels, place)
            frame.pts, frame.time_base = times[place] if times else place, Fraction(1, rate)
            target.mux(stream.encode(frame))
            if sound is not None:
                samples = sound.codec_context.frame_size or 1152
                planar = sound.codec_context.format.name
                kind = np.float32 if planar == "fltp" else np.int16
                silence = av.AudioFrame.from_ndarray(
                    np.zeros((2 if planar.endswith("p") else 1, samples * (1 if planar.endswith("p") else 2)), kind),
                    format=planar,
                    layout="stereo",
                )
                silence.sample_rate, silence.pts = 48000, place * samples
                target.mux(sound.encode(silence))
        target.mux(stream.encode())
        if sound is not None:
            target.mux(sound.encode())
    return out.getvalue()


# Packets


@dataclass
class Piece:
    """A packet as plain data, times in units of 1 / rate of its stream. `part` tells which file it is of."""

    data: bytes
    pts: int
    dts: int
    key: bool
    part: int
    extra: list[Any] = field(default_factory=list)


def pieces_of(data: bytes, part: int = 0) -> list[Piece]:
    """The packets of the video in a file, times in 90,000ths of a second."""
    found: list[Piece] = []
    untimed = False
    with av.open(io.BytesIO(data)) as source:
        for packet in source.demux(video=0):
            if packet.size:
                tick = Fraction(packet.time_base) * 90_000
                pts, dts = (-1 if time is None else round(time * tick) for time in (packet.pts, packet.dts))
                if packet.pts is None:
                    untimed = True
                extra = list(packet.iter_sidedata()) if hasattr(packet, "iter_sidedata") else []
                dts = pts if packet.dts is None else dts
                found.append(Piece(bytes(packet), pts, dts, packet.is_keyframe, part, extra))
    if untimed:  # raw streams
        for place, piece in enumerate(found):
            piece.pts = piece.dts = place * 3600
    return found


def _template(source: bytes) -> Any:
    """A container whose video tells what a copy of it has to know."""
    container = av.open(io.BytesIO(source))
    codec = container.streams.video[0].codec_context
    if codec.name != "libdav1d":
        return container
    # PyAV looks for an encoder of the same name, and this decoder has none.
    target = av.open(io.BytesIO(), "w", format="mp4")
    stream: Any = target.add_stream("libsvtav1", rate=25, options={"preset": "12", "svtav1-params": "lp=1"})
    stream.height, stream.width, stream.pix_fmt = codec.height, codec.width, "yuv420p"
    frame = av.VideoFrame(codec.width, codec.height, "yuv420p")
    frame.pts = 0
    target.mux(stream.encode(frame))
    target.mux(stream.encode())
    return target


def remuxed(
    sources: Sequence[bytes],
    container: str,
    edit: Callable[[list[Piece]], Iterable[Piece]] = lambda pieces: pieces,
    muxer: dict[str, str] | None = None,
) -> bytes:
    """The packets of files of one codec, one after the other, as the stream that the first of them has."""
    pieces: list[Piece] = []
    for part, source in enumerate(sources):
        own = pieces_of(source, part)
        if pieces:
            ends = (max(piece.pts for piece in pieces), max(piece.dts for piece in pieces))
            starts = (min(piece.pts for piece in own), min(piece.dts for piece in own))
            shift = 3600 + max(end - start for end, start in zip(ends, starts, strict=True))
            for piece in own:
                piece.pts, piece.dts = piece.pts + shift, piece.dts + shift
        pieces += own
    out = io.BytesIO()
    with _template(sources[0]) as template, av.open(out, "w", format=container, options=muxer or {}) as target:
        stream: Any = target.add_stream_from_template(template.streams.video[0])
        last = None
        for piece in edit(pieces):
            packet: Any = av.Packet(piece.data)
            packet.stream, packet.time_base = stream, Fraction(1, 90_000)
            packet.dts = piece.dts if last is None else max(last + 8, piece.dts)  # muxers want it to grow
            packet.pts = max(piece.pts, packet.dts)
            last = packet.dts
            packet.is_keyframe = piece.key
            for extra in piece.extra:
                packet.set_sidedata(extra)
            target.mux(packet)
    return out.getvalue()


def _units(data: bytes) -> list[bytes]:
    """What stands behind the start codes of an MPEG stream."""
    starts, at = [], data.find(b"\0\0\1")
    while at >= 0:
        starts.append(at)
        at = data.find(b"\0\0\1", at + 3)
    units = (data[start + 3 : end].rstrip(b"\0") for start, end in pairwise([*starts, len(data)]))
    return [unit for unit in units if unit]


def without_units(wanted: Callable[[bytes], bool]) -> Callable[[list[Piece]], Iterable[Piece]]:
    """Takes some units out of all packets but the first of each part, so that nothing is told twice."""

    def edit(pieces: list[Piece]) -> Iterable[Piece]:
        seen: set[int] = set()
        for piece in pieces:
            if piece.part in seen:
                units = [unit for unit in _units(piece.data) if not wanted(unit)]
                piece.data = b"".join(b"\0\0\1" + unit for unit in units)
            seen.add(piece.part)
            yield piece

    return edit


# What tells of a whole stream, by its codec.
_HEADERS: dict[str, Callable[[bytes], bool]] = {
    "h264": lambda unit: unit[0] & 31 in (6, 7, 8),
    "h265": lambda unit: unit[0] >> 1 in (32, 33, 34, 39),
    "mpeg1": lambda unit: unit[0] == 0xB3,
    "mpeg2": lambda unit: unit[0] == 0xB3 or (unit[0] == 0xB5 and unit[1] >> 4 in (1, 2, 3)),
    "mpeg4": lambda unit: unit[0] not in (0xB3, 0xB6),
}


def _jpeg_without_tables(data: bytes) -> bytes:
    """A JPEG picture without its tables of quantisers and codes: the decoder keeps those of the one before."""
    kept, at = data[:2], 2
    while data[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        kept += b"" if data[at + 1] in (0xDB, 0xC4) else data[at:end]
        at = end
    return kept + data[at:]


def _av1_without_sequence(data: bytes) -> bytes:
    """Open bitstream units without sequence headers; AV1 specification, 5.3."""
    kept, at = b"", 0
    while at < len(data):
        begin, header = at, data[at]
        at += 2 if header & 4 else 1
        size = shift = 0
        while True:
            size |= (data[at] & 127) << shift
            shift += 7
            at += 1
            if not data[at - 1] & 128:
                break
        at += size
        kept += b"" if header >> 3 & 15 == 1 else data[begin:at]
    return kept


def once(coding: str) -> Callable[[list[Piece]], Iterable[Piece]]:
    """Leaves headers in the first packet of each part only."""
    cuts = {"mjpeg": _jpeg_without_tables, "av1": _av1_without_sequence}
    if coding not in cuts:
        return without_units(_HEADERS[coding])

    def edit(pieces: list[Piece]) -> Iterable[Piece]:
        for before, piece in zip([None, *pieces], pieces, strict=False):
            if before is not None and before.part == piece.part:
                piece.data = cuts[coding](piece.data)
            yield piece

    return edit


# Containers as bytes


def _flv_tags(data: bytes) -> list[bytearray]:
    tags, at = [], 13
    while at + 11 <= len(data):
        size = 11 + int.from_bytes(data[at + 1 : at + 4], "big")
        tags.append(bytearray(data[at : at + size]))
        at += size + 4
    return tags


def flv_joined(first: bytes, second: bytes) -> bytes:
    """Two FLV files as one stream with a second header on the way."""
    tags = _flv_tags(first)
    end = max(int.from_bytes(tag[4:7], "big") for tag in tags) + 40
    for tag in _flv_tags(second):
        if tag[0] == 9:  # video
            tag[4:7] = (int.from_bytes(tag[4:7], "big") + end).to_bytes(3, "big")
            tags.append(tag)
    return first[:13] + b"".join(bytes(tag) + len(tag).to_bytes(4, "big") for tag in tags)


def _box(kind: bytes, data: bytes) -> bytes:
    return (8 + len(data)).to_bytes(4, "big") + kind + data


def mp4_edited(data: bytes, edits: dict[bytes, Callable[[bytes], bytes]]) -> bytes:
    """An mp4 file, its tables behind its pictures, with other contents of some file boxes."""
    out, at = b"", 0
    while at + 8 <= len(data):
        size, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        content = data[at + 8 : at + size]
        if kind in (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts"):
            content = mp4_edited(content, edits)
        out += _box(kind, edits.get(kind, bytes)(content))
        at += size
    return out


def _of_box(data: bytes, kind: bytes) -> bytes:
    at = data.index(kind)
    return data[at + 4 : at - 4 + int.from_bytes(data[at - 4 : at], "big")]


def _faststart(data: bytes) -> bytes:
    """An mp4 file with its tables before its pictures."""
    at = data.rindex(b"moov") - 4
    tables, first = data[at:], data.index(b"mdat") - 4

    def later(content: bytes) -> bytes:
        places = np.frombuffer(content[8:], ">u4") + len(tables)
        return content[:8] + places.astype(">u4").tobytes()

    return data[:first] + mp4_edited(tables, {b"stco": later}) + data[first:at]


def mp4_of_two_kinds(first: bytes, second: bytes, container: str) -> bytes:
    """Two mp4 files as one track with two sample descriptions, each packet a chunk of its own."""
    data = remuxed([first, second], container)
    with av.open(io.BytesIO(data)) as source:
        places = [packet.pos for packet in source.demux(video=0) if packet.size]
    early = len(pieces_of(first))
    number = lambda *values: b"".join(value.to_bytes(4, "big") for value in values)  # noqa: E731
    return mp4_edited(
        data,
        {
            b"stsd": lambda own: number(0, 2) + own[8:] + _of_box(second, b"stsd")[8:],
            b"stsc": lambda _: number(0, 2, 1, 1, 1, early + 1, 1, 2),
            b"stco": lambda _: number(0, len(places), *places),
        },
    )


def mp4_cut(data: bytes, skipped: int, kept: int, rate: int = 25) -> bytes:
    """With an edit list that leaves out the first frames, and those after the ones kept."""
    scale = int.from_bytes(_of_box(data, b"mdhd")[12:16], "big")

    def edit(content: bytes) -> bytes:
        start = int.from_bytes(content[12:16], "big") + skipped * scale // rate
        return content[:8] + (kept * 1000 // rate).to_bytes(4, "big") + start.to_bytes(4, "big") + content[16:]

    return mp4_edited(data, {b"elst": edit})


def with_exif(orientation: int) -> Callable[[list[Piece]], Iterable[Piece]]:
    """Puts the notes of a camera into JPEG pictures: its maker, and how it was held."""
    notes = struct.pack("<HHHIHHHHI4sI", 2, 0x112, 3, 1, orientation, 0, 0x10F, 2, 4, b"abc", 0)
    segment = b"Exif\0\0II*\0\x08\0\0\0" + notes
    head = b"\xff\xe1" + (len(segment) + 2).to_bytes(2, "big") + segment

    def edit(pieces: list[Piece]) -> Iterable[Piece]:
        for piece in pieces:
            piece.data = piece.data[:2] + head + piece.data[2:]
            yield piece

    return edit


def with_segment(marker: int, content: bytes, place: int) -> Callable[[list[Piece]], Iterable[Piece]]:
    """Puts a segment into one JPEG picture, the `place`-th."""

    def edit(pieces: list[Piece]) -> Iterable[Piece]:
        data = pieces[place].data
        head = bytes([0xFF, marker]) + (len(content) + 2).to_bytes(2, "big")
        pieces[place].data = data[:2] + head + content + data[2:]
        return pieces

    return edit


def h264_turned(data: bytes, angle: int, flip: str) -> bytes:
    """With a display orientation message before each keyframe."""
    options = f"display_orientation=insert:rotate={angle}" + (f":flip={flip}" if flip else "")
    with av.open(io.BytesIO(data)) as source:
        stream = source.streams.video[0]
        context = av.bitstream.BitStreamFilterContext(f"h264_metadata={options}", stream)
        return b"".join(bytes(out) for packet in source.demux(stream) for out in context.filter(packet))


def _element(kind: str, *contents: bytes) -> bytes:
    """An element of Matroska (RFC 8794): its id, its size in eight bytes, its data."""
    data = b"".join(contents)
    return bytes.fromhex(kind) + (1 << 56 | len(data)).to_bytes(8, "big") + data


def _number(kind: str, value: int) -> bytes:
    return _element(kind, value.to_bytes(4, "big"))


def in_matroska(data: bytes, tag: bytes) -> bytes:
    """An AVI file's video in Matroska (RFC 9559), whatever its codec: FFmpeg reads more of them than it writes."""
    with av.open(io.BytesIO(data)) as source:
        codec = source.streams.video[0].codec_context
        height, width, extra = codec.height, codec.width, bytes(codec.extradata or b"")
    # A BITMAPINFOHEADER, as in AVI.
    private = struct.pack("<IiiHH4sIiiII", 40 + len(extra), width, height, 1, 24, tag, 0, 0, 0, 0, 0) + extra
    kind = _element("4282", b"matroska")
    head = _element("1a45dfa3", _number("4286", 1), kind, _number("4287", 4), _number("4285", 2))
    picture = _element("e0", _number("b0", width), _number("ba", height))
    name, private = _element("86", b"V_MS/VFW/FOURCC"), _element("63a2", private)
    track = _element("ae", _number("d7", 1), _number("73c5", 1), _number("83", 1), name, private, picture)
    blocks = (
        _element("a3", b"\x81" + (40 * place).to_bytes(2, "big") + bytes([128 * piece.key]) + piece.data)
        for place, piece in enumerate(pieces_of(data))
    )
    cluster = _element("1f43b675", _number("e7", 0), *blocks)
    info = _element("1549a966", _number("2ad7b1", 1_000_000))
    return head + _element("18538067", info, _element("1654ae6b", track), cluster)


# Damage


def damaged(data: bytes, kind: str, draw: random.Random) -> bytes:
    """Bytes that are lost, zeroed or flipped, behind the head of a file."""
    head = min(2000, len(data) // 4)
    copy = bytearray(data)
    if kind == "truncated":
        return data[: draw.randrange(len(data) // 3, len(data) * 9 // 10)]
    if kind == "zeroed":
        for _ in range(3):
            at = draw.randrange(head, len(data))
            size = min(draw.choice([16, 64, 300]), len(data) - at)
            copy[at : at + size] = bytes(size)
    elif kind == "flipped":
        for _ in range(draw.choice([1, 3, 10])):
            copy[draw.randrange(head, len(data))] ^= 1 << draw.randrange(8)
    elif kind == "lost_ts":
        blocks = [data[at : at + 188] for at in range(0, len(data), 188)]
        lost = set(draw.sample(range(4, len(blocks)), min(draw.choice([1, 2, 5]), len(blocks) - 5)))
        return b"".join(block for place, block in enumerate(blocks) if place not in lost)
    elif kind == "shifted":
        at = draw.randrange(head, len(data))
        del copy[at : at + draw.choice([1, 7, 100])]
    return bytes(copy)


def without_packets(data: bytes, container: str, kind: str, draw: random.Random) -> bytes:
    """Without a packet: a keyframe behind the first, the first, or another."""

    def edit(pieces: list[Piece]) -> list[Piece]:
        keys = [place for place, piece in enumerate(pieces) if piece.key and place]
        others = [place for place in range(1, len(pieces)) if not pieces[place].key]
        choice = {"lost_key": keys or [0], "lost_packet": others or [1], "lost_first": [0]}[kind]
        lost = draw.choice(choice)
        if kind == "lost_key":  # where all packets claim to be keyframes, the one that is
            sizes = [len(piece.data) for piece in pieces]
            lost = max(choice, key=lambda place: sizes[place]) if len(choice) > COUNT // 2 else lost
        return pieces[:lost] + pieces[lost + 1 :]

    return remuxed([data], container, edit)
