"""What a decoder learns from packets beyond pictures: a packet is an entry only if it brings what any packet brings.

A decoder that starts at a later packet has not seen those before. Codecs not named here are decoded from the beginning.
What FFmpeg keeps from one packet to the next is stated in no standard; it was read in the sources of its decoders.
"""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from lightning_multigrid.decode.nal import nal_units

_Key = tuple[int, ...] | bytes


class _Unit(NamedTuple):
    """A part of a packet that outlasts it in the decoder. A later unit with the same `key` takes its place there."""

    key: _Key
    data: bytes
    leads: bool = True  # whether it stands before all parts of its packet that may need it


# Codecs whose packets bring nothing that outlasts the next entry, or whose units are looked at elsewhere (`nal.py`).
_NOTHING_LEARNED = {
    *("h264", "hevc", "vp8", "vp9", "av1", "libdav1d", "theora", "flv", "h261", "rv10", "rv20", "svq1", "snow"),
    *("msmpeg4", "msmpeg4v1", "msmpeg4v2", "wmv1", "wmv2", "wmv3", "zmbv", "flashsv", "asv1", "asv2", "dvvideo"),
    *("prores", "dnxhd", "cfhd", "ffv1", "ffvhuff", "huffyuv", "utvideo", "magicyuv", "rawvideo", "v210", "v308"),
    *("v408", "v410", "jpeg2000", "dxv", "hap", "qoi"),
}

_SEQUENCE, _EXTENSION, _USER_DATA = 0xB3, 0xB5, 0xB2  # MPEG-1 and 2; ISO/IEC 13818-2, table 6-1
# JPEG; ITU-T T.81, table B.1. FFmpeg looks for the next marker wherever it is, also within what it can't decode.
_MARKER = re.compile(rb"\xff[\xc0-\xfe]")
_QUANT_TABLES, _HUFFMAN_TABLES, _SCAN, _COMMENT = 0xDB, 0xC4, 0xDA, 0xFE
_FRAMES = {*range(0xC0, 0xD0), 0xF7} - {_HUFFMAN_TABLES, 0xC8, 0xCC}  # the last one is that of JPEG-LS
_BARE = range(0xD0, 0xDA)  # markers without a segment: restarts, begin and end of a picture


class Learned:
    """Looks at the packets of a stream, one after the other. The decoder `codec` knows `extradata` before them."""

    def __init__(self, codec: str, extradata: bytes) -> None:
        self._units = _UNITS.get(codec)
        self._is_listed = self._units is not None or codec in _NOTHING_LEARNED
        self._given = {unit.key: unit.data for unit in self._units(extradata)} if self._units else {}
        self._keys: list[frozenset[_Key]] = []
        self._brought: set[_Key] = set()

    def look(self, packet: bytes) -> None:
        units = list(self._units(packet)) if self._units else []
        self._brought |= {unit.key for unit in units if self._given.get(unit.key) != unit.data}
        self._keys.append(frozenset(unit.key for unit in units if unit.leads))

    def safe(self) -> list[bool]:
        """Whether each packet brings all that any, even a later one, brings: a decoder that goes back keeps that."""
        if not self._is_listed:
            return [not number for number in range(len(self._keys))]
        return [self._brought <= keys for keys in self._keys]


def _start_codes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The code and the bytes of each unit behind a start code."""
    for start, end in nal_units(data, 0):
        yield data[start], data[start + 1 : end].rstrip(b"\0")


def _mpeg2(data: bytes) -> Iterator[_Unit]:
    """Sequence headers, their extensions, and the note by which FFmpeg knows files of TMPGEnc."""
    for code, unit in _start_codes(data):
        if code in (_SEQUENCE, _EXTENSION):
            # A quantiser matrix extension (3) and those of the sequence (1, 2); others are of one picture.
            kind = unit[0] >> 4 if code == _EXTENSION and unit else 0
            if kind <= 3:
                yield _Unit((code, kind), unit)
            if code == _SEQUENCE:
                yield _Unit(b"size" + unit[:3], b"")  # by its content: where the size changes, FFmpeg drops a frame
        elif code == _USER_DATA and unit.startswith(b"TMPGEXS"):
            yield _Unit((code,), unit)
        elif 1 <= code <= 0xAF:  # slices: the picture's own data begin
            return


def _mpeg4(data: bytes) -> Iterator[_Unit]:
    """Video object layers, and what encoders say of themselves, by which FFmpeg works round their faults."""
    for code, unit in _start_codes(data):
        if code == _USER_DATA:
            yield _Unit(unit, unit)
        elif 0x20 <= code <= 0x2F or code in (0xB0, 0xB5):  # ISO/IEC 14496-2, table 6-3
            yield _Unit((code,), unit)
        elif code == 0xB6:  # the picture
            return


def _mjpeg(data: bytes) -> Iterator[_Unit]:
    """All segments but the scans: tables by their numbers, frames and comments by their content, others by their kind.

    By certain comments FFmpeg takes all later pictures for upside down, or of other colours; by the first frame, it
    takes them for interlaced or not.
    """
    at, leads = 0, True
    while (found := _MARKER.search(data, at)) is not None:
        marker, at = data[found.end() - 1], found.end()
        if marker in _BARE:
            continue
        end = min(at + int.from_bytes(data[at : at + 2], "big"), len(data))
        content = data[at + 2 : end]
        if marker == _SCAN:
            leads = False
        elif marker in (_QUANT_TABLES, _HUFFMAN_TABLES):
            for number, table in _jpeg_tables(content, marker == _QUANT_TABLES):
                yield _Unit((marker, number), table, leads)
        elif marker == _COMMENT or marker in _FRAMES:
            # The second field of a packet has a frame of its own, as the first has.
            yield _Unit(bytes([marker]) + content, content, leads)
        else:
            yield _Unit((marker, *content[:4]), content, leads)
        at = max(end, at)


def _jpeg_tables(content: bytes, quant: bool) -> Iterator[tuple[int, bytes]]:
    """The tables of quantisation, or of Huffman codes, in a segment, each with its number."""
    at = 0
    while at < len(content):
        size = 1 + 64 * (1 + (content[at] >> 4)) if quant else 17 + sum(content[at + 1 : at + 17])
        yield content[at] & (0xF if quant else 0x1F), content[at : at + size]
        at += size


def _png(data: bytes) -> Iterator[_Unit]:
    """Critical chunks, such as a palette, by their kind; ISO/IEC 15948, 5.3."""
    at = 8
    while at + 8 <= len(data):
        size, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        if kind[:1].isupper():
            yield _Unit(kind, b"")
        at += 12 + size


def _h263(data: bytes) -> Iterator[_Unit]:
    """Whether a packet states all modes of the stream: in the extended form of its header, it may leave some out."""
    form = int.from_bytes(data[4:6], "big")  # ITU-T H.263, 5.1.3 and 5.1.4.1
    if len(data) < 6:
        return
    if form >> 10 & 7 != 7 or form >> 7 & 7 == 1:
        yield _Unit(b"modes", b"")


_UNITS: dict[str, Callable[[bytes], Iterator[_Unit]]] = {
    "mpeg1video": _mpeg2,
    "mpeg2video": _mpeg2,
    "mpeg4": _mpeg4,
    "mjpeg": _mjpeg,
    "amv": _mjpeg,
    "jpegls": _mjpeg,
    "png": _png,
    "h263": _h263,
    "h263p": _h263,
}
