"""The units of H.264 and H.265 packets (NAL units): where decoding can begin, and which pictures nobody refers to."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from lightning_multigrid.decode.packet_index import DROPPABLE, ENTRY, TIMED

_HEADER_BYTES = 48  # the part of a slice that holds the order of its picture
_SET_BYTES = 4096  # of a sequence parameter set that are read here; it may hold scaling lists of 2,000 bytes
# How x264 names its build to decoders. FFmpeg knows two faults: of direct prediction, and of 4:4:4 with 8x8 transforms.
_X264, _LAST_OF_DIRECT_FAULT, _LAST_OF_444_FAULT = re.compile(rb"x264 - core ([0-9]{1,9})"), 33, 150
# Profiles whose sequence parameter sets state chroma and bit depth; 7.3.2.1.1.
_HIGH_PROFILES = {44, 83, 86, 100, 110, 118, 122, 128, 134, 135, 138, 139, 244}
_H265_SETS = {32, 33, 34}  # video, sequence and picture parameter sets; table 7-1


class _Sequence(NamedTuple):
    """The part of a sequence parameter set that tells how slices begin; 7.3.2.1.1."""

    chroma: int
    separate_planes: bool
    bits_of_frame_number: int
    order_type: int
    bits_of_order: int
    frames_only: bool


class H264Packets:
    """The packets of an H.264 stream in decoding order. `extradata` is that of mp4 ("avcC") or has start codes."""

    def __init__(self, extradata: bytes) -> None:
        # For each packet the number of IDR pictures so far, and its picture order count since then.
        self.orders: list[tuple[int, int]] = []
        self._builds: set[int] = set()  # of x264
        self.sure = True  # of the orders, until a new sequence parameter set or a rare way to count pictures
        self.gaps = False  # whether frame numbers leave some out, as where reference pictures are missing
        self.sets_in_band = False  # whether packets hold parameter sets that are not in the extradata
        self._length = length_bytes(extradata, 4)
        self._sets = set(_parameter_sets(extradata))
        self._sequence: _Sequence | None = None
        self._sequence_bytes = b""
        self._before = 0  # order of the last reference picture; 8.2.1.1
        self._number = self._number_before = 0  # of this picture and of the last reference picture; 7.4.3
        for unit in self._sets:
            if unit[0] & 0x1F == 7:
                self._read_sequence(unit)

    @property
    def needs_encoder(self) -> bool:
        """Whether FFmpeg works round faults of the x264 that a packet names, once it has decoded that packet."""
        chroma = 3 if self._sequence is None else self._sequence.chroma
        last = _LAST_OF_444_FAULT if chroma == 3 else _LAST_OF_DIRECT_FAULT
        return any(build <= last for build in self._builds)

    def look(self, packet: bytes) -> int:
        """Returns the flags of the next packet in decoding order; only an IDR picture is an `ENTRY`."""
        slices: list[int] = []
        idr = other = timed = False
        for start, end in nal_units(packet, self._length):
            kind = packet[start] & 0x1F
            if kind in (1, 2, 3, 4, 5, 20, 21):
                slices.append(start)
                idr |= kind == 5
            elif kind == 6:
                timed |= 1 in _messages(packet[start + 1 : end])  # "pic_struct"; D.2.3
                self._builds |= {int(build) for build in _X264.findall(packet, start, end)}
            elif kind in (7, 8, 13, 15):
                other = True
                unit = packet[start:end].rstrip(b"\0")
                if unit not in self._sets:
                    self.sets_in_band = True
                    if kind == 7:
                        self._read_sequence(unit)
        refers = [packet[start] >> 5 & 3 for start in slices]
        try:
            order = self._order(packet, slices[0], idr)
        except (IndexError, ValueError):
            order, self.sure = 0, False
        if any(refers):
            self._before, self._number_before = order, self._number
        self.orders.append(((self.orders[-1][0] if self.orders else 0) + idr, order))
        droppable = bool(slices) and not any(refers) and not other
        return ENTRY * idr | DROPPABLE * droppable | TIMED * timed

    def _read_sequence(self, unit: bytes) -> None:
        if self._sequence_bytes not in (b"", unit):
            self.sure = False
        self._sequence_bytes = unit
        try:
            self._sequence = _sequence(_Bits(unit[1:_SET_BYTES]))
        except ValueError:
            self.sure = False

    def _order(self, packet: bytes, start: int, idr: bool) -> int:
        sequence = self._sequence
        if sequence is None or sequence.order_type == 1:
            raise ValueError
        bits = _Bits(packet[start + 1 : start + _HEADER_BYTES])  # 7.3.3
        for _ in range(3):  # first macroblock, type, picture parameter set
            bits.golomb()
        bits.take(2 if sequence.separate_planes else 0)
        self._number = bits.take(sequence.bits_of_frame_number)
        if idr:
            self._before = 0
        elif (self._number - self._number_before) % (1 << sequence.bits_of_frame_number) > 1:
            self.gaps = True
        if sequence.order_type == 2:  # pictures are shown as they are stored
            return 0 if idr else self.orders[-1][1] + 1
        if not sequence.frames_only and bits.take(1):
            bits.take(1)
        if idr:
            bits.golomb()
        low, cycle = bits.take(sequence.bits_of_order), 1 << sequence.bits_of_order
        # The order nearest to that of the last reference picture, the later of two; 8.2.1.1.
        half = cycle // 2
        return self._before + half - (self._before + half - low) % cycle


class H265Packets:
    """The packets of an H.265 stream in decoding order. `extradata` is that of mp4 ("hvcC") or has start codes."""

    def __init__(self, extradata: bytes) -> None:
        self.sets_in_band = False  # whether packets hold parameter sets that are not in the extradata
        self.whole: list[int] = []  # numbers of the packets that hold parameter sets of all three kinds
        self._extradata = extradata
        self._length = length_bytes(extradata, 21)
        self._packets = 0

    def is_entry(self, packet: bytes) -> bool:
        """Whether the next packet in decoding order is an IRAP picture: what is shown later needs nothing before it."""
        kinds = set()
        for start, end in nal_units(packet, self._length):
            kind = packet[start] >> 1 & 0x3F
            kinds.add(kind)
            if kind in _H265_SETS and packet[start:end].rstrip(b"\0") not in self._extradata:
                self.sets_in_band = True
        if kinds >= _H265_SETS:
            self.whole.append(self._packets)
        self._packets += 1
        return any(16 <= kind <= 21 for kind in kinds)


def nal_units(packet: bytes, length_bytes: int) -> Iterator[tuple[int, int]]:
    """Where the units of a packet begin and end, behind lengths of `length_bytes` bytes, or start codes if it is 0."""
    if not length_bytes:
        at = packet.find(b"\0\0\1")
        while 0 <= at < len(packet) - 3:
            following = packet.find(b"\0\0\1", at + 3)
            yield at + 3, following if following >= 0 else len(packet)
            at = following
        return
    at = length_bytes
    while at < len(packet):
        end = at + int.from_bytes(packet[at - length_bytes : at], "big")
        yield at, min(end, len(packet))
        at = end + length_bytes


def length_bytes(extradata: bytes, place: int) -> int:
    """Bytes of the length before each unit, as mp4 and Matroska have it; 0 if there are start codes."""
    return (extradata[place] & 3) + 1 if extradata[:1] == b"\1" and len(extradata) > place else 0


def _messages(unit: bytes) -> Iterator[int]:
    """Kinds of the messages in a unit of supplemental enhancement information; 7.3.2.3.1."""
    at = 0
    while at < len(unit) - 2:
        numbers = []
        for _ in range(2):  # kind and size
            number = 0
            while at < len(unit) - 1 and unit[at] == 255:
                number, at = number + 255, at + 1
            numbers.append(number + unit[at])
            at = min(at + 1, len(unit) - 1)
        yield numbers[0]
        at += numbers[1]


def _parameter_sets(extradata: bytes) -> Iterator[bytes]:
    """The units of an "avcC" record (ISO/IEC 14496-15, 5.3.3.1.2), or those behind start codes."""
    if extradata[:1] != b"\1":
        for start, end in nal_units(extradata, 0):
            yield extradata[start:end].rstrip(b"\0") or b"\0"
        return
    at = 5
    for mask in (0x1F, 0xFF):
        count, at = (extradata[at] & mask if at < len(extradata) else 0), at + 1
        for _ in range(count):
            size = int.from_bytes(extradata[at : at + 2], "big")
            unit, at = extradata[at + 2 : at + 2 + size], at + 2 + size
            yield unit.rstrip(b"\0") or b"\0"


def _sequence(bits: "_Bits") -> _Sequence:
    profile = bits.take(8)
    bits.take(16)
    bits.golomb()
    chroma, separate = 1, False
    if profile in _HIGH_PROFILES:
        chroma = bits.golomb()
        separate = chroma == 3 and bool(bits.take(1))
        bits.golomb()
        bits.golomb()
        bits.take(1)
        if bits.take(1):  # scaling matrix; 7.3.2.1.1.1
            for place in range(12 if chroma == 3 else 8):
                if bits.take(1):
                    _skip_scaling_list(bits, 16 if place < 6 else 64)
    frame_number = bits.golomb() + 4
    order_type = bits.golomb()
    order = bits.golomb() + 4 if order_type == 0 else 0
    if order_type == 1:
        bits.take(1)
        bits.signed_golomb()
        bits.signed_golomb()
        for _ in range(min(bits.golomb(), 256)):
            bits.signed_golomb()
    bits.golomb()  # number of reference frames
    bits.take(1)
    bits.golomb()  # width and height in macroblocks
    bits.golomb()
    return _Sequence(chroma, separate, frame_number, order_type, order, bool(bits.take(1)))


def _skip_scaling_list(bits: "_Bits", size: int) -> None:
    scale = 8
    for _ in range(size):
        scale = (scale + bits.signed_golomb()) % 256
        if not scale:  # the rest of the list repeats its last number, and is not written
            return


class _Bits:
    """Bits of a unit, most significant first, without the bytes that prevent false start codes; 7.4.1, 9.1."""

    def __init__(self, unit: bytes) -> None:
        plain = unit.replace(b"\0\0\3", b"\0\0")
        self._left = 8 * len(plain)
        self._value = int.from_bytes(plain, "big")

    def take(self, count: int) -> int:
        if count > self._left:
            raise ValueError("a unit ends too early")
        self._left -= count
        taken = self._value >> self._left
        self._value &= (1 << self._left) - 1
        return taken

    def golomb(self) -> int:
        zeros = self._left - self._value.bit_length()
        if zeros > 32:
            raise ValueError("a number is too long")
        return self.take(2 * zeros + 1) - 1

    def signed_golomb(self) -> int:
        number = self.golomb()
        return (number + 1) // 2 if number % 2 else -number // 2
