"""Makes interlaced H.264 whose fields are pictures of their own (PAFF), as broadcasters do. x264 has no such mode.

Each field is a slice of raw samples (I_PCM), so that writing it takes no encoder. Numbers are sections of ITU-T H.264.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

SIDE = 32
"""Height and width of a frame: fields of 2 x 1 macroblocks."""

_IDR, _SLICE, _SPS, _PPS = 5, 1, 7, 8
_ORDER_BITS = 8


class _Bits:
    def __init__(self) -> None:
        self.digits = ""

    def put(self, value: int, count: int) -> None:
        self.digits += f"{value:0{count}b}"

    def golomb(self, *values: int) -> None:
        for value in values:
            self.digits += "0" * ((value + 1).bit_length() - 1) + f"{value + 1:b}"

    def align(self) -> None:
        self.digits += "0" * (-len(self.digits) % 8)

    def unit(self, kind: int, importance: int) -> bytes:
        """The unit, behind a start code, with its trailing bits and the bytes that keep start codes apart."""
        self.digits += "1"
        self.align()
        payload = int(self.digits, 2).to_bytes(len(self.digits) // 8, "big")
        escaped, zeros = bytearray(), 0
        for byte in payload:
            if zeros == 2 and byte <= 3:
                escaped.append(3)
                zeros = 0
            escaped.append(byte)
            zeros = 0 if byte else zeros + 1
        return b"\0\0\0\1" + bytes([importance << 5 | kind]) + bytes(escaped)


def _parameter_sets() -> bytes:
    sequence = _Bits()  # 7.3.2.1.1
    for number in (77, 0, 30):  # Main profile, level 3
        sequence.put(number, 8)
    sequence.golomb(0, 0, 0, _ORDER_BITS - 4, 2)  # id, 4 bits of frame number, order type 0, its bits, references
    sequence.put(0, 1)
    sequence.golomb(SIDE // 16 - 1, SIDE // 32 - 1)
    sequence.put(0b00100, 5)  # not frames only, no adaptive macroblocks, direct inference, no cropping, no VUI
    picture = _Bits()  # 7.3.2.2
    picture.golomb(0, 0)
    picture.put(0, 2)
    picture.golomb(0, 0, 0)
    picture.put(0, 3)
    picture.golomb(0, 0, 0)
    picture.put(0b100, 3)  # deblocking is controlled by slices
    return sequence.unit(_SPS, 3) + picture.unit(_PPS, 3)


def _field(luma: int, *, order: int, number: int, bottom: bool, refers: bool, idr: bool) -> bytes:
    bits = _Bits()  # 7.3.3
    bits.golomb(0, 7, 0)  # first macroblock, all slices are I, parameter set
    bits.put(number % 16, 4)
    bits.put(0b11 if bottom else 0b10, 2)
    if idr:
        bits.golomb(0)
    bits.put(order % (1 << _ORDER_BITS), _ORDER_BITS)
    if refers:
        bits.put(0, 2 if idr else 1)
    bits.golomb(0, 1)  # quantiser as it is, no deblocking
    for _ in range(SIDE // 16):
        bits.golomb(25)  # I_PCM; 7.3.5
        bits.align()
        bits.put(int.from_bytes(bytes([luma] * 256 + [128] * 128), "big"), 8 * 384)
    return bits.unit(_IDR if idr else _SLICE, 1 if refers else 0)


def write_field_pictures(path: Path, lumas: Sequence[tuple[int, int]], *, gop: int, packets_per_frame: int) -> Path:
    """Writes frames of two fields, top and bottom, each of one brightness. Every other frame is one nobody refers to.

    Args:
        path: An mp4 file.
        lumas: Of the fields of each frame.
        gop: Frames from one IDR picture to the next; odd, so that it ends with a frame that others may refer to.
        packets_per_frame: 1 for both fields in one packet, 2 for a packet each.
    """
    raw = path.with_suffix(".h264")
    pictures: list[tuple[int, bool, list[bytes]]] = []
    number = 0
    for first in range(0, len(lumas), gop):
        places = list(range(first, min(first + gop, len(lumas))))
        # Decoded first are those that are shown after the ones that nobody refers to.
        order = places[:1] + [place for pair in zip(places[2::2], places[1::2], strict=True) for place in pair]
        for place in order:
            idr, refers = place == first, (place - first) % 2 == 0
            number = 0 if idr else number
            of_frame = {"number": number, "refers": refers}
            fields = [
                _field(
                    luma, order=2 * (place - first) + bottom, bottom=bool(bottom), idr=idr and not bottom, **of_frame
                )
                for bottom, luma in enumerate(lumas[place])
            ]
            number += refers
            pictures.append((place, idr, fields))
    raw.write_bytes(_parameter_sets() + b"".join(field for _, _, fields in pictures for field in fields))
    with av.open(str(raw)) as source, av.open(str(path), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        stream.time_base = Fraction(1, 50)
        for decoded, (place, idr, fields) in enumerate(pictures):
            parts = [b"".join(fields)] if packets_per_frame == 1 else fields
            for part, data in enumerate(parts):
                packet = av.Packet(data)
                packet.stream, packet.time_base = stream, Fraction(1, 50)
                packet.pts, packet.dts = 2 * place + part + 2, 2 * decoded + part
                packet.duration = 2 // packets_per_frame
                packet.is_keyframe = idr and not part
                target.mux(packet)
    return path


def expected_frames(lumas: Sequence[tuple[int, int]]) -> np.ndarray:
    """Brightness of each row of each frame: T x SIDE."""
    return np.array([[top, bottom] * (SIDE // 2) for top, bottom in lumas])
