"""Videos of numbered frames in many codings, damaged copies of them, and what to ask of them."""

from __future__ import annotations

import os
import random
from pathlib import Path

import av

from tests.helpers.videos import numbered_frames, write_video

COUNT = 60
HEIGHT, WIDTH = 64, 80
FRAMES = numbered_frames(COUNT, HEIGHT, WIDTH)
H264 = {"g": "12", "bf": "3", "preset": "veryfast", "x264-params": "log-level=none"}
PREPARED = {"g": "33", "keyint_min": "33", "sc_threshold": "0", "bf": "15", "b_strategy": "0", "tune": "fastdecode"}
PREPARED |= {"x264-params": "b-pyramid=none:log-level=none"}
H265 = "keyint=12:min-keyint=12:bframes=3:log-level=none"


def _x264(**parameters):
    text = "".join(f"{name.replace('_', '-')}={value}:" for name, value in parameters.items())
    return {"x264-params": f"{text}log-level=none"}


def _x265(parameters="", pix_fmt="yuv420p"):
    options = {"preset": "ultrafast", "x265-params": H265 + parameters}
    return {"codec": "libx265", "pix_fmt": pix_fmt, "options": options}


def _vpx(codec, **options):
    return {"codec": codec, "options": {"g": "12", "deadline": "realtime", **options}}


_MPEG4, _MPEG4_B = ({"codec": "mpeg4", "options": {"g": "12", **more}} for more in ({}, {"bf": "2"}))
_MPEG2 = {"codec": "mpeg2video", "options": {"g": "12", "bf": "2"}}
_AV1 = {"codec": "libsvtav1", "options": {"g": "12", "preset": "12", "svtav1-params": "lp=1"}}
_VP8, _VP9 = _vpx("libvpx", **{"cpu-used": "16"}), _vpx("libvpx-vp9", **{"cpu-used": "8"})
_GOP_12 = {"options": H264}
_VARIABLE_RATE = {"options": H264, "pts": [3 * n + n % 2 + (40 if n > 30 else 0) for n in range(COUNT)]}

# Name of the file -> how it is encoded. The suffix tells the container.
CODINGS: dict[str, dict] = {
    **dict.fromkeys(["gop_12.mp4", "gop_12.mkv", "gop_12.ts", "gop_12.flv"], _GOP_12),
    "gop_250.mp4": {"options": H264 | {"g": "250", "sc_threshold": "0"}},
    "no_b.mov": {"options": H264 | {"bf": "0"}},
    "pyramid.mp4": {"options": {"g": "24", **_x264(b_pyramid="normal", bframes=8, b_adapt=0)}},
    "open_gop.mp4": {"options": {"g": "12", **_x264(open_gop=1, bframes=3, b_adapt=0)}},
    "intra_refresh.mp4": {"options": {"g": "12", **_x264(intra_refresh=1)}},
    "strict_pyramid.mp4": {"options": {"g": "24", **_x264(b_pyramid="strict", bframes=5, b_adapt=0)}},
    "b_16.mp4": {"options": {"g": "48", **_x264(b_pyramid="normal", bframes=16, b_adapt=0)}},
    "one_reference.mp4": {"options": H264 | {"refs": "1"}},
    "four_slices.mp4": {"options": H264 | _x264(slices=4)},
    "interlaced.mp4": {"options": H264 | _x264(interlaced=1)},
    "headers_repeated.mp4": {"options": H264 | _x264(repeat_headers=1)},
    "prepared.mp4": {"options": PREPARED, "container_options": {"movflags": "faststart"}},
    "fragments.mp4": {"options": H264, "container_options": {"movflags": "frag_keyframe+empty_moov"}},
    "faststart.mp4": {"options": H264, "container_options": {"movflags": "faststart"}, "audio": True},
    "times_lost.avi": {"options": H264},  # AVI has no place for the times of B-frames
    "no_times.h264": {"options": H264},
    "gray.mp4": {"options": H264, "pix_fmt": "gray"},
    "chroma_444.mp4": {"options": H264, "pix_fmt": "yuv444p"},
    "ten_bits.mp4": {"options": H264, "pix_fmt": "yuv420p10le"},
    **dict.fromkeys(["h265.mp4", "h265.ts"], _x265(":open-gop=0")),
    **dict.fromkeys(["h265_open_gop.mkv", "h265_open_gop.ts"], _x265(":open-gop=1")),
    "h265_radl.mp4": _x265(":open-gop=0:radl=2"),
    "h265_ten_bits.mp4": _x265(pix_fmt="yuv420p10le"),
    "h265.mov": _x265(),
    **dict.fromkeys(["vp8.webm", "vp8.ivf"], _VP8),
    **dict.fromkeys(["vp9.webm", "vp9.mp4"], _VP9),
    # Tells neither the number of its frames nor a duration.
    "live.webm": _vpx("libvpx-vp9", **{"lag-in-frames": "0"}) | {"container_options": {"live": "1"}},
    "vp9_hidden.webm": {
        "codec": "libvpx-vp9",
        "options": {"g": "30", "auto-alt-ref": "1", "lag-in-frames": "16", "cpu-used": "5"},
    },
    **dict.fromkeys(["av1.mp4", "av1.webm"], _AV1),
    "mpeg4.avi": _MPEG4,
    **dict.fromkeys(["mpeg4_b.mkv", "mpeg4_b.avi", "mpeg4_b.mp4"], _MPEG4_B),
    "mjpeg.avi": {"codec": "mjpeg", "pix_fmt": "yuvj420p"},
    **dict.fromkeys(["mpeg2.mpg", "mpeg2.ts"], _MPEG2),
    "wmv2.wmv": {"codec": "wmv2", "options": {"g": "12"}},
    "lossless.mkv": {"codec": "ffv1"},
    "late_start.mp4": {"options": H264, "pts": range(700, 700 + COUNT)},
    **dict.fromkeys(["variable_rate.mp4", "variable_rate.mkv"], _VARIABLE_RATE),
}


def written(folder: Path, name: str) -> Path:
    """One of `CODINGS` in a folder, written at the first call."""
    path = folder / name
    return path if path.exists() else write_video(path, FRAMES, **CODINGS[name])


def requests(length: int, count: int) -> list[list[int]]:
    """Frames in any order, some of them repeated, and clips of 8 at a stride of 4."""
    draw = random.Random(0)
    singles = [draw.choices(range(length), k=draw.choice([1, 2, 5, 9])) for _ in range(count)]
    starts = [draw.randrange(max(1, length - 28)) for _ in range(count // 2)]
    return singles + [[min(start + 4 * point, length - 1) for point in range(8)] for start in starts]


def damage(path: Path, target: Path, packet: int, spared: float = 0) -> Path:
    """A copy in which one packet is overwritten, but for a share at its beginning."""
    with av.open(str(path)) as container:
        hit = [found for found in container.demux(video=0) if found.size][packet]
        place, size = hit.pos, hit.size
    data = bytearray(path.read_bytes())
    kept = int(size * spared)
    data[place + kept : place + size] = b"\xff" * (size - kept)
    target.write_bytes(data)
    return target


def real_videos() -> list[Path]:
    """Files from cameras and websites, where there are some."""
    default = Path(__file__).parents[3] / "shared" / "videos"
    root = Path(os.environ.get("LIGHTNING_MULTIGRID_TEST_VIDEOS", default))
    return sorted(root.iterdir()) if root.is_dir() else []
