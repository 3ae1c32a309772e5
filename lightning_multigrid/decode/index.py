"""What a video file holds, as plain data: its packets in decoding order, and what they take to be decoded.

An index is built once (`decode.build_index`), kept, and written to disk. Nothing here opens a video.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["DROPPABLE", "ENTRY", "MAX_PIXELS", "SHOWN", "Orientation", "PacketIndex", "Run", "Seal"]

MAX_PIXELS = 2**26
"""8192 x 8192, twice an 8K frame. A few bytes of a header can declare far more, and FFmpeg would allocate it."""

# Flags of a packet.
ENTRY = 1
"""Decoding can begin here: what is shown from here on needs nothing before it."""
SHOWN = 2
"""A frame of the video comes of it."""
DROPPABLE = 4
"""No other packet needs it."""

_MAGIC = b"LMGPI\1"
# Magic and checksum of what follows, then the digest; frames, H, W, orientation, direct, rate, bytes of the file,
# colours, and the numbers of seals, of bytes of extradata and of packets.
_HEAD = struct.Struct("<6sI")
_BODY = struct.Struct("<QIIB?dQ4iBIQ")
_SEAL = struct.Struct("<QI")
_DIGEST = 16
_WIDTHS = ("<i1", "<i2", "<i4", "<i8")
_LIMIT = 2**62
# Bytes that seals may have, all in all: they are read at each use.
_MOST_SEALED = 1 << 23

_Integers = npt.NDArray[np.int64]


class Orientation(NamedTuple):
    """How a frame as it is stored becomes one as it is shown: transposed first, then turned over."""

    transposed: bool = False
    upside_down: bool = False
    mirrored: bool = False


class Seal(NamedTuple):
    """Bytes of a file by which it is known to be the one indexed."""

    position: int
    size: int


class Run(NamedTuple):
    """Packets that are decoded in one go.

    Args:
        packets: Numbers of those to decode, ascending. The first is an entry.
        shown: Numbers of those among them whose frames are sure to come out, in the order in which they do.
        wanted: Number of a packet -> number of its frame, for the frames asked for.
    """

    packets: list[int]
    shown: list[int]
    wanted: dict[int, int]


@dataclass(frozen=True, eq=False)
class PacketIndex:
    """What a video file holds. Its length is its number of frames.

    Times are in ticks of the stream's own clock. All sequences have one element per packet, in decoding order. They are
    empty if frames can only be told by counting what the decoder gives out.

    Args:
        frames: Number of frames.
        rate: Mean frames per second, 0.0 if unknown.
        stored_height: Rows of a frame as it is stored.
        stored_width: Columns of a frame as it is stored.
        orientation: How it is shown.
        direct: Whether packets stand in the file as they are decoded, so that no container is needed to read them.
        extradata: What the decoder needs besides the packets; kept for `direct` only.
        colours: Matrix, range, primaries and transfer as the container tells them; kept for `direct` only.
        file_size: Bytes of the file.
        seals: What else tells the file from others: its table of packets, or its two ends.
        digest: Of the sealed bytes and of all the above and below, so that an index that was changed by whatever is no
            longer one of the file. It keeps no secret: who runs this code can make another.
        positions: Where packets begin in the file.
        sizes: Their bytes.
        times: When they are shown (pts).
        decoding_times: When they are decoded (dts).
        flags: `ENTRY`, `SHOWN`, `DROPPABLE`.
        checksums: CRC-32 of their bytes.

    Raises:
        ValueError: If the values contradict each other.
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
        columns = self._columns()
        if len({len(column) for column in columns}) != 1:
            raise ValueError("the columns differ in length")
        if not (self.stored_height > 0 and self.stored_width > 0 and 0 <= self.frames < _LIMIT):
            raise ValueError("no frames of a possible size")
        if self.stored_height * self.stored_width > MAX_PIXELS:
            raise ValueError("no frames of a possible size")
        if not (math.isfinite(self.rate) and self.rate >= 0 and 0 <= self.file_size < _LIMIT):
            raise ValueError("no possible rate or file size")
        if len(self.digest) != _DIGEST:
            raise ValueError("no digest")
        if any(seal.position + seal.size > self.file_size for seal in self.seals):
            raise ValueError("a seal lies beyond the end of the file")
        if sum(seal.size for seal in self.seals) > _MOST_SEALED:
            raise ValueError("the seals are too large")
        if not len(self.times):
            return
        if any(int(column.min()) < -_LIMIT or int(column.max()) > _LIMIT for column in columns):
            raise ValueError("a number is too large")
        if int(self.sizes.min()) <= 0 or (
            self.direct and (int(self.positions.min()) < 0 or int((self.positions + self.sizes).max()) > self.file_size)
        ):
            raise ValueError("a packet lies beyond the end of the file")
        if len(self._by_time) != self.frames or not self.frames:
            raise ValueError("the number of frames is not that of the packets shown")
        shown_at = self.shown_times
        if not bool((shown_at[1:] > shown_at[:-1]).all()):
            raise ValueError("two frames are shown at one time")
        entries = self.times[self._entries]
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
        """Rows of a frame as it is shown."""
        return self.stored_width if self.orientation.transposed else self.stored_height

    @property
    def width(self) -> int:
        """Columns of a frame as it is shown."""
        return self.stored_height if self.orientation.transposed else self.stored_width

    @property
    def shown_times(self) -> _Integers:
        """When the frames are shown, ascending."""
        return self.times[self._by_time]

    def time_of(self, frame: int) -> float:
        """Seconds from the first frame to another one, or, for the number of frames, to the end of the last.

        Frames may be shown for unequal times; where they can only be counted, equal ones are taken.

        Raises:
            ZeroDivisionError: If the rate is unknown.
        """
        if len(self.times) < 2 or not 0 < frame < self.frames:
            return frame / self.rate
        first, time, last = (int(self.times[self._by_time[place]]) for place in (0, frame, -1))
        return (time - first) * (self.frames - 1) / ((last - first) * self.rate)

    @cached_property
    def _by_time(self) -> _Integers:
        """Numbers of the packets of which frames come, in the order in which these are shown."""
        shown = np.flatnonzero(self.flags & SHOWN)
        return shown[np.argsort(self.times[shown], kind="stable")]

    @cached_property
    def _entries(self) -> _Integers:
        return np.flatnonzero(self.flags & ENTRY)

    def runs(self, wanted: Sequence[int]) -> list[Run]:
        """What to decode for some frames.

        A run begins at the last entry before a frame, leaves out what nobody needs, and ends with the last packet
        needed. Runs between which no packet lies are one.

        Args:
            wanted: Numbers of frames, ascending.

        Raises:
            ValueError: If the index contradicts itself.
        """
        packets = self._by_time[np.asarray(wanted, np.int64)]
        starts = self._entries[np.searchsorted(self.times[self._entries], self.times[packets], "right") - 1]
        stretches: list[tuple[int, int, dict[int, int]]] = []
        for frame, packet, start in zip(wanted, packets.tolist(), starts.tolist(), strict=True):
            if start > packet:
                raise ValueError("an entry is decoded after what is shown after it")
            if stretches and start <= stretches[-1][1] + 1:
                first, last, members = stretches[-1]
                members[packet] = frame
                stretches[-1] = first, max(last, packet), members
            else:
                stretches.append((start, packet, {packet: frame}))
        return [self._run(first, last, members) for first, last, members in stretches]

    def _run(self, first: int, last: int, wanted: dict[int, int]) -> Run:
        needed = self.flags[first : last + 1] & DROPPABLE == 0
        needed[[packet - first for packet in wanted]] = True
        packets = first + np.flatnonzero(needed)
        # What is shown before the entry leads an open GOP: it may need what lies before.
        shown = packets[(self.flags[packets] & SHOWN != 0) & (self.times[packets] >= self.times[first])]
        shown = shown[np.argsort(self.times[shown], kind="stable")]
        return Run(packets.tolist(), shown.tolist(), wanted)

    def _columns(self) -> list[_Integers]:
        return [self.positions, self.sizes, self.times, self.decoding_times, self.flags, self.checksums]

    def digest_for(self, sealed: Sequence[bytes]) -> bytes:
        """What `digest` has to be if the sealed bytes are these."""
        digest = blake2b(self._body, digest_size=_DIGEST)
        for data in sealed:
            digest.update(data)
        return digest.digest()

    def to_bytes(self) -> bytes:
        """The index as bytes, about 12 per packet."""
        body = self.digest + self._body
        return _HEAD.pack(_MAGIC, zlib.crc32(body)) + body

    @cached_property
    def _body(self) -> bytes:
        """All but the digest."""
        ends = self.positions + self.sizes
        columns = [
            np.diff(ends, prepend=0) - self.sizes,
            self.sizes,
            self.times - self.decoding_times,
            np.diff(self.decoding_times, prepend=0),
            self.flags,
            self.checksums - 2**31,
        ]
        body = [
            _BODY.pack(
                self.frames,
                self.stored_height,
                self.stored_width,
                sum(turn << bit for bit, turn in enumerate(self.orientation)),
                self.direct,
                self.rate,
                self.file_size,
                *self.colours,
                len(self.seals),
                len(self.extradata),
                len(self.times),
            ),
            *(_SEAL.pack(*seal) for seal in self.seals),
            self.extradata,
        ]
        for column in columns:
            code = _narrowest(column)
            body += [bytes([code]), column.astype(_WIDTHS[code]).tobytes()]
        return b"".join(body)

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> PacketIndex:
        """The index that `to_bytes` wrote.

        Raises:
            ValueError: If the bytes are anything else.
        """
        try:
            return cls._parsed(memoryview(data))
        except (struct.error, ValueError, OverflowError, IndexError) as error:
            raise ValueError(f"These {len(data):,} bytes are no packet index: {error}. Build the index anew.") from None

    @classmethod
    def _parsed(cls, data: memoryview) -> PacketIndex:
        magic, checksum = _HEAD.unpack_from(data)
        if magic != _MAGIC:
            raise ValueError("they begin otherwise, or are of another version")
        if zlib.crc32(data[_HEAD.size :]) != checksum:
            raise ValueError("their checksum is wrong")
        digest, data = bytes(data[_HEAD.size : _HEAD.size + _DIGEST]), data[_HEAD.size + _DIGEST :]
        values: tuple[Any, ...] = _BODY.unpack_from(data)
        frames, height, width, turns, direct, rate, file_size, *colours, seals, extra, packets = values
        at = _BODY.size
        found = tuple(Seal(*_SEAL.unpack_from(data, at + place * _SEAL.size)) for place in range(seals))
        at += seals * _SEAL.size
        extradata = bytes(data[at : at + extra])
        at += extra
        columns = []
        for _ in range(6):
            width_code = _WIDTHS[data[at]]
            column = np.frombuffer(data, width_code, packets, at + 1)
            at += 1 + column.nbytes
            columns.append(column.astype(np.int64))
        if at != len(data) or turns > 7:
            raise ValueError("they have another length than they say")
        gaps, sizes, shown_later, decoding_steps, flags, checksums = columns
        decoding_times = np.cumsum(decoding_steps)
        index = cls(
            frames,
            rate,
            height,
            width,
            Orientation(*(bool(turns >> bit & 1) for bit in range(3))),
            direct,
            extradata,
            (colours[0], colours[1], colours[2], colours[3]),
            file_size,
            found,
            digest,
            np.cumsum(gaps + sizes) - sizes,
            sizes,
            decoding_times + shown_later,
            decoding_times,
            flags,
            checksums + 2**31,
        )
        index.__dict__["_body"] = bytes(data)  # what the property would make of it
        return index


def _narrowest(column: _Integers) -> int:
    least, most = (int(column.min()), int(column.max())) if len(column) else (0, 0)
    return next(code for code in range(4) if -(1 << (8 << code) - 1) <= least and most < 1 << (8 << code) - 1)
