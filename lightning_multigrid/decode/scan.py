"""Builds the index of a video file from its packets, and decodes only the first frames."""

from __future__ import annotations

import zlib
from array import array
from dataclasses import replace
from typing import Any, NamedTuple

import av
import numpy as np
from av.container import InputContainer
from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from lightning_multigrid.decode.b_frames import BFrames
from lightning_multigrid.decode.file_boxes import outermost_boxes
from lightning_multigrid.decode.frame_pixels import orientation_of
from lightning_multigrid.decode.learned import Learned
from lightning_multigrid.decode.nal import H264Packets, H265Packets
from lightning_multigrid.decode.packet_index import DROPPABLE, ENTRY, MAX_PACKETS, SHOWN, Orientation, PacketIndex, Seal
from lightning_multigrid.decode.video_file import Damage, VideoError, VideoFile, demuxed

# Pixels that all frames of a file may have together: 2,000 frames of 1080p, and more the larger the file is. Frames of
# 1080p where nothing moves take 34 bytes each in AV1, 61,000 pixels a byte; those of a GIF of 5,000 bytes could have
# 67 million pixels each.
_PIXELS, _PIXELS_PER_BYTE = 1 << 32, 1 << 19
_PROBE = 4  # frames that are decoded to see whether they come out as the packets say
_COLUMNS = ("positions", "sizes", "times", "decoding_times", "flags", "checksums")  # the rows of its table
_END = 4096  # bytes at each end that are sealed if the file has no single table of its packets
_MOST_SEALED = 1 << 22  # the largest table that is sealed, and so compared at each use: that of a few hours


def index_of(file: VideoFile) -> PacketIndex:
    """Builds the index of an open file, or raises a `VideoError` if it is damaged, cut short, or no video."""
    with file.faults():
        file.refuse_cut_short()
        container, stream = file.open()
        with container:
            return _Indexing(file, container, stream).index()
    raise AssertionError  # for the type checker: `faults` swallows nothing


def is_sealed(index: PacketIndex, file: VideoFile) -> bool:
    """Whether an index is intact and of this file, as far as its size and sealed bytes tell."""
    return index.file_size == file.bytes.size and index.digest == index.digest_for(file.bytes.read(index.seals))


class _Probed(NamedTuple):
    """What is looked at of a decoded frame. Of the largest ones, four would take 2 GB."""

    time: int | None
    is_key: bool
    height: int
    width: int
    orientation: Orientation


class _Indexing:
    """One pass over the packets of a file."""

    def __init__(self, file: VideoFile, container: InputContainer, stream: VideoStream) -> None:
        self.file, self.container, self.stream = file, container, stream
        self.codec: VideoCodecContext = stream.codec_context
        # Whether packets tell frames apart. A program stream has one time per pack; FFmpeg makes up others anew.
        self.regular = container.format.name != "mpeg"
        # AVI has no times of presentation, nor does all MXF. FFmpeg makes them up, wrongly if H.264 or H.265 reorders.
        self.has_made_up_times = container.format.name in ("avi", "mxf")
        self.rows = array("q")  # six numbers per packet; as objects they would take six times the memory
        self.h264 = H264Packets(self.codec.extradata or b"") if self.codec.name == "h264" else None
        self.h265 = H265Packets(self.codec.extradata or b"") if self.codec.name == "hevc" else None
        self.pictures = BFrames(self.codec.name) if BFrames.knows(self.codec.name) else self.h264
        self.learned = Learned(self.codec.name, self.codec.extradata or b"")
        self.packets = 0
        self.plain = True  # whether the file holds the first packets byte for byte
        self.refusal: av.FFmpegError | None = None  # of the first packet that the decoder refused
        self.one_kind = True  # whether nothing beside the packets, such as a palette, changes what they mean

    def index(self) -> PacketIndex:
        probe = self._pass()
        safe = np.array(self.learned.safe(), bool)
        # Only a decoder that sees a file from its beginning, for the first time, is in the right state then.
        self.regular &= self.one_kind and bool(safe[:1].all())
        unsure = self.container.format.name == "mxf" if self.h265 is None else self.has_made_up_times
        self.regular &= not (unsure and self.h264 is None and self.codec.has_b_frames)
        if not probe:
            raise self.refusal or VideoError(self.file.path, "holds no frame that can be decoded")
        table = np.array(self.rows if self.regular else [], np.int64).reshape(-1, 6).T.copy()
        _, _, times, _, flags, _ = table
        if self.regular:
            flags[~safe] &= ~ENTRY
            self._remove_unsafe_entries(flags, times, probe)
        by_time = np.sort(times[flags & SHOWN != 0])
        if not _is_believed(probe, by_time, times[flags & ENTRY != 0]):
            table, by_time = table[:, :0], by_time[:0]
        elif self.pictures is not None:
            in_order = _is_shown_in_order(self.pictures, times)
            # FFmpeg fills a gap with pictures of its own, before a picture that nobody refers to as before others.
            if not in_order or (self.h264 is not None and self.h264.gaps):
                flags &= ~DROPPABLE
            if in_order is False or (in_order is None and self.has_made_up_times):
                table, by_time = table[:, :0], by_time[:0]
        rate = float(self.stream.average_rate or 0)
        if len(by_time) > 1 and self.stream.time_base is not None:
            rate = float((len(by_time) - 1) / (int(by_time[-1] - by_time[0]) * self.stream.time_base))
        seals, single = _seals(self.file)
        alone = self.h264 is not None and not (self.h264.sets_in_band or self.h264.needs_encoder)
        direct = bool(table.size) and single and self.plain and alone
        codec = self.codec
        colours = int(codec.colorspace), int(codec.color_range), int(codec.color_primaries), int(codec.color_trc)
        first = probe[0]
        self._refuse_too_many_pixels(len(by_time) or self.packets, first)
        index = PacketIndex(
            frames=len(by_time) or sum(1 for _ in self.file.sequential([], Damage())),
            rate=rate,
            stored_height=first.height,
            stored_width=first.width,
            orientation=first.orientation,
            direct=direct,
            extradata=bytes(codec.extradata or b"") if direct else b"",
            colours=colours if direct else (0, 0, 0, 0),
            file_size=self.file.bytes.size,
            seals=seals,
            digest=bytes(16),
            **dict(zip(_COLUMNS, table, strict=True)),
        )
        return replace(index, digest=index.digest_for(self.file.bytes.read(seals)))

    def _refuse_too_many_pixels(self, frames: int, first: _Probed) -> None:
        size = self.file.bytes.size
        most = _PIXELS + _PIXELS_PER_BYTE * size
        if frames * first.height * first.width > most:
            held = f"{frames} frames of {first.height} x {first.width} pixels in {size} bytes"
            raise VideoError(self.file.path, f"holds {held}; a file of that size may have {most} pixels in all")

    def _remove_unsafe_entries(self, flags: Any, times: Any, probe: list[_Probed]) -> None:
        """Removes entries at which a decoder might lack something that came with a packet before, or no picture is."""
        entries = set(times[flags & ENTRY != 0].tolist())
        misses = self.h264 is not None and (self.h264.sets_in_band or self.h264.needs_encoder)
        if misses or any(frame.time in entries and not frame.is_key for frame in probe):
            flags[1:] &= ~ENTRY
        if self.h265 is not None and self.h265.sets_in_band and len(flags):
            flags[np.setdiff1d(np.arange(1, len(flags)), self.h265.whole)] &= ~ENTRY

    def _pass(self) -> list[_Probed]:
        """Looks at all packets. Returns what the first frames are like."""
        probe: list[_Probed] = []
        corrupt = False
        for packet in demuxed(self.container, self.stream):
            if len(probe) < _PROBE:
                try:
                    probe += map(_probed, packet.decode())
                except av.FFmpegError as error:  # a sequential decode goes on
                    self.refusal = self.refusal or error
                self.plain &= not packet.size or self._is_plain(packet)
            if not packet.size:
                continue
            self.packets += 1
            if self.packets > MAX_PACKETS:
                raise VideoError(self.file.path, f"holds more than {MAX_PACKETS} packets")
            corrupt = packet.is_corrupt
            self.one_kind &= not self._changes_kind(packet)
            # "Packed" MPEG-4 in AVI files has packets of two pictures. A packet of at most 8 bytes follows in place of
            # the second picture, and frames come out with each other's times.
            may_be_placeholder = self.codec.name == "mpeg4" and packet.size <= 8
            if packet.pts is None or may_be_placeholder:
                self.regular = False
            elif self.regular:
                self._add(packet, packet.pts)
        if corrupt and self.container.format.name != "mpegts":  # a transport stream is cut anywhere
            raise VideoError(self.file.path, "cut short: its last packet is not all there")
        return probe

    def _add(self, packet: Packet[VideoStream], time: int) -> None:
        data = bytes(packet)
        flags = ENTRY
        if self.pictures is not None:
            # Containers also mark recovery points as keyframes. Pictures may be wrong for a while after those.
            flags = self.pictures.look(data)
        elif self.h265 is not None:
            flags = ENTRY * self.h265.is_entry(data)
        if not packet.is_keyframe:
            flags &= ~ENTRY
        self.learned.look(data)
        hidden = self.codec.name == "vp8" and not data[0] & 0x10  # RFC 6386, 9.1
        flags |= SHOWN * (not (hidden or packet.is_discard))  # an edit list discards
        decoding_time = time if packet.dts is None else packet.dts
        position = -1 if packet.pos is None else packet.pos
        self.rows.extend((position, len(data), time, decoding_time, flags, zlib.crc32(data)))

    def _changes_kind(self, packet: Packet[VideoStream]) -> bool:
        """Whether something beside a packet tells how to decode it and those after it: a palette, or other headers."""
        headers = bytes(packet.get_sidedata("new_extradata")) if packet.has_sidedata("new_extradata") else None
        return packet.has_sidedata("palette") or headers not in (None, bytes(self.codec.extradata or b""))

    def _is_plain(self, packet: Packet[VideoStream]) -> bool:
        if packet.pos is None or packet.pos < 0:
            return False
        return self.file.bytes.read([(packet.pos, packet.size)]) == [bytes(packet)]


def _probed(frame: VideoFrame) -> _Probed:
    return _Probed(frame.pts, bool(frame.key_frame), frame.height, frame.width, orientation_of(frame))


def _is_believed(probe: list[_Probed], by_time: Any, entries: Any) -> bool:
    """Whether times tell the frames apart, begin at an entry, and are those of the frames that were decoded."""
    return bool(
        len(by_time)
        and len(entries)
        and entries[0] <= by_time[0]
        and (entries[:-1] < entries[1:]).all()
        and (by_time[:-1] < by_time[1:]).all()
        and [frame.time for frame in probe] == by_time[: len(probe)].tolist()
    )


def _seals(file: VideoFile) -> tuple[tuple[Seal, ...], bool]:
    """The seals of a file, on its one table or its two ends, and whether it has one table, of one kind of frames."""
    boxes = outermost_boxes(file.bytes)
    tables = [box for box in boxes if box.kind == b"moov"]
    single = len(tables) == 1 and tables[0].size <= _MOST_SEALED and not any(box.kind == b"moof" for box in boxes)
    ends = [(0, _END), (max(file.bytes.size - _END, 0), _END)]
    spans = [(tables[0].position, tables[0].size)] if single else ends
    found = file.bytes.read(spans)
    # Each track lists the kinds of its samples; with a second kind come other parameter sets.
    single = single and all(kind[4:8] == b"\0\0\0\1" for kind in found[0].split(b"stsd")[1:])
    return tuple(Seal(position, len(data)) for (position, _), data in zip(spans, found, strict=True)), single


def _is_shown_in_order(packets: H264Packets | BFrames, times: Any) -> bool | None:
    """Whether the decoder gives frames out in the order of their times; None if that isn't known."""
    if not packets.sure:
        return None
    shown = np.lexsort(np.array(packets.orders).T[::-1])
    return len(set(packets.orders)) == len(times) and bool((shown == np.argsort(times, kind="stable")).all())
