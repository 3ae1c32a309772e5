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

# Name of the file -> how it is encoded. The suffix tells the container.
CODINGS: dict[str, dict] = {
    "gop_12.mp4": {"options": H264},
    "gop_12.mkv": {"options": H264},
    "gop_12.ts": {"options": H264},
    "gop_12.flv": {"options": H264},
    "gop_250.mp4": {"options": H264 | {"g": "250", "sc_threshold": "0"}},
    "no_b.mov": {"options": H264 | {"bf": "0"}},
    "pyramid.mp4": {"options": {"g": "24", "x264-params": "b-pyramid=normal:bframes=8:b-adapt=0:log-level=none"}},
    "open_gop.mp4": {"options": {"g": "12", "x264-params": "open-gop=1:bframes=3:b-adapt=0:log-level=none"}},
    "intra_refresh.mp4": {"options": {"g": "12", "x264-params": "intra-refresh=1:log-level=none"}},
    "strict_pyramid.mp4": {
        "options": {"g": "24", "x264-params": "b-pyramid=strict:bframes=5:b-adapt=0:log-level=none"}
    },
    "b_16.mp4": {"options": {"g": "48", "x264-params": "b-pyramid=normal:bframes=16:b-adapt=0:log-level=none"}},
    "one_reference.mp4": {"options": H264 | {"refs": "1"}},
    "four_slices.mp4": {"options": H264 | {"x264-params": "slices=4:log-level=none"}},
    "interlaced.mp4": {"options": H264 | {"x264-params": "interlaced=1:log-level=none"}},
    "headers_repeated.mp4": {"options": H264 | {"x264-params": "repeat-headers=1:log-level=none"}},
    "prepared.mp4": {"options": PREPARED, "container_options": {"movflags": "faststart"}},
    "fragments.mp4": {"options": H264, "container_options": {"movflags": "frag_keyframe+empty_moov"}},
    "faststart.mp4": {"options": H264, "container_options": {"movflags": "faststart"}, "audio": True},
    "times_lost.avi": {"options": H264},  # AVI has no place for the times of B-frames
    "no_times.h264": {"options": H264},
    "gray.mp4": {"options": H264, "pix_fmt": "gray"},
    "chroma_444.mp4": {"options": H264, "pix_fmt": "yuv444p"},
    "ten_bits.mp4": {"options": H264, "pix_fmt": "yuv420p10le"},
    "h265.mp4": {"codec": "libx265", "options": {"preset": "ultrafast", "x265-params": H265 + ":open-gop=0"}},
    "h265_radl.mp4": {
        "codec": "libx265",
        "options": {"preset": "ultrafast", "x265-params": H265 + ":open-gop=0:radl=2"},
    },
    "h265_open_gop.mkv": {"codec": "libx265", "options": {"preset": "ultrafast", "x265-params": H265 + ":open-gop=1"}},
    "h265_ten_bits.mp4": {
        "codec": "libx265",
        "pix_fmt": "yuv420p10le",
        "options": {"preset": "ultrafast", "x265-params": H265},
    },
    "h265.mov": {"codec": "libx265", "options": {"preset": "ultrafast", "x265-params": H265}},
    "h265.ts": {"codec": "libx265", "options": {"preset": "ultrafast", "x265-params": H265 + ":open-gop=0"}},
    "vp8.webm": {"codec": "libvpx", "options": {"g": "12", "cpu-used": "16", "deadline": "realtime"}},
    "vp8.ivf": {"codec": "libvpx", "options": {"g": "12", "cpu-used": "16", "deadline": "realtime"}},
    "vp9.webm": {"codec": "libvpx-vp9", "options": {"g": "12", "cpu-used": "8", "deadline": "realtime"}},
    "live.webm": {  # tells neither the number of its frames nor a duration
        "codec": "libvpx-vp9",
        "options": {"g": "12", "cpu-used": "8", "lag-in-frames": "0"},
        "container_options": {"live": "1"},
    },
    "vp9_hidden.webm": {
        "codec": "libvpx-vp9",
        "options": {"g": "30", "auto-alt-ref": "1", "lag-in-frames": "16", "cpu-used": "5"},
    },
    "av1.mp4": {"codec": "libsvtav1", "options": {"g": "12", "preset": "12", "svtav1-params": "lp=1"}},
    "av1.webm": {"codec": "libsvtav1", "options": {"g": "12", "preset": "12", "svtav1-params": "lp=1"}},
    "vp9.mp4": {"codec": "libvpx-vp9", "options": {"g": "12", "cpu-used": "8", "deadline": "realtime"}},
    "mpeg4_b.mkv": {"codec": "mpeg4", "options": {"g": "12", "bf": "2"}},
    "mpeg4.avi": {"codec": "mpeg4", "options": {"g": "12"}},
    "mpeg4_b.avi": {"codec": "mpeg4", "options": {"g": "12", "bf": "2"}},
    "mpeg4_b.mp4": {"codec": "mpeg4", "options": {"g": "12", "bf": "2"}},
    "mjpeg.avi": {"codec": "mjpeg", "pix_fmt": "yuvj420p"},
    "mpeg2.mpg": {"codec": "mpeg2video", "options": {"g": "12", "bf": "2"}},
    "mpeg2.ts": {"codec": "mpeg2video", "options": {"g": "12", "bf": "2"}},
    "h265_open_gop.ts": {"codec": "libx265", "options": {"preset": "ultrafast", "x265-params": H265 + ":open-gop=1"}},
    "wmv2.wmv": {"codec": "wmv2", "options": {"g": "12"}},
    "lossless.mkv": {"codec": "ffv1"},
    "late_start.mp4": {"options": H264, "pts": range(700, 700 + COUNT)},
    "variable_rate.mp4": {"options": H264, "pts": [3 * n + n % 2 + (40 if n > 30 else 0) for n in range(COUNT)]},
    "variable_rate.mkv": {"options": H264, "pts": [3 * n + n % 2 + (40 if n > 30 else 0) for n in range(COUNT)]},
}


def written(folder: Path, name: str) -> Path:
    """One of `CODINGS` in a folder, written at the first call."""
    path = folder / name
    return path if path.exists() else write_video(path, FRAMES, **CODINGS[name])


def requests(length: int, count: int, seed: int = 0) -> list[list[int]]:
    """Frames in any order, some of them repeated, and clips of 8 at a stride of 4."""
    draw = random.Random(seed)
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
