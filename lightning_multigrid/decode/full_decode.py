"""One decode of a video file from its beginning to its end, and the table that comes of it; see `README.md`."""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from fractions import Fraction
from typing import Any

import av
import numpy as np
from av.packet import Packet
from av.video.frame import VideoFrame

from lightning_multigrid.decode.frame_pixels import orientation_of
from lightning_multigrid.decode.frame_table import MADE_BY, WIDEST, Coding, Damage, FrameTable, Integers, checksum
from lightning_multigrid.decode.own_table import own_table
from lightning_multigrid.decode.packets import decode_packets, give_number, grouped, needed_packets, number_of
from lightning_multigrid.decode.video import FrameClock, Video
from lightning_multigrid.decode.video_file import VideoError, VideoFile
from lightning_multigrid.files import StrPath

_UNKNOWN = -(2**63)
_WINDOW = 64  # bytes after the place that FFmpeg tells of a packet, in which its data may begin: heads of blocks
_MATRICES = *range(8), 9  # of colours, which FFmpeg converts to RGB
_RETRIES = 2  # decodes of the whole file that trying entries anew may cost
_APART = 16  # from one frame that is tried to the next, with what is droppable left out
_HOLE = 0.5  # seconds without a frame that are none of a video's own rate
_SHARE, _LACK = 0.9, 1.0  # of the length that a file declares, which it must have; seconds that it may lack
# CPU seconds that a decode of a whole file may take, as a few bytes can hold billions of pixels (an hour of 1080p takes
# some minutes); the search for entries may take this many times as much.
_SECONDS, _SECONDS_PER_BYTE, _SEARCH = 600.0, 1e-5, 3


class FullDecode(Video):
    """A video file that is decoded once, from its beginning, past damage. Iterate it once.

    A `VideoError` if the file is missing, cut short, not a video, too slow, or has frames above 67 megapixels.

    Height, width and orientation are known once the first frame is there; what is said of all frames, once they are. A
    file at a URL is copied to a disk first, and removed.
    """

    def __init__(self, path: StrPath) -> None:
        self.file = VideoFile(os.fspath(path), whole=True)
        # What is seen of the frames and of the packets, in their orders; a time that isn't known is `_UNKNOWN`.
        self._packets, self._checksums, self._times = array("q"), array("q"), array("q")
        self._positions, self._sizes, self._clock = array("q"), array("q"), array("q")
        self._durations = array("q")  # 0 where none is known
        self._keys = array("q")  # numbers of the keyframes' packets
        self._concealed = self._refused = 0
        self._end = 0.0  # seconds at which the last of the file's streams ends
        self._seconds = _SECONDS + _SECONDS_PER_BYTE * self.file.bytes.size
        with ExitStack() as opened, self.file.faults():
            opened.callback(self.file.close)
            self._container, self._stream = self.file.open()
            opened.pop_all()
        self.rate = float(self._stream.average_rate or 0)  # as the container states it
        self.joined = self._container.format.name in ("mpegts", "mpeg")

    def close(self) -> None:
        self._container.close()
        self.file.close()

    def __iter__(self) -> Iterator[VideoFrame]:
        codec = self._stream.codec_context
        self.file.until = time.thread_time() + self._seconds
        packets, corrupt, refusal = self._container.demux(), False, None
        with self.file.faults():
            while True:
                try:
                    packet = next(packets, None)
                except av.FFmpegError as error:
                    packet, refusal = None, refusal or error  # what follows can't be read
                    self._refused += 1
                if packet is not None and (not packet.size or not self._is_of_video(packet)):
                    continue
                if packet is not None:
                    corrupt = packet.is_corrupt
                    self._add(packet)
                try:
                    frames = codec.decode(packet)
                except av.FFmpegError as error:
                    frames, refusal = [], refusal or error
                    self._refused += 1
                self.file.check_time()
                for frame in frames:
                    self._see(frame)
                    yield frame
                if packet is None:
                    break
            if corrupt and self._container.format.name != "mpegts":  # a transport stream is cut anywhere
                raise VideoError(self.file.path, "cut short: its last packet is not all there")
            # Some containers declare when they end, counted from 0. Before a clock wraps, FFmpeg counts from below 0.
            start, whole = self._container.start_time or 0, self._container.duration or 0
            declared, lasted = (whole - max(0, start)) / av.time_base, self._end - start / av.time_base
            if self._end > 0 and lasted < min(_SHARE * declared, declared - _LACK):  # no stream is as long
                seconds = f"{lasted:.1f} s of the {declared:.1f} s that it declares"
                raise VideoError(self.file.path, f"cut short: it lasts {seconds}")
            if not self._times:
                raise refusal or VideoError(self.file.path, "holds no frame that can be decoded")
        first, tick = self._times[0], self._stream.time_base or Fraction(0)
        if first != _UNKNOWN:  # PyAV 17 lets a file begin with sound before 0, which no player plays
            self.start = float(max(Fraction(0), first * tick - Fraction(max(0, start), av.time_base)))
        self.last = float(self._durations[self._packets[-1]] * tick)
        self.damage = Damage(concealed=self._concealed, refused=self._refused)

    def _is_of_video(self, packet: Packet[Any]) -> bool:
        if packet.pts is not None and packet.time_base:
            self._end = max(self._end, float((packet.pts + (packet.duration or 0)) * packet.time_base))
        return packet.stream_index == self._stream.index

    def _add(self, packet: Packet[Any]) -> None:
        give_number(packet, len(self._sizes))
        position = -1  # unless the file holds it in one piece
        if packet.pos is not None and packet.pos >= 0:
            found = self.file.bytes.read(packet.pos, packet.size + _WINDOW).find(bytes(packet))
            position = packet.pos + found if found >= 0 else -1
        if packet.is_keyframe:
            self._keys.append(len(self._sizes))
        self._positions.append(position)
        self._sizes.append(packet.size)
        self._clock.append(_UNKNOWN if packet.dts is None else packet.dts)
        self._durations.append(max(0, packet.duration or 0))

    def _see(self, frame: VideoFrame) -> None:
        count = number_of(frame)
        if not self._times:
            self.orientation = orientation_of(frame)
            bits, colours = frame.format.components[0].bits, len(frame.format.components)
            if bits > 8 and (frame.format.is_rgb or colours < 3):  # thermal cameras use 12 of 16, so it would be black
                reason = f"has {bits} bits a channel ({frame.format.name}), 8 are required where it is not YUV"
                raise VideoError(self.file.path, f"{reason}. Scale the values that it uses to 8 bits")
            aspect = self._stream.sample_aspect_ratio or Fraction(1)  # width of a pixel in heights of it
            square = round(frame.width * (aspect if Fraction(1, WIDEST) <= aspect <= WIDEST else 1))
            self.stored_height, self.stored_width, self.square_width = frame.height, frame.width, square
            shown = frame.height, square
            self.height, self.width = shown[::-1] if self.orientation.transposed else shown
        # Frames without a display matrix ask for no turn. `side_data` (PyAV 18.1) would keep each frame in memory.
        elif round(frame.rotation / 90) % 4 not in (0, self.orientation.quarter_turns):
            raise VideoError(self.file.path, f"frame {len(self._times)} is to be turned differently from the first")
        if not frame.format.is_rgb and frame.colorspace not in _MATRICES:
            matrix = f"colours of the matrix {frame.colorspace} of ITU-T H.273, which FFmpeg can't convert to RGB"
            raise VideoError(self.file.path, f"has {matrix}. Make it BT.709, for instance")
        self._packets.append(len(self._sizes) - 1 if count < 0 else count)
        self._checksums.append(checksum(frame))
        self._times.append(_UNKNOWN if frame.pts is None else frame.pts)
        self._concealed += frame.is_corrupt

    def counted(self) -> tuple[int, float]:
        """Counts by what the container states, or else by all of its packets.

        A rate that is stated alone may be the finest one of the clock: 1,000 per second, as browsers write it.
        """
        if self._stream.frames:
            return self._stream.frames, self.rate
        with self.file.faults():
            container, stream = self.file.open()
            with container:
                tick = stream.time_base or 0  # gone once the container is closed
                times = [packet.pts for packet in container.demux(stream) if packet.size]
        known = [time for time in times if time is not None]
        lasts = float((max(known) - min(known)) * tick) if known else 0.0
        return len(times), (len(known) - 1) / lasts if lasts > 0 else self.rate

    def known(self) -> FrameTable:
        own, found = own_table(self.file.bytes), self.table(entries=False)
        if own is not None and own.is_current and not np.array_equal(own.checksums, found.checksums):
            raise VideoError(self.file.path, "changed since `prepare` made it. Remove it, and run `prepare`")
        return found

    def table(self, *, entries: bool) -> FrameTable:
        """The table of a file that was decoded to its end; with `entries`, for which it is decoded once more."""
        codec, rate, tick, times = self._stream.codec_context, self.rate, self._stream.time_base, list[int]()
        if tick and any(time != _UNKNOWN for time in self._times):
            clock = FrameClock(tick, Fraction(1 / rate) if rate else tick, base=tick, joined=self.joined)
            times = [clock.ticks(None if time == _UNKNOWN else time) for time in self._times]
            if times[-1] >= 2**63:
                raise VideoError(self.file.path, "damaged: the times of its frames add up to more than 64 bits hold")
            rate = float((len(times) - 1) / (times[-1] * tick)) if len(times) > 1 else rate
        colours = int(codec.colorspace), int(codec.color_range), int(codec.color_primaries), int(codec.color_trc)
        coded = codec.name, codec.width, codec.height, codec.codec_tag, codec.bits_per_coded_sample
        table = FrameTable(
            file_size=self.file.bytes.size,
            made_by=MADE_BY,
            codec=codec.codec.canonical_name,
            coding=Coding(*coded, colours, bytes(codec.extradata or b"")),
            rate=rate,
            start=self.start,
            last=self.last,
            stored_height=self.stored_height,
            stored_width=self.stored_width,
            square_width=self.square_width,
            orientation=self.orientation,
            direct=False,
            damage=self.damage,
            made_from="",
            packets=np.array(self._packets),
            entries=np.zeros(len(self._packets), np.int64),
            checksums=np.array(self._checksums),
            times=np.array(times, np.int64),
            positions=np.array(self._positions),
            sizes=np.array(self._sizes),
            droppable=np.empty(0, np.int64),
            clock=np.array(self._clock),
            lacks=self._lacks(),
        )
        if entries:
            self.file.until += _SEARCH * self._seconds
            with self.file.faults():
                table = self._with_entries(table)
        return table

    def _lacks(self) -> str:
        """What is missing in a container that FFmpeg reads on in without a word, where a part of it is not there."""
        kind, size = self._container.format.name, self.file.bytes.size
        if kind == "avi" and _UNKNOWN not in self._clock:  # its header counts the ticks of its clock, with empty ones
            step = max(1, int(np.median(np.diff(self._clock)))) if len(self._clock) > 1 else 1
            declared, found = self._stream.frames, max(self._clock) + step
            if declared - found > max(2 * step, declared // 100):
                return f"its header counts {declared // step} frames, it ends after {found // step}"
        elif kind == "gif":  # what FFmpeg can't tell apart is in the last packet
            if not self.file.bytes.read(max(0, size - _WINDOW), _WINDOW).rstrip(b"\0").endswith(b";"):
                return "it ends without the mark of an end"
            last, usual = self._sizes[-1], float(np.median(self._sizes))
            if last > max(10 * usual, size / 10):
                return f"its last frame has {last} bytes, the others have about {usual:.0f}"
        elif kind == "flv":  # it ends with a tag, and then the tag's length
            length = int.from_bytes(self.file.bytes.read(size - 4, 4), "big")
            fits = 11 < length <= size - 4
            if not fits or int.from_bytes(self.file.bytes.read(size - 3 - length, 3), "big") != length - 11:
                return "its last tag is not all there"
        if kind in ("flv", "mpegts") and _UNKNOWN not in self._times and self._stream.time_base:
            times = np.sort(np.array(self._times)) * float(self._stream.time_base)
            steps = np.diff(times)
            if len(steps) and (longest := steps.max()) > max(_HOLE, 10 * np.median(steps)):
                return f"it has no frame for {longest:.1f} s from {times[steps.argmax()] - times[0]:.1f} s on"
        return ""

    def _with_entries(self, table: FrameTable) -> FrameTable:
        """The table with its entries, and without a container if a decoder finds as many of them so."""
        tables = [table]
        if min(self._positions) >= 0:
            tables.insert(0, replace(table, direct=True, clock=table.clock[:0]))
        best, most = table, -1
        for tried in tables:
            entries = _find_entries(self.file, tried, self._keys)
            if (found := int((entries >= 0).sum())) > most:
                best, most = replace(tried, entries=np.maximum(entries, 0)), found
            if most == len(table):
                break
        return replace(best, droppable=_find_droppable(self.file, best))


def make_table(path: StrPath) -> FrameTable:
    """Makes the table of a video file: two decodes. Errors are those of `FullDecode`."""
    with FullDecode(path) as decode:
        for _ in decode:
            pass
        return decode.table(entries=True)


def _find_entries(file: VideoFile, table: FrameTable, keys: Sequence[int]) -> Integers:
    """The entry of each frame, -1 where none is found. See `README.md`."""
    frames_of = grouped(range(len(table)), table.packets)
    starts = [0, *(key for key in keys if key and key in frames_of)]
    latest = np.maximum.accumulate(table.packets)  # the last packet of all that is shown up to each frame
    firsts = {start: frames_of[start][0] for start in starts[1:]}
    # The next keyframe takes over after the last packet that is shown before it.
    ends = [max(start - 1, int(latest[first - 1]) if first else 0) for start, first in firsts.items()]
    entries, before, spare = np.full(len(table), -1), 0, _RETRIES * len(table.sizes)
    for start, end in zip(starts, [*ends, len(table.sizes) - 1], strict=True):
        found = _same_frames(file, table, range(start, end + 1), frames_of)
        entries[found] = start
        unknown = [frame for packet in range(start, end + 1) for frame in frames_of[packet] if entries[frame] < 0]
        if unknown and before < start and spare > end - before:
            spare -= end - before
            again = _same_frames(file, table, range(before, end + 1), frames_of)
            entries[np.intersect1d(unknown, again)] = before
        before = start if len(found) else before
    return entries


def _find_droppable(file: VideoFile, table: FrameTable) -> Integers:
    """The packets that may be left out: FFmpeg says so, and some frames come out the same without the others."""
    droppable = np.zeros(len(table.sizes), np.uint8)
    of_entry = [np.flatnonzero(table.entries == entry) for entry in np.unique(table.entries)]
    for members in of_entry:
        packets = table.packets[members].tolist()
        numbers = range(int(table.entries[members[0]]), max(packets) + 1)
        referred = {number for number, _ in decode_packets(file, table, numbers, references_only=True)}
        droppable[[number for number in packets if number not in referred]] = 1
    tried = max(of_entry, key=len)[::-1][::_APART]
    made = replace(table, droppable=droppable)
    needed = needed_packets(made, int(table.entries[tried[0]]), table.packets[tried].tolist())
    same = _same_frames(file, table, needed, grouped(range(len(table)), table.packets))
    return droppable if np.isin(tried, same).all() else droppable[:0]


def _same_frames(
    file: VideoFile, table: FrameTable, numbers: Sequence[int], frames_of: dict[int, list[int]]
) -> Integers:
    """The frames that come out as in the table of some packets and a new decoder, ascending."""
    found: set[int] = set()
    for number, decoded in decode_packets(file, table, numbers):
        value = checksum(decoded)
        found.update(frame for frame in frames_of[number] if table.checksums[frame] == value)
    return np.array(sorted(found), np.int64)
