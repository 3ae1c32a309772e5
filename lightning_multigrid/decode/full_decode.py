"""One decode of a video file from its beginning to its end, and the table that comes of it; see `README.md`."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import av
import numpy as np
from av.packet import Packet
from av.stream import Disposition
from av.video.frame import VideoFrame
from typing_extensions import Self

from lightning_multigrid.decode.frame_pixels import orientation_of
from lightning_multigrid.decode.frame_table import (
    HDR,
    MADE_BY,
    MAX_PACKETS,
    Coding,
    Damage,
    FrameTable,
    Integers,
    checksum,
)
from lightning_multigrid.decode.limits import Budget, claimed_by_samples
from lightning_multigrid.decode.packets import decode_packets, give_number, needed_packets, number_of
from lightning_multigrid.decode.video_file import VideoError, VideoFile
from lightning_multigrid.files import READ_TIMEOUT, Cursor, StrPath

_UNKNOWN = -(2**63)
_WINDOW = 64  # bytes behind the place that FFmpeg tells of a packet, in which its data may begin: heads of blocks
_WIDEST = 8  # of pixels; what says to be wider is a mistake
_CURVES = {16: "PQ", 18: "HLG"}  # of the transfer characteristics, ITU-T H.273, table 3
_RETRIES = 2  # decodes of the whole file that trying entries anew may cost
_APART = 16  # from one frame that is tried to the next, with what is droppable left out
_SHARE, _SECONDS = 0.9, 1.0  # of the length that a file declares, which it must have; and what it may lack at least


@dataclass
class _Seen:
    """What was seen of frames and packets, in their orders; a time that isn't known is `_UNKNOWN`."""

    packets: array[int] = field(default_factory=lambda: array("q"))
    checksums: array[int] = field(default_factory=lambda: array("q"))
    times: array[int] = field(default_factory=lambda: array("q"))
    positions: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("q"))
    clock: array[int] = field(default_factory=lambda: array("q"))
    keys: array[int] = field(default_factory=lambda: array("q"))  # numbers of the keyframes' packets
    damaged: list[int] = field(default_factory=list)  # numbers of packets that are refused or concealed
    refused: int = 0
    concealed: int = 0
    end: float = 0.0  # seconds at which the last of the file's streams ends


class FullDecode:
    """A video file that is decoded once, from its beginning, past damage. Iterate it for the frames as they are stored.

    A `VideoError` if the file is missing, cut short, no video, too slow, or has frames above 67 megapixels.

    Args:
        path: An ordinary file on disk, whatever its name looks like.
        read_timeout: Seconds that a read of the file may take before it is an error.

    Attributes:
        file: The open file.
        height: Rows of a frame when it is shown, once the first frame is there.
        width: Columns of a frame when it is shown, once the first frame is there.
        orientation: How to show a stored frame, once the first frame is there.
    """

    def __init__(self, path: StrPath, *, read_timeout: float = READ_TIMEOUT) -> None:
        self.file = VideoFile(os.fspath(path), read_timeout)
        self._seen = _Seen()
        self._bytes = Cursor(self.file.bytes, self.file.path)  # of its own: it reads in large pieces, as FFmpeg's does
        self._began = False
        self._opened = ExitStack()
        self._opened.callback(self.file.close)
        try:
            with self.file.faults():
                if (claimed := claimed_by_samples(self.file.bytes)) > self.file.bytes.size:
                    held = f"its frames claim at least {claimed} bytes, {self.file.bytes.size} are there"
                    raise VideoError(self.file.path, f"damaged: {held}")
                container, self._stream = self.file.open()
                self._container = self._opened.enter_context(container)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._opened.close()

    def release(self) -> VideoFile:
        """Closes all but the file itself, and hands that over."""
        self._container.close()
        self._opened.pop_all()
        return self.file

    def __iter__(self) -> Iterator[VideoFrame]:
        """Decodes the file; to be done once."""
        budget, codec = Budget(self.file.bytes.size), self._stream.codec_context
        packets, corrupt, refusal = self._container.demux(), False, None
        with self.file.faults():
            while True:
                try:
                    packet = next(packets, None)
                except av.FFmpegError as error:
                    packet, refusal = None, refusal or error
                    self._refuse()  # what follows can't be read
                if packet is not None and (not packet.size or not self._is_of_video(packet)):
                    continue
                if packet is not None:
                    corrupt = packet.is_corrupt
                    self._add(packet)
                try:
                    frames = codec.decode(packet)
                except av.FFmpegError as error:
                    frames, refusal = [], refusal or error
                    self._refuse()
                if problem := budget.spend(sum(frame.width * frame.height for frame in frames)):
                    raise VideoError(self.file.path, problem)
                for frame in frames:
                    self._see(frame)
                    yield frame
                if packet is None:
                    break
            if corrupt and self._container.format.name != "mpegts":  # a transport stream is cut anywhere
                raise VideoError(self.file.path, "cut short: its last packet is not all there")
            self._refuse_cut_short()
            if not self._began:
                raise refusal or VideoError(self.file.path, "holds no frame that can be decoded")

    def _is_of_video(self, packet: Packet[Any]) -> bool:
        if packet.pts is not None and packet.time_base:
            end = float((packet.pts + (packet.duration or 0)) * packet.time_base)
            self._seen.end = max(self._seen.end, end)
        return packet.stream_index == self._stream.index

    def _add(self, packet: Packet[Any]) -> None:
        """Notes a packet, and where the file holds it in one piece."""
        seen = self._seen
        count = len(seen.sizes)
        give_number(packet, count)
        if count >= MAX_PACKETS:
            raise VideoError(self.file.path, f"holds more than {MAX_PACKETS} packets")
        position = -1
        if packet.pos is not None and packet.pos >= 0:
            self._bytes.seek(packet.pos)
            found = self._bytes.read(packet.size + _WINDOW).find(bytes(packet))
            position = packet.pos + found if found >= 0 else -1
        seen.positions.append(position)
        seen.sizes.append(packet.size)
        seen.clock.append(_UNKNOWN if packet.dts is None else packet.dts)
        if packet.is_keyframe:
            seen.keys.append(count)

    def _refuse(self) -> None:
        self._seen.refused += 1
        self._seen.damaged.append(max(0, len(self._seen.sizes) - 1))

    def _see(self, frame: VideoFrame) -> None:
        seen, count = self._seen, number_of(frame)
        if not self._began:
            self._began, self.orientation, self._transfer = True, orientation_of(frame), int(frame.color_trc)
            square = round(frame.width * self._aspect())
            self.stored_height, self.stored_width, self.square_width = frame.height, frame.width, square
            shown = frame.height, square
            self.height, self.width = shown[::-1] if self.orientation.transposed else shown
        # Frames without a display matrix ask for no turn.
        elif round(frame.rotation / 90) % 4 not in (0, self.orientation.quarter_turns):
            raise VideoError(self.file.path, f"frame {len(seen.times)} is to be turned otherwise than the first")
        seen.packets.append(len(seen.sizes) - 1 if count < 0 else count)
        seen.checksums.append(checksum(frame))
        seen.times.append(_UNKNOWN if frame.pts is None else frame.pts)
        if frame.is_corrupt:
            seen.concealed += 1
            seen.damaged.append(seen.packets[-1])

    def _aspect(self) -> Fraction:
        """Width of a pixel in heights of it."""
        aspect = self._stream.sample_aspect_ratio or Fraction(1)
        return aspect if Fraction(1, _WIDEST) <= aspect <= _WIDEST else Fraction(1)

    def _refuse_cut_short(self) -> None:
        """Refuses a file none of whose streams is as long as the file's head says."""
        declared, end = self._declared_seconds, self._seen.end
        if 0 < end < min(_SHARE * declared, declared - _SECONDS):
            raise VideoError(
                self.file.path, f"cut short: it ends at {end:.1f} s of the {declared:.1f} s that it declares"
            )

    @property
    def _declared_seconds(self) -> float:
        return float((self._container.duration or 0) / av.time_base)

    @property
    def declared_frames(self) -> int:
        """Number of frames as the container states it, 0 if it doesn't."""
        return self._stream.frames or round(self._declared_seconds * self.rate)

    @property
    def rate(self) -> float:
        """Mean frames per second as the container states it, 0.0 if it doesn't."""
        return float(self._stream.average_rate or 0)

    def table(self, *, entries: bool) -> FrameTable:
        """The table of a file that was decoded to its end.

        Its frames have their `entries`, for which the file is decoded once more, or they are all decoded from the
        beginning.
        """
        with self.file.faults():
            table = self._table()
            return self._with_damaged_frames(self._with_entries(table) if entries else table)
        raise AssertionError  # for the type checker: `faults` swallows nothing

    def _table(self) -> FrameTable:
        seen, codec = self._seen, self._stream.codec_context
        times = np.array(seen.times)
        rate = self.rate
        if _UNKNOWN in seen.times or not bool((times[1:] > times[:-1]).all()):
            times = times[:0]
        if len(times) > 1 and self._stream.time_base is not None:
            rate = float((len(times) - 1) / (int(times[-1] - times[0]) * self._stream.time_base))
        colours = int(codec.colorspace), int(codec.color_range), int(codec.color_primaries), int(codec.color_trc)
        coding = Coding(
            decoder=codec.name,
            width=codec.width,
            height=codec.height,
            tag=codec.codec_tag,
            bits=codec.bits_per_coded_sample,
            colours=colours,
            extradata=bytes(codec.extradata or b""),
        )
        return FrameTable(
            file_size=self.file.bytes.size,
            made_by=MADE_BY,
            codec=codec.codec.canonical_name,
            coding=coding,
            rate=rate,
            stored_height=self.stored_height,
            stored_width=self.stored_width,
            square_width=self.square_width,
            orientation=self.orientation,
            direct=False,
            damage=Damage(concealed=seen.concealed, refused=seen.refused),
            notes=self._notes(),
            made_from="",
            packets=np.array(seen.packets),
            entries=np.zeros(len(seen.packets), np.int64),
            checksums=np.array(seen.checksums),
            times=times,
            damaged=np.empty(0, np.int64),
            positions=np.array(seen.positions),
            sizes=np.array(seen.sizes),
            droppable=np.empty(0, np.int64),
            clock=np.array(seen.clock),
        )

    def _with_entries(self, table: FrameTable) -> FrameTable:
        """The table with its entries, and without a container if a decoder finds as many of them so."""
        tables = [table]
        if min(self._seen.positions) >= 0:
            tables.insert(0, replace(table, direct=True, clock=table.clock[:0]))
        best, most = table, -1
        for tried in tables:
            entries = _find_entries(self.file, tried, self._seen.keys)
            if (found := int((entries >= 0).sum())) > most:
                best, most = replace(tried, entries=np.maximum(entries, 0)), found
            if most == len(table):
                break
        return replace(best, droppable=_find_droppable(self.file, best))

    def _with_damaged_frames(self, table: FrameTable) -> FrameTable:
        """The table that says of each frame whether there is damage between its entry and itself."""
        if not self._seen.damaged:
            return table
        before = np.zeros(len(table.sizes) + 1, np.int64)
        before[np.array(self._seen.damaged) + 1] = 1
        before = np.cumsum(before)
        damaged = before[table.packets + 1] > before[table.entries]
        frames = np.flatnonzero(damaged)
        first, last = (int(frames[0]), int(frames[-1])) if len(frames) else (-1, -1)
        damage = table.damage._replace(first=first, last=last)
        return replace(table, damage=damage, damaged=damaged.astype(np.uint8))

    def _notes(self) -> tuple[str, ...]:
        notes = []
        tracks = sum(not stream.disposition & Disposition.attached_pic for stream in self._container.streams.video)
        if tracks > 1:
            size = f"{self.stored_width} x {self.stored_height}"
            notes.append(f"of its {tracks} video tracks, the one of {size} pixels is read, as FFmpeg chooses")
        if self.square_width != self.stored_width:
            notes.append(f"its pixels are not square: {self.stored_width} columns are shown as {self.square_width}")
        if (curve := _CURVES.get(self._transfer)) is not None:
            notes.append(f"{HDR} ({curve}), and are read as if they were not: they look pale")
        return tuple(notes)


def make_table(path: StrPath, *, read_timeout: float = READ_TIMEOUT) -> FrameTable:
    """Makes the table of a video file: two decodes. Arguments and errors are those of `FullDecode`."""
    with FullDecode(path, read_timeout=read_timeout) as decode:
        for _ in decode:
            pass
        return decode.table(entries=True)


def _find_entries(file: VideoFile, table: FrameTable, keys: Sequence[int]) -> Integers:
    """The entry of each frame, -1 where none is found.

    From each keyframe on a new decoder decodes up to where the next one takes over: up to the last packet that is
    shown before that. What comes out as in the table has its entry there. For the rest, the entry before is tried.
    """
    frame_of = dict(reversed(list(zip(table.packets.tolist(), range(len(table)), strict=True))))
    starts = [0, *(key for key in keys if key and key in frame_of)]
    latest = np.maximum.accumulate(table.packets)  # the last packet of all that is shown up to each frame
    ends = [max(start - 1, int(latest[frame_of[start] - 1]) if frame_of[start] else 0) for start in starts[1:]]
    frames = _FramesOf(table.packets)
    entries, before, spare = np.full(len(table), -1), 0, _RETRIES * len(table.sizes)
    for start, end in zip(starts, [*ends, len(table.sizes) - 1], strict=True):
        found = _same_frames(file, table, range(start, end + 1), frames)
        entries[found] = start
        members = frames.between(start, end)
        unknown = members[entries[members] < 0]
        if len(unknown) and before < start and spare > end - before:
            spare -= end - before
            again = _same_frames(file, table, range(before, end + 1), frames)
            entries[np.intersect1d(unknown, again)] = before
        before = start if len(found) else before
    return entries


def _find_droppable(file: VideoFile, table: FrameTable) -> Integers:
    """The packets that may be left out: FFmpeg says so, and some frames come out the same without the others."""
    droppable = np.zeros(len(table.sizes), np.uint8)
    of_entry = np.split(
        order := np.argsort(table.entries, kind="stable"), np.flatnonzero(np.diff(table.entries[order])) + 1
    )
    for members in of_entry:
        packets = table.packets[members].tolist()
        numbers = range(int(table.entries[members[0]]), max(packets) + 1)
        referred = {number for number, _ in decode_packets(file, table, numbers, references_only=True)}
        droppable[[number for number in packets if number not in referred]] = 1
    tried = max(of_entry, key=len)[::-1][::_APART]
    made = replace(table, droppable=droppable)
    needed = needed_packets(made, int(table.entries[tried[0]]), table.packets[tried].tolist())
    same = _same_frames(file, table, needed, _FramesOf(table.packets))
    return droppable if np.isin(tried, same).all() else droppable[:0]


class _FramesOf:
    """The frames of packets. A file may have millions of both, so none is searched for among all."""

    def __init__(self, packets: Integers) -> None:
        self._order = np.argsort(packets, kind="stable")
        self._packets = packets[self._order]

    def between(self, first: int, last: int) -> Integers:
        """The frames of the packets from one to another."""
        start, end = np.searchsorted(self._packets, [first, last + 1])
        return self._order[start:end]


def _same_frames(file: VideoFile, table: FrameTable, numbers: Sequence[int], frames: _FramesOf) -> Integers:
    """The frames that come out as in the table of some packets and a new decoder, ascending."""
    found = set()
    for number, decoded in decode_packets(file, table, numbers):
        members = frames.between(number, number)
        found.update(members[table.checksums[members] == checksum(decoded)].tolist())
    return np.array(sorted(found), np.int64)
