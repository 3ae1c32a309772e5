"""Rare and hostile video files, made by PyAV: a matrix of codec x container x property, some of them damaged.

Nothing here knows what is right: the truth is what PyAV gives when it decodes a file from its beginning.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import av

from tests.helpers.rare_bytes import (
    COUNT,
    Coding,
    Matrix,
    Piece,
    damaged,
    encoded,
    flv_joined,
    h264_turned,
    in_matroska,
    mp4_cut,
    mp4_of_two_kinds,
    once,
    remuxed,
    with_exif,
    with_segment,
    without_packets,
    without_units,
)
from tests.helpers.videos import mp4_turned

_SUFFIXES = {
    "asf": "wmv", "hevc": "h265", "matroska": "mkv", "mpeg": "mpg", "mpeg1video": "m1v", "mpeg2video": "m2v",
    "mpegts": "ts",
}  # fmt: skip


def _coding(encoder: str, pix_fmt: str = "yuv420p", height: int = 48, width: int = 64, **options: Any) -> Coding:
    return Coding(encoder, pix_fmt, height, width, count=int(options.pop("count", COUNT))).having(g=10, **options)


_X264, _X265 = "log-level=none:threads=1", "log-level=none:pools=none:frame-threads=1"
_VPX = {"cpu-used": 8, "deadline": "realtime"}
# Each coding, and what FFmpeg can hold it in.
_ANY = "avi asf nut"
_TABLE = {
    "amv": (_coding("amv", "yuvj420p"), _ANY),
    "apng": (_coding("apng", "rgb24"), "apng"),
    "asv1": (_coding("asv1"), _ANY),
    "asv2": (_coding("asv2"), _ANY),
    "av1": (
        _coding("libsvtav1", height=64, preset=12, **{"svtav1-params": "lp=1"}),
        "avi mp4 matroska webm flv asf obu ivf",
    ),
    "cfhd": (_coding("cfhd", "yuv422p10le"), "avi mov asf"),
    "cinepak": (_coding("cinepak", "rgb24", count=20), "avi mov asf nut"),
    "cljr": (_coding("cljr", "yuv411p", count=10), "avi asf"),
    "dnxhr": (_coding("dnxhd", "yuv422p", 128, 256, profile="dnxhr_sq", count=10), "mov mxf"),
    "dv": (_coding("dvvideo", "yuv420p", 576, 720, count=8), "avi mov dv"),
    "dxv": (_coding("dxv", "rgba", count=10), "mov"),
    "ffv1": (_coding("ffv1"), "avi mp4 matroska asf nut mxf"),
    "ffvhuff": (_coding("ffvhuff"), _ANY),
    "flashsv": (_coding("flashsv", "bgr24"), "avi flv asf swf"),
    "flashsv2": (_coding("flashsv2", "bgr24"), "flv"),
    "flv1": (_coding("flv"), "avi flv asf nut swf"),
    "gif": (_coding("gif", "pal8"), "mov gif nut"),
    "h261": (_coding("h261", height=144, width=176), "avi asf nut h261"),
    "h263": (_coding("h263", height=96, width=128), "avi mov 3gp asf nut h263"),
    "h263p": (_coding("h263p"), "avi asf nut"),
    "h264": (
        _coding("libx264", preset="veryfast", bf=0, sc_threshold=0, **{"x264-params": _X264}),
        "avi mov mp4 3gp matroska mpegts flv mpeg asf nut h264 mxf",
    ),
    "h264rgb": (
        _coding("libx264rgb", "bgr24", preset="ultrafast", **{"x264-params": _X264}),
        "avi mov mp4 matroska mpegts h264",
    ),
    "h265": (
        _coding("libx265", preset="ultrafast", **{"x265-params": f"{_X265}:open-gop=0:bframes=0"}),
        "mov mp4 matroska mpegts flv mpeg nut hevc",
    ),
    "huffyuv": (_coding("huffyuv", "yuv422p"), _ANY),
    "jpeg2000": (_coding("jpeg2000", count=10), "avi mov mp4 matroska asf mxf"),
    "jpegls": (_coding("jpegls", "rgb24", count=10), "avi asf"),
    "ljpeg": (_coding("ljpeg", "yuvj420p"), "avi asf"),
    "magicyuv": (_coding("magicyuv"), "avi mov asf"),
    "mjpeg": (
        _coding("mjpeg", "yuvj420p", huffman="default", qmin=5, qmax=5),
        "avi mov mp4 matroska asf nut mjpeg swf",
    ),  # the same tables in each picture
    "mpeg1": (_coding("mpeg1video"), "avi mov mp4 matroska mpegts mpeg asf nut mpeg1video"),
    "mpeg2": (_coding("mpeg2video"), "avi mov mp4 matroska mpegts mpeg asf nut mpeg2video mxf"),
    "mpeg4": (_coding("mpeg4"), "avi mov mp4 3gp matroska mpegts mpeg asf nut m4v"),
    "msmpeg4": (_coding("msmpeg4"), "avi mov matroska asf nut"),
    "msmpeg4v2": (_coding("msmpeg4v2"), _ANY),
    "msrle": (_coding("msrle", "pal8"), "avi mov asf"),
    "msvideo1": (_coding("msvideo1", "rgb555le"), _ANY),
    "pal8": (_coding("rawvideo", "pal8"), "avi mov nut"),
    "png": (_coding("png", "rgb24", count=10), "avi mov mp4 asf"),
    "png_pal8": (_coding("png", "pal8", count=10), "avi mov mp4 asf"),
    "prores": (_coding("prores_ks", "yuv422p10le", count=10), "mov matroska mxf"),
    "qtrle": (_coding("qtrle", "rgb24"), "mov"),
    "r210": (_coding("r210", "gbrp10le", count=10), "avi mov"),
    "raw": (_coding("rawvideo"), "avi matroska asf nut"),
    "raw_rgb": (_coding("rawvideo", "bgr24"), "avi mov nut"),
    "rpza": (_coding("rpza", "rgb555le"), "avi mov asf"),
    "rv10": (_coding("rv10"), "rm"),
    "rv20": (_coding("rv20"), "rm"),
    "smc": (_coding("smc", "pal8"), "mov"),
    "snow": (_coding("snow", count=20, strict=-2), "avi matroska asf"),
    "speedhq": (_coding("speedhq", count=10), "avi asf"),
    "svq1": (_coding("svq1", "yuv410p"), "avi mov asf"),
    "targa": (_coding("targa", "bgr24", count=10), "avi mov"),
    "tiff": (_coding("tiff", "rgb24", count=10), "mov"),
    "utvideo": (_coding("utvideo"), _ANY),
    "v210": (_coding("v210", "yuv422p10le", count=10), "avi mov asf"),
    "vp8": (_coding("libvpx", **_VPX), "avi matroska webm ogg asf nut ivf"),
    "vp9": (_coding("libvpx-vp9", **_VPX), "avi mp4 matroska webm flv asf nut ivf"),
    "wmv1": (_coding("wmv1"), _ANY),
    "wmv2": (_coding("wmv2"), _ANY),
    "zlib": (_coding("zlib", "bgr24", count=10), "avi asf"),
    "zmbv": (_coding("zmbv", "bgr0"), _ANY),
    "zmbv_pal8": (_coding("zmbv", "pal8"), _ANY),
}
CODINGS = {codec: coding for codec, (coding, _) in _TABLE.items()}
CONTAINERS = {codec: containers.split() for codec, (_, containers) in _TABLE.items()}


@dataclass
class Case:
    """A file of the matrix.

    Args:
        codec: Of `CODINGS`.
        container: As FFmpeg's muxer calls it.
        property: What is rare about it.
        make: Returns its bytes.
        damaged: Whether an error is a right answer.
        seed: Tells files of one kind of damage apart.
        matrix: a, b, c, d; a stored pixel (x, y) is shown at (a x + c y, b x + d y).
    """

    codec: str
    container: str
    property: str
    make: Callable[[], bytes]
    damaged: bool = False
    seed: int = 0
    matrix: Matrix = (1, 0, 0, 1)

    @property
    def name(self) -> str:
        """Unique, and that of its file."""
        number = f"-{self.seed}" if self.damaged else ""
        return f"{self.codec}-{self.property}{number}.{_SUFFIXES.get(self.container, self.container)}"

    def write(self, folder: Path) -> Path | None:
        """Makes the file. Returns None where this FFmpeg cannot."""
        try:
            data = self.make()
        except (av.FFmpegError, ValueError, NotImplementedError, AttributeError, TypeError):
            return None
        path = folder / self.name
        path.write_bytes(data)
        return path


def cases() -> list[Case]:
    """The whole matrix, always in the same order."""
    return [*_plain(), *_times(), *_pictures(), *_turned(), *_changes(), *_hidden_state(), *_damaged()]


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


def _made(codec: str, container: str, property: str, make: Callable[..., bytes], *given: Any, **of_case: Any) -> Case:
    return Case(codec, container, property, partial(make, *given), **of_case)


def _case(codec: str, container: str, property: str, coding: Coding, **options: Any) -> Case:
    return Case(codec, container, property, partial(encoded, coding, container, **options))


def _remuxed(coding: Coding, source: str, container: str, edit: Callable[..., Any], *muxer: dict[str, str]) -> bytes:
    return remuxed([encoded(coding, source)], container, edit, *muxer)


def _plain() -> Iterator[Case]:
    """Every codec in every container that can hold it."""
    for codec, containers in CONTAINERS.items():
        for container in containers:
            yield _case(codec, container, "gop", CODINGS[codec])
    for codec, tag in _VFW_TAGS.items():
        yield _made(codec, "matroska", "as_in_avi", _vfw, codec, tag)


def _vfw(codec: str, tag: bytes) -> bytes:
    return in_matroska(encoded(CODINGS[codec], "avi"), tag)


# Codecs that Matroska holds as AVI does.
_VFW_TAGS = {
    "h261": b"H261", "h263": b"H263", "h263p": b"H263", "flv1": b"FLV1", "wmv1": b"WMV1", "wmv2": b"WMV2",
    "msmpeg4v2": b"MP42", "cinepak": b"cvid", "huffyuv": b"HFYU", "ffvhuff": b"FFVH", "utvideo": b"ULY0",
    "zmbv": b"ZMBV", "svq1": b"SVQ1", "amv": b"AMVF", "rpza": b"azpr", "msvideo1": b"CRAM",
}  # fmt: skip

# Inter-coded, and where each of them lives.
_INTER = {
    "h264": "mp4 matroska mpegts flv avi mxf nut", "h265": "mp4 matroska mpegts nut", "mpeg1": "mpeg mpegts avi",
    "mpeg2": "mpegts mpeg matroska mp4 avi mxf", "mpeg4": "avi mp4 matroska mpegts m4v nut", "h263p": "avi",
    "flv1": "flv", "msmpeg4": "avi matroska", "wmv2": "asf", "vp8": "webm ivf ogg", "vp9": "webm mp4 ivf",
    "av1": "mp4 webm ivf", "snow": "avi", "svq1": "mov", "zmbv": "avi", "apng": "apng", "rv10": "rm", "rv20": "rm",
}  # fmt: skip
_B = ("h264", "h265", "mpeg1", "mpeg2", "mpeg4")


def _b(codec: str, coding: Coding | None = None, **options: Any) -> Coding:
    """With B-frames."""
    coding = coding or CODINGS[codec]
    if codec == "h265":
        return coding.having(**{"x265-params": f"{_X265}:bframes=3:b-adapt=0:open-gop={options.get('open', 0)}"})
    return coding.having(bf=options.get("bf", 2))


def _x264(**options: Any) -> Coding:
    text = ":".join(f"{key.replace('_', '-')}={value}" for key, value in options.items())
    return CODINGS["h264"].having(preset="medium", **{"x264-params": f"{_X264}:{text}"})


def _shown(codec: str) -> Coding:
    return _b(codec) if codec in _B else CODINGS[codec]


def _times() -> Iterator[Case]:
    """When frames are shown, in which order they are stored, and what is shown of them."""
    for codec, container in _each(_INTER):
        coding, shown = CODINGS[codec], _shown(codec)
        yield _case(codec, container, "long", coding.having(g=250))
        if codec in _B:
            yield _case(codec, container, "b_frames", shown)
        if container not in ("avi", "m4v", "ivf", "mxf"):
            times = tuple(3 * n + n % 2 + (40 if n > 20 else 0) for n in range(COUNT))[: shown.count]
            yield _case(codec, container, "variable_rate", replace(shown, count=COUNT), times=times, rate=50)
            yield _case(codec, container, "late_start", shown, times=tuple(range(700, 700 + shown.count)))
        yield _made(codec, container, "all_key", _remuxed, shown, container, container, _all_key)
        if container in ("matroska", "webm", "mpegts", "mpeg", "flv", "ogg"):
            yield _made(codec, container, "repeated_times", _remuxed, coding, container, container, _in_pairs)
    for container in ("mpegts", "mpeg"):
        for codec in ("mpeg1", "mpeg2", "mpeg4", "h264", "h265"):
            for property, shift in (("wrapped", 2**33 - 20 * 3600), ("negative", -20 * 3600)):
                given = _b(codec), container, container, _later(shift), _TS[container]
                yield _made(codec, container, property, _remuxed, *given)
    for codec in ("h264", "h265", "mpeg4", "mpeg2", "vp9", "av1", "mjpeg"):
        coding = _shown(codec)
        for skipped, kept in ((5, 30), (14, 20)):
            yield _made(codec, "mp4", f"edit_list_{skipped}", _cut, coding, skipped, kept)
        yield _case(codec, "mp4", "fragments", coding, muxer=(("movflags", "frag_keyframe+empty_moov"),))
        yield _case(codec, "mp4", "faststart", coding, muxer=_FASTSTART)
        for container in ("mov", "matroska"):
            yield _case(codec, container, "negative", coding, times=tuple(range(-7, coding.count - 7)))
    for codec, container in (("h264", "mp4"), ("mjpeg", "mov"), ("mpeg4", "mp4")):
        yield _made(codec, container, "mdat_too_long", _mdat_too_long, CODINGS[codec], container)
    for codec, container in _each({"h264": "mp4 matroska mpegts flv avi", "mpeg2": "mpeg", "vp8": "matroska"}):
        yield _case(codec, container, "audio", _shown(codec), audio=True)


_FASTSTART = (("movflags", "faststart"),)


def _cut(coding: Coding, skipped: int, kept: int) -> bytes:
    return mp4_cut(encoded(coding, "mp4"), skipped, kept)


def _mdat_too_long(coding: Coding, container: str) -> bytes:
    data = encoded(coding, container, muxer=_FASTSTART)
    at = data.index(b"mdat") - 4
    return data[:at] + (int.from_bytes(data[at : at + 4], "big") + 8).to_bytes(4, "big") + data[at + 4 :]


_TS: dict[str, dict[str, str]] = {"mpegts": {"mpegts_copyts": "1"}, "mpeg": {}}


def _all_key(pieces: list[Piece]) -> list[Piece]:
    for piece in pieces:
        piece.key = True
    return pieces


def _in_pairs(pieces: list[Piece]) -> list[Piece]:
    """Two frames each claim one time."""
    for place, piece in enumerate(pieces):
        piece.pts = piece.dts = 3600 * (place // 2)
    return pieces


def _later(shift: int) -> Callable[[list[Piece]], list[Piece]]:
    def edit(pieces: list[Piece]) -> list[Piece]:
        for piece in pieces:
            piece.pts, piece.dts = (piece.pts or 0) + shift, (piece.dts or 0) + shift
        return pieces

    return edit


def _pictures() -> Iterator[Case]:
    """What a picture is, and which others it refers to."""
    for container in ("mp4", "matroska", "mpegts"):
        yield _case("h264", container, "pyramid", _x264(b_pyramid="normal", bframes=8, b_adapt=0))
        yield _case("h264", container, "strict_pyramid", _x264(b_pyramid="strict", bframes=5, b_adapt=0))
        yield _case("h264", container, "open_gop", _x264(open_gop=1, bframes=3, b_adapt=0))
        yield _case("h264", container, "intra_refresh", _x264(intra_refresh=1))
        yield _case("h264", container, "interlaced", _x264(interlaced=1, bframes=2))
        yield _case("h264", container, "fake_interlaced", _x264(fake_interlaced=1))
        yield _case("h264", container, "slices", _x264(slices=3))
        yield _case("h264", container, "headers_repeated", _x264(repeat_headers=1, bframes=2))
        yield _case("h265", container, "open_gop", _b("h265", open=1))
        yield _case("h265", container, "radl", CODINGS["h265"].having(**{"x265-params": f"{_X265}:open-gop=0:radl=2"}))
        fields = CODINGS["h265"].having(**{"x265-params": f"{_X265}:interlace=tff"})
        yield _case("h265", container, "interlaced", fields)
    for codec, container in _each({"mpeg2": "mpegts mpeg mp4 avi", "mpeg4": "avi mp4 matroska"}):
        yield _case(codec, container, "interlaced", _b(codec).having(flags="+ildct+ilme", top=1))
        yield _case(codec, container, "closed_gop", _b(codec).having(flags="+cgop", sc_threshold=1000000000))
        if codec == "mpeg4":
            yield _case(codec, container, "quarter_pixels", _b(codec).having(flags="+qpel"))
        yield _case(codec, container, "matrices", _b(codec).having(mpeg_quant=1, flags="+aic"))
        yield _case(codec, container, "packets_of_slices", CODINGS[codec].having(slices=3, ps=200))
    for codec in ("prores", "ffv1", "utvideo"):
        yield _case(codec, CONTAINERS[codec][0], "interlaced", CODINGS[codec].having(flags="+ildct", top=1))
    formats = {
        "apng": "rgba gray pal8 ya8 rgb48be monob",
        "h264": "gray yuv422p yuv444p yuv420p10le yuv422p10le yuvj420p nv12",
        "h265": "gray yuv444p yuv420p10le yuv422p12le", "vp9": "yuv444p yuv422p yuva420p gbrp", "av1": "yuv420p10le",
        "mpeg2": "yuv422p", "mjpeg": "yuvj422p yuvj444p",
        "ffv1": "gray gray16le yuv444p16le yuva420p bgra yuv410p gbrp10le", "huffyuv": "rgb24 bgra",
        "utvideo": "gbrp gbrap yuv444p", "raw": "gray rgb555le yuyv422 uyvy422 nv12 yuv410p bgra monow",
        "png": "rgba gray rgb48be monob", "qtrle": "rgb555be argb gray", "gif": "gray rgb8 bgr4_byte",
        "zmbv": "rgb555le rgb565le", "jpeg2000": "rgb24 gray yuv444p", "ljpeg": "bgr24 yuvj444p", "cinepak": "gray",
        "snow": "gray yuv444p",
    }  # fmt: skip
    for codec, name in _each(formats):
        container = {"h264": "mp4", "h265": "mp4", "raw": "avi"}.get(codec, CONTAINERS[codec][0])
        container = "matroska" if codec in ("vp8", "vp9", "ffv1") else container
        yield _case(codec, container, f"pixels_{name}", replace(CODINGS[codec], pix_fmt=name))
    main = ("h264", "h265", "mpeg4", "mpeg2", "mjpeg", "vp8", "vp9")
    for codec in (*main, "ffv1", "wmv2", "raw", "qtrle", "pal8", "msrle"):
        container = {"h264": "mp4", "vp9": "webm", "wmv2": "asf"}.get(codec, CONTAINERS[codec][0])
        for height, width in ((50, 66), (37, 51)):
            if height % 2 and codec == "wmv2":
                continue
            coding = replace(CODINGS[codec], height=height, width=width)
            if height % 2 and codec in ("h264", "h265"):
                coding = replace(coding, pix_fmt="yuv444p")
            yield _case(codec, container, f"size_{height}x{width}", coding)
    colours = {"bt709": (1, 1), "bt601_full": (6, 2), "bt709_full": (1, 2), "bt2020": (9, 1)}
    for codec, container in _each({"h264": "mp4 mpegts", "h265": "mp4", "vp9": "webm", "mpeg2": "mpegts"}):
        for name, numbers in colours.items():
            yield _case(codec, container, f"colours_{name}", replace(_shown(codec), colours=numbers))


TURNS: dict[str, Matrix] = {
    "mirrored": (-1, 0, 0, 1),
    "upside_down": (1, 0, 0, -1),
    "by_180": (-1, 0, 0, -1),
    "by_90": (0, 1, -1, 0),
    "transposed": (0, 1, 1, 0),
    "by_270": (0, -1, 1, 0),
    "transversed": (0, -1, -1, 0),
}
"""All ways to lay a rectangle on its sides but one; a, b, c, d as `Case` has them."""
# Orientations of EXIF 2.3, tag 0x112.
_EXIF = {2: "mirrored", 3: "by_180", 4: "upside_down", 5: "transposed", 6: "by_90", 7: "transversed", 8: "by_270"}
# The display orientation message of H.264 (ITU-T H.264, D.2.27): degrees counter-clockwise, then how to turn over.
_SEI = {"mirrored": (0, "horizontal"), "upside_down": (0, "vertical"), "by_90": (270, ""), "by_270": (90, "")}


def _turned() -> Iterator[Case]:
    """Frames that are stored otherwise than they are shown."""
    of_mp4 = dict.fromkeys(("h265", "mpeg4", "vp9", "av1"), "mp4")
    of_mov = dict.fromkeys(("mjpeg", "png", "prores", "gif"), "mov")
    for codec, container in _each({"h264": "mp4 mov", **of_mp4, **of_mov}):
        for name, matrix in TURNS.items():
            yield _made(codec, container, f"turned_{name}", _turn, codec, container, matrix, matrix=matrix)
    mjpeg = CODINGS["mjpeg"]
    for number, name in _EXIF.items():
        for container in ("mov", "avi", "mjpeg"):
            given = mjpeg, "avi", container, with_exif(number)
            yield _made("mjpeg", container, f"exif_{name}", _remuxed, *given, matrix=TURNS[name])
    for name, turn in _SEI.items():
        for container in ("mp4", "mpegts", "matroska"):
            yield _made("h264", container, f"sei_{name}", _sei, container, *turn, matrix=TURNS[name])


def _turn(codec: str, container: str, matrix: Matrix) -> bytes:
    return mp4_turned(encoded(CODINGS[codec], container), matrix)


def _sei(container: str, angle: int, flip: str) -> bytes:
    return remuxed([h264_turned(encoded(CODINGS["h264"], "h264"), angle, flip)], container)


_OTHER: dict[str, Callable[[Coding], Coding]] = {
    "h264": lambda coding: coding.having(**{"x264-params": f"{_X264}:cabac=0:8x8dct=0:ref=1:bframes=2:qpmin=20"}),
    "h265": lambda coding: coding.having(**{"x265-params": f"{_X265}:open-gop=0:ctu=16:cbqpoffs=6:bframes=0"}),
    "mpeg1": lambda coding: coding.having(bf=2),
    "mpeg2": lambda coding: coding.having(intra_vlc=1, dc=10),
    "mpeg4": lambda coding: coding.having(mpeg_quant=1, flags="+qpel"),
    "vp9": lambda coding: replace(coding, pix_fmt="yuv444p"),
    "mjpeg": lambda coding: replace(coding, pix_fmt="yuvj444p"),
}
_HALF = COUNT // 2


def _two(codec: str, container: str, change: Callable[[Coding], Coding]) -> tuple[bytes, bytes]:
    first = replace(CODINGS[codec], count=_HALF)
    return encoded(first, container), encoded(change(first), container, first=_HALF)


def _larger(coding: Coding) -> Coding:
    return replace(coding, height=96 if coding.height != 64 else 128, width=96)


# What gives the packets of each codec with their headers, and containers to put them in.
_SOURCES = {"h264": "mpegts", "h265": "mpegts", "mpeg1": "mpegts", "mpeg2": "mpegts", "mpeg4": "m4v", "vp8": "ivf"}
_SOURCES |= {"vp9": "ivf", "av1": "ivf", "mjpeg": "avi", "flv1": "flv"}
_TARGETS = {
    "h264": "mp4 matroska mpegts flv avi h264", "h265": "mp4 matroska mpegts hevc", "mpeg1": "mpegts mpeg matroska",
    "mpeg2": "mpegts mpeg matroska mp4 avi", "mpeg4": "avi mp4 matroska mpegts", "vp8": "webm ivf",
    "vp9": "webm ivf mp4", "av1": "webm ivf mp4", "mjpeg": "avi mov matroska", "flv1": "flv avi",
}  # fmt: skip
_WITH_HEADERS = ("h264", "h265", "mpeg1", "mpeg2", "mpeg4", "mjpeg", "av1")


def _changed(codec: str, container: str, change: Callable[[Coding], Coding], *edit: Any) -> bytes:
    return remuxed(_two(codec, _SOURCES[codec], change), container, *edit)


def _joined(codec: str, container: str, change: Callable[[Coding], Coding]) -> bytes:
    return b"".join(_two(codec, container, change))


def _second_header(codec: str, change: Callable[[Coding], Coding]) -> bytes:
    return flv_joined(*_two(codec, "flv", change))


def _two_kinds(codec: str, container: str, change: Callable[[Coding], Coding]) -> bytes:
    return mp4_of_two_kinds(*_two(codec, container, change), container)


def _changes() -> Iterator[Case]:
    """Streams that are another stream from their middle on."""
    for codec, containers in _TARGETS.items():
        for property, change in (("size_changes", _larger), ("headers_change", _OTHER.get(codec))):
            for container in containers.split() if change is not None else ():
                yield _made(codec, container, property, _changed, codec, container, change)
                if codec in _WITH_HEADERS:
                    yield _made(codec, container, f"{property}_once", _changed, codec, container, change, once(codec))
    joined = {
        "h264": "mpegts matroska flv h264 avi asf mp4", "h265": "mpegts hevc", "mpeg2": "mpegts mpeg mpeg2video",
        "mpeg4": "m4v avi", "vp8": "webm ivf ogg", "vp9": "webm ivf", "mjpeg": "mjpeg avi", "gif": "gif", "av1": "ivf",
    }  # fmt: skip
    for codec, container in _each(joined):
        for property, change in (("joined", lambda coding: coding), ("joined_other_size", _larger)):
            yield _made(codec, container, property, _joined, codec, container, change)
    for codec in ("h264", "flv1", "vp9", "h265", "av1"):
        for property, change in (("second_header_other_size", _larger), ("second_header", _OTHER.get(codec, _larger))):
            yield _made(codec, "flv", property, _second_header, codec, change)
    for codec in ("h264", "h265", "mpeg4", "vp9", "av1", "mpeg2"):
        for property, change in (("two_kinds_other_size", _larger), ("two_kinds", _OTHER.get(codec, _larger))):
            for container in ("mp4", "mov"):
                yield _made(codec, container, property, _two_kinds, codec, container, change)
    several = {"pal8": "avi mov nut", "msrle": "avi mov asf", "smc": "mov", "gif": "gif mov"}
    for codec, container in _each({**several, "zmbv_pal8": "avi", "png_pal8": "avi"}):
        for palettes in (4, COUNT):
            yield _case(codec, container, f"palettes_{palettes}", replace(CODINGS[codec], palettes=palettes))


def _hidden_state() -> Iterator[Case]:
    """Streams whose first packet tells what decoders know of all the others."""
    for codec, container in _each(_TARGETS):
        if codec in _WITH_HEADERS:
            given = CODINGS[codec], _SOURCES[codec], container, once(codec)
            yield _made(codec, container, "headers_once", _remuxed, *given)
    # Few pictures would be decoded otherwise and still without an error: these are.
    dct = replace(_x264(bframes=2, qp=38, **{"8x8dct": 1}), pix_fmt="yuv444p", height=32, width=32)
    for build in ("030", "120", "150"):
        for container in ("mp4", "matroska", "mpegts", "flv", "avi", "h264"):
            yield _made("h264", container, f"chroma_444_of_build_{build}", _of_build, dct, container, build)
    direct = _x264(bframes=3, direct="spatial", ref=4, b_pyramid="normal", b_adapt=0)
    for container in ("mp4", "mpegts"):
        yield _made("h264", container, "of_build_030", _of_build, direct, container, "030")
    for text in (b"XviD0001     ", b"XviD0046     ", b"DivX503b1393 ", b"DivX503b1393p", b"FFmpeg.b4650 "):
        name = text.decode().strip().rstrip("p").lower().replace(".", "_") + ("_packed" if text.endswith(b"p") else "")
        for container in ("avi", "matroska", "mp4", "mpegts", "m4v"):
            for ending in ("", "_once"):
                yield _made("mpeg4", container, name + ending, _by_encoder, text, container, bool(ending))
    notes = {
        "ITU601": b"CS=ITU601",
        "Intel": b"Intel(R) JPEG Library, version 1.51.12.44",
        "Metasoft": b"Metasoft MJPEG Codec",
        "AVID": b"AVID\x11" + bytes(7) + b"\2\0\0\0",
        "MULTISCOPE": b"MULTISCOPE II",
        "any": b"a camera",
    }
    mjpeg = CODINGS["mjpeg"]
    for name, text in notes.items():
        for container in ("avi", "mov", "matroska"):
            for where, place in (("once", 0), ("late", 20)):
                given = mjpeg, "avi", container, with_segment(0xFE, text, place)
                yield _made("mjpeg", container, f"comment_{name}_{where}", _remuxed, *given)
    adobe = b"Adobe\0\x64\0\0\0\0\0"
    segments = {"restarts": (0xDD, b"\0\1"), "pegasus": (0xE1, b"LJIF" + bytes(8) + b"\1"), "adobe": (0xEE, adobe)}
    for name, (marker, content) in segments.items():
        given = mjpeg, "avi", "avi", with_segment(marker, content, 0)
        yield _made("mjpeg", "avi", f"segment_{name}_once", _remuxed, *given)
    for container in ("avi", "mp4"):
        given = CODINGS["png_pal8"], container, container, _palette_once
        yield _made("png_pal8", container, "palette_once", _remuxed, *given)


def _palette_once(pieces: list[Piece]) -> list[Piece]:
    """PNG pictures with palettes, all but the first without."""
    for piece in pieces[1:]:
        at = piece.data.index(b"PLTE") - 4
        piece.data = piece.data[:at] + piece.data[at + 12 + int.from_bytes(piece.data[at : at + 4], "big") :]
    return pieces


def _of_build(coding: Coding, container: str, build: str) -> bytes:
    data = encoded(coding, container)
    at = data.index(b"x264 - core ") + 12
    return data[:at] + build.encode() + data[at + 3 :]


def _by_encoder(text: bytes, container: str, once_only: bool) -> bytes:
    """MPEG-4 with the user data of another encoder, in its first packet or in all that have some."""
    data = encoded(_b("mpeg4").having(flags="+qpel"), "m4v")
    at = data.index(b"Lavc")
    own = data[at : data.index(b"\0", at)]
    data = data.replace(own, text.ljust(len(own))[: max(len(own), len(text))])
    return remuxed([data], container, *[without_units(lambda unit: unit[0] == 0xB2)] * once_only)


# The main codecs, and damage that befalls them.
_MAIN = {
    "h264": "mp4 matroska mpegts flv avi h264", "h265": "mp4 matroska mpegts", "mpeg1": "mpeg",
    "mpeg2": "mpegts mpeg matroska", "mpeg4": "avi mp4", "vp8": "webm", "vp9": "webm mp4", "av1": "mp4 webm",
    "mjpeg": "avi mov mjpeg", "ffv1": "matroska", "flv1": "flv", "h263": "3gp avi", "msmpeg4": "avi", "wmv2": "asf",
    "pal8": "avi", "prores": "mov", "apng": "apng", "rv20": "rm",
}  # fmt: skip
_DAMAGE = {"truncated": 1, "zeroed": 2, "flipped": 2, "shifted": 1, "lost_ts": 4}
_LOST = ("lost_key", "lost_packet", "lost_first")


def _damaged() -> Iterator[Case]:
    for codec, container in _each(_MAIN):
        for kind, seeds in (_DAMAGE | dict.fromkeys(_LOST, 1)).items():
            for seed in range(seeds if kind != "lost_ts" or container == "mpegts" else 0):
                given = codec, container, kind, f"{codec} {container} {kind} {seed}"
                yield _made(codec, container, kind, _damage, *given, damaged=True, seed=seed)


def _damage(codec: str, container: str, kind: str, seed: str) -> bytes:
    data, draw = encoded(_shown(codec), container), random.Random(seed)
    return without_packets(data, container, kind, draw) if kind in _LOST else damaged(data, kind, draw)
