"""Rare and damaged video files, made by PyAV: one for each fault or oddity that a user's files may have.

Nothing here knows what is right: the truth is what PyAV gives when it decodes a file from its beginning.
"""

from __future__ import annotations

import io
import os
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import av

from tests.helpers.videos import TURNS, Matrix, mp4_turned, numbered_frames, write_video

COUNT = 40
"""Frames of most files."""
HALF = COUNT // 2
_SUFFIXES = {"asf": "wmv", "matroska": "mkv", "mpeg": "mpg", "mpegts": "ts"}


@dataclass(frozen=True)
class Coding:
    """How frames are encoded."""

    encoder: str
    pix_fmt: str = "yuv420p"
    height: int = 48
    width: int = 64
    options: tuple[tuple[str, str], ...] = (("g", "10"),)

    def having(self, height: int = 0, width: int = 0, pix_fmt: str = "", **options: object) -> Coding:
        """The same with other options of the encoder."""
        changed = dict(self.options) | {name: str(value) for name, value in options.items()}
        shape = height or self.height, width or self.width
        return Coding(self.encoder, pix_fmt or self.pix_fmt, *shape, tuple(changed.items()))


def _x264(**parameters: object) -> dict[str, str]:
    text = "".join(f":{name.replace('_', '-')}={value}" for name, value in parameters.items())
    return {"x264-params": f"log-level=none:threads=1{text}"}


def _x265(**parameters: object) -> dict[str, str]:
    text = "".join(f":{name.replace('_', '-')}={value}" for name, value in parameters.items())
    return {"x265-params": f"log-level=none:pools=none:frame-threads=1{text}"}


_VPX = {"cpu-used": "8", "deadline": "realtime"}
# Each coding, and what FFmpeg can hold it in.
_TABLE = {
    "av1": (Coding("libsvtav1", height=64).having(preset=12, **{"svtav1-params": "lp=1"}), "mp4 matroska webm"),
    "ffv1": (Coding("ffv1"), "matroska"),
    "flv1": (Coding("flv"), "flv"),
    "h264": (
        Coding("libx264").having(preset="veryfast", bf=0, sc_threshold=0, **_x264()),
        "avi mov mp4 3gp matroska mpegts flv",
    ),
    "h265": (Coding("libx265").having(preset="ultrafast", **_x265(bframes=0, open_gop=0)), "mp4 matroska mpegts"),
    "mjpeg": (Coding("mjpeg", "yuvj420p"), "avi mov"),
    "mpeg2": (Coding("mpeg2video"), "avi mpegts mpeg"),
    "mpeg4": (Coding("mpeg4"), "avi mp4 matroska"),
    "msmpeg4": (Coding("msmpeg4"), "avi"),
    "prores": (Coding("prores_ks", "yuv422p10le"), "mov"),
    "raw": (Coding("rawvideo"), "avi"),
    "vp8": (Coding("libvpx").having(**_VPX), "webm"),
    "vp9": (Coding("libvpx-vp9").having(**_VPX), "webm mp4"),
    "wmv2": (Coding("wmv2"), "asf"),
}
CODINGS = {codec: coding for codec, (coding, _) in _TABLE.items()}


@dataclass
class Case:
    """A file of the matrix.

    Args:
        codec: Of `CODINGS`.
        container: As FFmpeg's muxer calls it.
        property: What is rare about it.
        make: Returns its bytes.
        damaged: Whether an error is a right answer.
        matrix: a, b, c, d; a stored pixel (x, y) is shown at (a x + c y, b x + d y).
        kind: What files with such a property have in common.
    """

    codec: str
    container: str
    property: str
    make: Callable[[], bytes]
    damaged: bool = False
    matrix: Matrix = (1, 0, 0, 1)
    kind: str = ""

    @property
    def name(self) -> str:
        """Unique, and that of its file."""
        return f"{self.codec}-{self.property}.{_SUFFIXES.get(self.container, self.container)}"

    def write(self, folder: Path) -> Path:
        (path := folder / self.name).write_bytes(self.make())
        return path


def cases() -> list[Case]:
    """The whole matrix, always in the same order."""
    kinds = {"ordinary": _plain(), "unusual times, edit lists": _times(), "unusual pictures": _pictures()}
    kinds |= {"turned": _turned(), "streams that change on the way": _changes(), "damaged": _damaged()}
    return [replace(case, kind=kind) for kind, of_kind in kinds.items() for case in of_kind]


def sample(every: list[Case], count: int) -> list[Case]:
    """Some cases of each property, codec and container before a second of any."""
    draw, left, taken = random.Random(0), list(every), []
    draw.shuffle(left)
    seen: dict[str, int] = {}
    while left and len(taken) < count:
        left.sort(key=lambda case: sum(seen.get(word, 0) for word in (case.property, case.codec, case.container)))
        case = left.pop(0)
        taken.append(case)
        for word in (case.property, case.codec, case.container):
            seen[word] = seen.get(word, 0) + 1
    return taken


def _each(table: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Each codec of a table with each of its containers."""
    return ((codec, container) for codec, containers in table.items() for container in containers.split())


def _case(codec: str, container: str, property: str, coding: Coding, **options: Any) -> Case:
    return Case(codec, container, property, partial(encoded, coding, container, **options))


def _edited(
    codec: str, container: str, property: str, edit: Callable[..., Any], *codings: Coding, **muxer: str
) -> Case:
    return Case(codec, container, property, partial(remuxed, codec, codings, container, edit, muxer))


def _plain() -> Iterator[Case]:
    """Every codec in every container that can hold it."""
    for codec, container in _each({codec: containers for codec, (_, containers) in _TABLE.items()}):
        yield _case(codec, container, "gop", CODINGS[codec])


def _b(codec: str) -> Coding:
    """With B-frames, if the codec has some."""
    if codec == "h265":
        return CODINGS[codec].having(**_x265(bframes=3, b_adapt=0, open_gop=0))
    return CODINGS[codec].having(bf=2) if codec in ("h264", "mpeg2", "mpeg4") else CODINGS[codec]


def _times() -> Iterator[Case]:
    """When frames are shown, in which order they are stored, and what is shown of them."""
    variable = tuple(3 * n + n % 2 + (40 if n > 20 else 0) for n in range(COUNT))
    tables = {"h264": "mp4 matroska mpegts flv", "h265": "mp4", "mpeg2": "mpegts", "mpeg4": "mp4", "vp9": "webm"}
    for codec, container in _each(tables | {"av1": "mp4"}):
        yield _case(codec, container, "long", CODINGS[codec].having(g=250))
        yield _case(codec, container, "b_frames", _b(codec))
        yield _case(codec, container, "variable_rate", _b(codec), pts=variable)
        yield _case(codec, container, "late_start", _b(codec), pts=tuple(range(700, 700 + COUNT)))
    for codec, container in _each({"h264": "mp4 matroska mpegts", "mpeg2": "mpegts", "vp9": "webm"}):
        yield _edited(codec, container, "all_key", _all_key, CODINGS[codec])
        if container != "mp4":
            yield _edited(codec, container, "repeated_times", _in_pairs, CODINGS[codec])
    for codec in ("h264", "mpeg2"):
        for property, shift in (("wrapped", 2**33 - 20 * 3600), ("negative", -20 * 3600)):
            yield _edited(codec, "mpegts", property, partial(_later, shift), _b(codec), mpegts_copyts="1")
    for codec in ("h264", "h265", "mpeg4"):
        for skipped, kept in ((5, 30), (14, 20)):
            yield Case(codec, "mp4", f"edit_list_{skipped}", partial(_cut, _b(codec), skipped, kept))
        fragments = {"movflags": "frag_keyframe+empty_moov"}
        yield _case(codec, "mp4", "fragments", _b(codec), container_options=tuple(fragments.items()))
        yield _case(codec, "mov", "negative", _b(codec), pts=tuple(range(-7, COUNT - 7)))


def _all_key(pieces: list[Piece]) -> list[Piece]:
    for piece in pieces:
        piece.key = True
    return pieces


def _in_pairs(pieces: list[Piece]) -> list[Piece]:
    """Two frames each claim one time."""
    for place, piece in enumerate(pieces):
        piece.pts = piece.dts = 3600 * (place // 2)
    return pieces


def _later(shift: int, pieces: list[Piece]) -> list[Piece]:
    for piece in pieces:
        piece.pts, piece.dts = piece.pts + shift, piece.dts + shift
    return pieces


def _cut(coding: Coding, skipped: int, kept: int) -> bytes:
    return mp4_cut(encoded(coding, "mp4"), skipped, kept)


def _pictures() -> Iterator[Case]:
    """What a picture is, and which others it refers to."""
    h264, h265 = CODINGS["h264"], CODINGS["h265"]
    for container in ("mp4", "mpegts"):
        yield _case("h264", container, "pyramid", h264.having(**_x264(b_pyramid="normal", bframes=8, b_adapt=0)))
        yield _case("h264", container, "open_gop", h264.having(**_x264(open_gop=1, bframes=3, b_adapt=0)))
        yield _case("h264", container, "intra_refresh", h264.having(**_x264(intra_refresh=1)))
        yield _case("h264", container, "interlaced", h264.having(**_x264(interlaced=1, bframes=2)))
        yield _case("h265", container, "open_gop", h265.having(**_x265(open_gop=1, bframes=3, b_adapt=0)))
    yield _case("h264", "mp4", "colours_bt709", h264.having(**_x264(colormatrix="bt709")))
    yield _case("h264", "mp4", "colours_full", h264.having(pix_fmt="yuvj420p"))
    yield _case("h264", "mp4", "size_50x66", h264.having(50, 66))
    for codec, pix_fmt in (("h264", "yuv444p"), ("h265", "yuv420p10le"), ("ffv1", "bgra"), ("ffv1", "gray")):
        container = "matroska" if codec == "ffv1" else "mp4"
        yield _case(codec, container, f"size_37x51_{pix_fmt}", CODINGS[codec].having(38, 52, pix_fmt))


def _turned() -> Iterator[Case]:
    """Frames that are stored otherwise than they are shown."""
    for angle, matrix in TURNS.items():
        make = partial(_turn, matrix)
        yield Case("h264", "mp4", f"turned_{str(angle).replace(' ', '_')}", make, matrix=matrix)


def _turn(matrix: Matrix) -> bytes:
    return mp4_turned(encoded(CODINGS["h264"], "mp4"), matrix)


def _changes() -> Iterator[Case]:
    """Streams that are another stream from their middle on, or of which only the first packet tells how they are."""
    other = {"h264": _x264(cabac=0, **{"8x8dct": 0}, ref=1, bframes=2, qpmin=20), "mpeg2": {"intra_vlc": 1, "dc": 10}}
    other["mpeg4"] = {"mpeg_quant": 1, "flags": "+qpel"}
    tables = {"h264": "mp4 matroska mpegts avi", "mpeg2": "mpegts", "mpeg4": "avi mp4"}
    for codec, container in _each(tables):
        coding = CODINGS[codec]
        once = partial(_without_units, _HEADERS[codec])
        yield _edited(codec, container, "size_changes", list, coding, coding.having(96, 96))
        yield _edited(codec, container, "headers_change", list, coding, coding.having(**other[codec]))
        yield _edited(codec, container, "headers_change_once", once, coding, coding.having(**other[codec]))
        yield _edited(codec, container, "headers_once", once, coding)
    for codec, container in _each({"h264": "mpegts", "mpeg2": "mpegts mpeg", "mjpeg": "avi"}):
        for property, size in (("joined", 0), ("joined_other_size", 96)):
            yield Case(codec, container, property, partial(_joined, CODINGS[codec], container, size))
    for text in (b"XviD0046     ", b"DivX503b1393p"):
        for container in ("avi", "mp4"):
            property = text.decode().strip().lower()
            yield Case("mpeg4", container, property, partial(_by_encoder, text, container))


def _joined(coding: Coding, container: str, size: int) -> bytes:
    return encoded(coding, container, count=HALF) + encoded(
        coding.having(size, size), container, count=HALF, first=HALF
    )


def _by_encoder(text: bytes, container: str) -> bytes:
    """MPEG-4 with the user data of another encoder in its first packet, as decoders mend the faults of each."""
    source = encoded(_b("mpeg4").having(flags="+qpel"), "m4v")
    at = source.index(b"Lavc")
    own = source[at : source.index(b"\0", at)]
    source = source.replace(own, text.ljust(len(own))[: max(len(own), len(text))])
    return _muxed([source], container, partial(_without_units, lambda unit: unit[0] == 0xB2))


def _damaged() -> Iterator[Case]:
    """Damage that befalls files: on disks, in downloads, in transmission."""
    tables = {"h264": "mp4 matroska mpegts avi", "h265": "mp4", "mpeg2": "mpegts", "mpeg4": "avi", "mjpeg": "avi"}
    for codec, container in _each(tables | {"vp9": "webm", "av1": "mp4", "wmv2": "asf"}):
        kinds = ["truncated", "zeroed", "flipped", "shifted"] + ["lost_ts"] * (container == "mpegts")
        for kind in kinds:
            make = partial(_damage, _b(codec), container, kind)
            yield Case(codec, container, kind, make, damaged=True)
        if codec != "av1":
            yield _edited(codec, container, "lost_packet", _without_some, _b(codec))
            yield _edited(codec, container, "lost_first", lambda pieces: pieces[1:], _b(codec))


def _without_some(pieces: list[Piece]) -> list[Piece]:
    return [piece for place, piece in enumerate(pieces) if place not in (7, 20)]


def _damage(coding: Coding, container: str, kind: str) -> bytes:
    """Bytes that are lost, zeroed or flipped, behind the head of a file."""
    data, draw = encoded(coding, container), random.Random(f"{coding.encoder} {container} {kind}")
    head, copy = min(2000, len(data) // 4), bytearray(data)
    if kind == "truncated":
        return data[: draw.randrange(len(data) // 3, len(data) * 9 // 10)]
    if kind == "lost_ts":
        lost = set(draw.sample(range(4, len(data) // 188), 3))
        return b"".join(data[188 * block : 188 * (block + 1)] for block in range(len(data) // 188) if block not in lost)
    for _ in range(3):
        at = draw.randrange(head, len(data) - 64)
        if kind == "zeroed":
            copy[at : at + 64] = bytes(64)
        elif kind == "flipped":
            copy[at] ^= 1 << draw.randrange(8)
    if kind == "shifted":
        del copy[at : at + draw.choice([1, 7, 100])]
    return bytes(copy)


# Bytes


@lru_cache(maxsize=64)
def encoded(coding: Coding, container: str, *, count: int = COUNT, first: int = 0, **options: Any) -> bytes:
    """A video of frames that tell their number, from `first` on; options are those of `write_video`."""
    os.environ.setdefault("SVT_LOG", "1")  # its errors only
    options["container_options"] = dict(options.get("container_options", ()))
    frames = numbered_frames(count, coding.height, coding.width, first=first)
    how = {"codec": coding.encoder, "pix_fmt": coding.pix_fmt, "options": dict(coding.options), "format": container}
    with tempfile.TemporaryDirectory() as folder:
        return write_video(Path(folder) / "video", frames, rate=25, **how, **options).read_bytes()


@dataclass
class Piece:
    """A packet as plain data, times in 90,000ths of a second. `part` tells which file it is of."""

    data: bytes
    pts: int
    dts: int
    key: bool
    part: int


def _pieces_of(data: bytes, part: int) -> list[Piece]:
    """The packets of the video in a file; those of raw streams, which have no times, at 25 a second."""
    found: list[Piece] = []
    with av.open(io.BytesIO(data)) as source:
        for packet in source.demux(video=0):
            if packet.size:
                pts, dts = (
                    3600 * len(found) if packet.pts is None or time is None else round(time * packet.time_base * 90_000)
                    for time in (packet.pts, packet.dts)
                )
                found.append(Piece(bytes(packet), pts, dts, packet.is_keyframe, part))
    return found


# What gives the packets of each codec with their headers.
_SOURCES = {"h264": "mpegts", "mpeg2": "mpegts", "mpeg4": "m4v"}


def remuxed(
    codec: str, codings: tuple[Coding, ...], container: str, edit: Callable[..., Any], muxer: dict[str, str]
) -> bytes:
    """The packets of one or two files of a codec, one after the other, edited, as the stream of the first of them."""
    count = COUNT // len(codings)
    source = _SOURCES.get(codec, container)
    files = [encoded(coding, source, count=count, first=count * part) for part, coding in enumerate(codings)]
    return _muxed(files, container, edit, muxer)


def _muxed(
    sources: list[bytes], container: str, edit: Callable[..., Iterable[Piece]], muxer: dict[str, str] | None = None
) -> bytes:
    pieces: list[Piece] = []
    for part, source in enumerate(sources):
        own = _pieces_of(source, part)
        if pieces:
            shift = 3600 + max(piece.pts for piece in pieces) - min(piece.dts for piece in own)
            own = _later(shift, own)
        pieces += own
    out = io.BytesIO()
    with (
        av.open(io.BytesIO(sources[0])) as template,
        av.open(out, "w", format=container, options=muxer or {}) as target,
    ):
        stream: Any = target.add_stream_from_template(template.streams.video[0])
        last = None
        for piece in edit(pieces):
            packet: Any = av.Packet(piece.data)
            packet.stream, packet.time_base = stream, Fraction(1, 90_000)
            packet.dts = piece.dts if last is None else max(last + 8, piece.dts)  # muxers want it to grow
            packet.pts = max(piece.pts, packet.dts)
            last = packet.dts
            packet.is_keyframe = piece.key
            target.mux(packet)
    return out.getvalue()


# What tells of a whole stream, by its codec.
_HEADERS: dict[str, Callable[[bytes], bool]] = {
    "h264": lambda unit: unit[0] & 31 in (6, 7, 8),
    "mpeg2": lambda unit: unit[0] == 0xB3 or (unit[0] == 0xB5 and unit[1] >> 4 in (1, 2, 3)),
    "mpeg4": lambda unit: unit[0] not in (0xB3, 0xB6),
}


def _without_units(wanted: Callable[[bytes], bool], pieces: list[Piece]) -> list[Piece]:
    """Takes some units out of all packets but the first of each part, so that nothing is told twice."""
    seen: set[int] = set()
    for piece in pieces:
        if piece.part in seen:
            piece.data = b"".join(b"\0\0\1" + unit for unit in _units(piece.data) if not wanted(unit))
        seen.add(piece.part)
    return pieces


def _units(data: bytes) -> list[bytes]:
    """What stands behind the start codes of an MPEG stream."""
    starts, at = [], data.find(b"\0\0\1")
    while at >= 0:
        starts.append(at)
        at = data.find(b"\0\0\1", at + 3)
    units = (data[start + 3 : end].rstrip(b"\0") for start, end in pairwise([*starts, len(data)]))
    return [unit for unit in units if unit]


def mp4_cut(data: bytes, skipped: int, kept: int, rate: int = 25) -> bytes:
    """With an edit list that leaves out the first frames, and those after the ones kept."""
    at = data.index(b"mdhd") + 16
    scale = int.from_bytes(data[at : at + 4], "big")
    at = data.index(b"elst") + 12  # its one edit: duration, start
    start = int.from_bytes(data[at + 4 : at + 8], "big") + skipped * scale // rate
    return data[:at] + (kept * 1000 // rate).to_bytes(4, "big") + start.to_bytes(4, "big") + data[at + 8 :]
