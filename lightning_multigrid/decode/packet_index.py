"""The index of a video file as plain data: its packets in decoding order, and what the decoder needs besides them."""

import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

MAX_PIXELS = 2**26
"""8192 x 8192, twice an 8K frame. A few bytes of a header can declare far more, and FFmpeg would allocate that."""

MAX_PACKETS = 2**22
"""39 hours at 30 frames per second."""

# Flags of a packet.
ENTRY = 1  # Decoding can begin here: what is shown from here on needs nothing before it.
SHOWN = 2  # The packet gives a frame of the video.
DROPPABLE = 4  # No other packet needs it.
# It says in which fields its picture is shown. FFmpeg may then take from the frame before whether it is interlaced.
TIMED = 8

# An index as bytes: head, digest, body. The head holds the magic bytes and a CRC-32 of everything after it. The body:
# - frames, rows, columns, orientation, direct, rate, bytes of the file, colours; numbers of seals, bytes of extradata,
#   packets;
# - the seals and the extradata;
# - six columns: one byte with the place of its integers' width in `_WIDTHS`, then one integer per packet.
_MAGIC = b"LMGPI\1"
_HEAD = struct.Struct("<6sI")
_DIGEST = 16
_BODY = struct.Struct("<QIIB?dQ4iBIQ")
_SEAL = struct.Struct("<QI")
_WIDTHS = ("<i1", "<i2", "<i4", "<i8")
_LIMIT = 2**62
_MOST_SEALED = 1 << 23  # bytes that all seals may have together: they are read at each use

_Integers = npt.NDArray[np.int64]


class Orientation(NamedTuple):
    """How to show a stored frame: transpose it first, then turn it over."""

    transposed: bool = False
    upside_down: bool = False
    mirrored: bool = False

    @property
    def quarter_turns(self) -> int:
        """Of 90 degrees, counter-clockwise, as the angle of a display matrix counts them."""
        return (3, 1)[self.upside_down] if self.transposed else 2 * self.mirrored


class Seal(NamedTuple):
    """Where bytes of the file lie that must be those of the file indexed."""

    position: int
    size: int


@dataclass(frozen=True, eq=False)
class PacketIndex:
    """The index of a video file. Its length is the number of frames.

    Times are in ticks of the stream's own clock. Each array has one element per packet, in decoding order. The arrays
    are empty if frames can only be found by counting what the decoder gives out. Contradictory values are a ValueError.

    Args:
        frames: Number of frames.
        rate: Mean frames per second, 0.0 if unknown.
        stored_height: Rows of a stored frame.
        stored_width: Columns of a stored frame.
        orientation: How to show a stored frame.
        direct: Whether the file holds the packets as the decoder takes them, so that FFmpeg's container is not needed.
        extradata: Parameter sets for the decoder; empty unless `direct`.
        colours: Matrix, range, primaries and transfer as the container states them; zeros unless `direct`.
        file_size: Bytes of the file.
        seals: Where the bytes lie that tell the file from others: its table of packets, or its two ends.
        digest: Hash of the sealed bytes and of all other values here. It is no signature: anyone can compute it.
        positions: Where packets begin in the file.
        sizes: Bytes of the packets.
        times: When packets are shown (pts).
        decoding_times: When packets are decoded (dts).
        flags: `ENTRY`, `SHOWN`, `DROPPABLE`, `TIMED`.
        checksums: CRC-32 of the packets' bytes.
    """

    frames: int
    rate: float
    stored_height: int
    stored_width: int
    orientation: Orientation
    direct: bool
    extradata: bytes
    colours: tuple[int, int, int, int]
    file_size: int
    seals: tuple[Seal, ...]
    digest: bytes
    positions: _Integers
    sizes: _Integers
    times: _Integers
    decoding_times: _Integers
    flags: _Integers
    checksums: _Integers

    def __post_init__(self) -> None:
        columns = [self.positions, self.sizes, self.times, self.decoding_times, self.flags, self.checksums]
        height, width = self.stored_height, self.stored_width
        is_countable = 0 <= self.frames < _LIMIT and 0 <= self.file_size < _LIMIT
        faults = {
            "the columns differ in length": len({len(column) for column in columns}) != 1,
            "the size of the frames is impossible": min(height, width) <= 0 or height * width > MAX_PIXELS,
            "the number of frames or the size of the file is impossible": not is_countable,
            "the rate is impossible": not (math.isfinite(self.rate) and self.rate >= 0),
            "the digest is missing": len(self.digest) != _DIGEST,
            "a seal lies beyond the end of the file": any(at + size > self.file_size for at, size in self.seals),
            "the seals are too large": sum(seal.size for seal in self.seals) > _MOST_SEALED,
        }
        for fault, is_there in faults.items():
            if is_there:
                raise ValueError(fault)
        if not len(self.times):
            return
        if any(int(column.min()) < -_LIMIT or int(column.max()) > _LIMIT for column in columns):
            raise ValueError("a number is too large")
        if int(self.sizes.min()) <= 0 or (
            self.direct and (int(self.positions.min()) < 0 or int((self.positions + self.sizes).max()) > self.file_size)
        ):
            raise ValueError("a packet lies beyond the end of the file")
        if len(self.by_time) != self.frames or not self.frames:
            raise ValueError("there are more or fewer frames than packets that are shown")
        shown_at = self.shown_times
        if not bool((shown_at[1:] > shown_at[:-1]).all()):
            raise ValueError("two frames are shown at the same time")
        entries = self.times[self.entries]
        if not len(entries) or entries[0] > shown_at[0] or not bool((entries[1:] > entries[:-1]).all()):
            raise ValueError("the entries are not in order")

    def __len__(self) -> int:
        return self.frames

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PacketIndex) and self.to_bytes() == other.to_bytes()

    def __hash__(self) -> int:
        return hash(self.to_bytes())

    @property
    def height(self) -> int:
        """Rows of a frame when it is shown."""
        return self.stored_width if self.orientation.transposed else self.stored_height

    @property
    def width(self) -> int:
        """Columns of a frame when it is shown."""
        return self.stored_height if self.orientation.transposed else self.stored_width

    @property
    def shown_times(self) -> _Integers:
        """When each frame is shown, ascending."""
        return self.times[self.by_time]

    def time_of(self, frame: int) -> float:
        """Seconds from the first frame to another one, or to the end of the last if `frame` is the number of frames.

        Frames that can only be counted are taken to last equally long. An unknown rate is a ZeroDivisionError.
        """
        if len(self.times) < 2 or not 0 < frame < self.frames:
            return frame / self.rate
        first, time, last = (int(self.times[self.by_time[place]]) for place in (0, frame, -1))
        return (time - first) * (self.frames - 1) / ((last - first) * self.rate)

    @cached_property
    def by_time(self) -> _Integers:
        """For each frame, in the order in which frames are shown, the number of its packet."""
        shown = np.flatnonzero(self.flags & SHOWN)
        return shown[np.argsort(self.times[shown], kind="stable")]

    @cached_property
    def entries(self) -> _Integers:
        """Numbers of the packets at which decoding can begin."""
        return np.flatnonzero(self.flags & ENTRY)

    def digest_for(self, sealed: Sequence[bytes]) -> bytes:
        """The right `digest` if the file's sealed bytes are these."""
        return blake2b(b"".join([self._body, *sealed]), digest_size=_DIGEST).digest()

    def to_bytes(self) -> bytes:
        """Packs the index, into about 12 bytes per packet."""
        body = self.digest + self._body
        return _HEAD.pack(_MAGIC, zlib.crc32(body)) + body

    @cached_property
    def _body(self) -> bytes:
        """All but the digest, packed. Columns hold differences, which are small."""
        gaps = np.diff(self.positions + self.sizes, prepend=0) - self.sizes
        shown_later, decoding_steps = self.times - self.decoding_times, np.diff(self.decoding_times, prepend=0)
        columns = [gaps, self.sizes, shown_later, decoding_steps, self.flags, self.checksums - 2**31]
        size, file = (self.stored_height, self.stored_width), (self.direct, self.rate, self.file_size)
        turns = sum(turn << bit for bit, turn in enumerate(self.orientation))
        counts = len(self.seals), len(self.extradata), len(self.times)
        head = self.frames, *size, turns, *file, *self.colours, *counts
        body = [_BODY.pack(*head), *(_SEAL.pack(*seal) for seal in self.seals), self.extradata]
        for column in columns:
            least, most = (int(column.min()), int(column.max())) if len(column) else (0, 0)
            code = next(n for n in range(4) if -(1 << (8 << n) - 1) <= least and most < 1 << (8 << n) - 1)
            body += [bytes([code]), column.astype(_WIDTHS[code]).tobytes()]
        return b"".join(body)

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> "PacketIndex":
        """Unpacks what `to_bytes` packed; any other bytes are a ValueError."""
        try:
            return cls._unpacked(memoryview(data))
        except (struct.error, ValueError, OverflowError, IndexError) as error:
            raise ValueError(f"These {len(data):,} bytes are no packet index: {error}. Build the index anew.") from None

    @classmethod
    def _unpacked(cls, data: memoryview) -> "PacketIndex":
        magic, checksum = _HEAD.unpack_from(data)
        if magic != _MAGIC:
            raise ValueError("they don't begin as an index does, or are of another version")
        if zlib.crc32(data[_HEAD.size :]) != checksum:
            raise ValueError("their checksum is wrong")
        digest, body = bytes(data[_HEAD.size : _HEAD.size + _DIGEST]), bytes(data[_HEAD.size + _DIGEST :])
        values = _BODY.unpack_from(body)
        frames, height, width, turns, direct, rate, file_size, *colours, seals, extradata_size, packets = values
        at = _BODY.size
        found = tuple(Seal(*_SEAL.unpack_from(body, at + place * _SEAL.size)) for place in range(seals))
        at += seals * _SEAL.size
        extradata = body[at : at + extradata_size]
        at += extradata_size
        columns = []
        for _ in range(6):
            column = np.frombuffer(body, _WIDTHS[body[at]], packets, at + 1)
            at += 1 + column.nbytes
            columns.append(column.astype(np.int64))
        if at != len(body) or turns > 7:
            raise ValueError("their length is not the one that they state")
        gaps, sizes, shown_later, decoding_steps, flags, checksums = columns
        decoding_times = np.cumsum(decoding_steps)
        index = cls(
            frames=frames,
            rate=rate,
            stored_height=height,
            stored_width=width,
            orientation=Orientation(*(bool(turns >> bit & 1) for bit in range(3))),
            direct=direct,
            extradata=extradata,
            colours=(colours[0], colours[1], colours[2], colours[3]),
            file_size=file_size,
            seals=found,
            digest=digest,
            positions=np.cumsum(gaps + sizes) - sizes,
            sizes=sizes,
            times=decoding_times + shown_later,
            decoding_times=decoding_times,
            flags=flags,
            checksums=checksums + 2**31,
        )
        object.__setattr__(index, "_body", body)  # spares `digest_for` packing it again
        return index
