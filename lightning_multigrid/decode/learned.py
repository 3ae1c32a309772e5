"""What a decoder learns from packets beyond pictures: a packet is an entry only if it brings what any packet brings.

A decoder that starts at a later packet has not seen those before. Codecs not named here are decoded from the beginning.
"""

from collections.abc import Callable, Iterator

from lightning_multigrid.decode.nal import nal_units

_Unit = tuple[tuple[int, ...] | bytes, bytes]  # what a unit replaces in the decoder, and the unit

# Codecs whose packets bring nothing that outlasts the next entry, or whose units are looked at elsewhere (`nal.py`).
_NOTHING_LEARNED = {
    *("h264", "hevc", "vp8", "vp9", "av1", "libdav1d", "theora", "flv", "h261", "h263", "h263p", "roq"),
    *("msmpeg4", "msmpeg4v1", "msmpeg4v2", "msmpeg4v3", "wmv1", "wmv2", "wmv3", "rv10", "rv20", "svq1"),
    *("cinepak", "snow", "zmbv", "flashsv", "asv1", "asv2", "dvvideo", "prores", "dnxhd", "cfhd", "ffv1"),
    *("ffvhuff", "huffyuv", "utvideo", "magicyuv", "rawvideo", "v210", "v308", "v408", "v410", "png"),
    *("jpeg2000", "amv", "ljpeg", "jpegls", "dxv", "hap", "qoi"),
}

_SEQUENCE, _EXTENSION, _USER_DATA = 0xB3, 0xB5, 0xB2  # MPEG-1 and 2; ISO/IEC 13818-2, table 6-1
_QUANT_TABLES, _HUFFMAN_TABLES, _SCAN = 0xDB, 0xC4, 0xDA  # JPEG; ITU-T T.81, table B.1


class Learned:
    """Looks at the packets of a stream, one after the other. The decoder `codec` knows `extradata` before them."""

    def __init__(self, codec: str, extradata: bytes) -> None:
        self._units = _UNITS.get(codec)
        self._is_listed = self._units is not None or codec in _NOTHING_LEARNED
        self._given = dict(self._units(extradata)) if self._units else {}
        self._keys: list[frozenset[tuple[int, ...] | bytes]] = []
        self._brought: set[tuple[int, ...] | bytes] = set()
        # Of frames, in sequence headers of MPEG-1 and 2. Where the size changes, FFmpeg drops a frame.
        self.sizes: set[bytes] = set()

    def look(self, packet: bytes) -> None:
        units = dict(self._units(packet)) if self._units else {}
        if (_SEQUENCE, 0) in units:
            self.sizes.add(units[_SEQUENCE, 0][:3])
        self._brought |= {key for key, unit in units.items() if self._given.get(key) != unit}
        self._keys.append(frozenset(units))

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
                yield (code, kind), unit
        elif code == _USER_DATA and unit.startswith(b"TMPGEXS"):
            yield (code,), unit
        elif 1 <= code <= 0xAF:  # slices: the picture's own data begin
            return


def _mpeg4(data: bytes) -> Iterator[_Unit]:
    """Video object layers, and what encoders say of themselves, by which FFmpeg works round their faults."""
    for code, unit in _start_codes(data):
        if code == _USER_DATA:
            yield unit, unit
        elif 0x20 <= code <= 0x2F or code in (0xB0, 0xB5):  # ISO/IEC 14496-2, table 6-3
            yield (code,), unit
        elif code == 0xB6:  # the picture
            return


def _mjpeg(data: bytes) -> Iterator[_Unit]:
    """Tables of quantisation and of Huffman codes, each by its number."""
    at = data.find(b"\xff\xd8") + 2
    while 2 <= at < len(data) - 3 and data[at] == 0xFF and data[at + 1] != _SCAN:
        marker, end = data[at + 1], at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        place = at + 4
        while marker in (_QUANT_TABLES, _HUFFMAN_TABLES) and place < min(end, len(data)):
            number = data[place]
            quant = marker == _QUANT_TABLES
            size = 1 + 64 * (1 + (number >> 4)) if quant else 17 + sum(data[place + 1 : place + 17])
            yield (marker, number & (0xF if quant else 0x1F)), data[place : place + size]
            place += size
        at = end


_UNITS: dict[str, Callable[[bytes], Iterator[_Unit]]] = {
    "mpeg1video": _mpeg2,
    "mpeg2video": _mpeg2,
    "mpeg4": _mpeg4,
    "mjpeg": _mjpeg,
}
