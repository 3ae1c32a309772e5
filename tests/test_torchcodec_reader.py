"""torchcodec gives the frames of `VideoReader` and its errors, or leaves the video to it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lightning_multigrid import torchcodec_reader, watched_file
from lightning_multigrid.decode import Box, VideoError, VideoReader
from lightning_multigrid.torchcodec_reader import TorchcodecReader, check_torchcodec
from tests.test_decode import (
    CODINGS,
    COUNT,
    FAULTS,
    FRAMES,
    H264,
    concat,
    damage,
    dash,
    edited,
    faults,
    hls,
    real_videos,
    requests,
    written,
)
from tests.test_watched_file import Hanging
from tests.videos import decode_all, numbered_frames, write_video

try:
    check_torchcodec()
    has_torchcodec = True
except ImportError:
    has_torchcodec = False

needs_torchcodec = pytest.mark.skipif(not has_torchcodec, reason="torchcodec, or FFmpeg's libraries, are not installed")

# Files that torchcodec reads as it is used here; the others are left to PyAV.
ITS_OWN = {"gop_12.mp4", "gop_12.mkv", "gop_250.mp4", "no_b.mov", "pyramid.mp4", "strict_pyramid.mp4", "b_16.mp4"}
ITS_OWN |= {"h265_open_gop.mkv", "one_reference.mp4", "four_slices.mp4", "headers_repeated.mp4", "prepared.mp4"}
ITS_OWN |= {"fragments.mp4", "faststart.mp4", "gray.mp4", "chroma_444.mp4", "h265.mp4", "h265.mov", "vp8.webm"}
ITS_OWN |= {"h265_radl.mp4", "vp9.webm", "vp9_hidden.webm", "vp9.mp4", "av1.mp4", "av1.webm", "late_start.mp4"}
ITS_OWN |= {"variable_rate.mp4", "variable_rate.mkv"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("videos")


def opened(path: Path, **options) -> TorchcodecReader:
    return TorchcodecReader(VideoReader(path, **options))


def outcome(reader: VideoReader | TorchcodecReader, indices: list[int]) -> object:
    """The frames, or what is wrong with the video."""
    try:
        return reader.read(indices).numpy().tobytes()
    except VideoError as error:
        return str(error)


def read_all(reader: TorchcodecReader) -> None:
    for index in range(COUNT):
        reader.read([index])


def assert_reads_as(path: Path, expected: np.ndarray, count: int) -> int:
    """Compares frames, and returns how many clips torchcodec decoded."""
    with opened(path) as reader:
        assert (len(reader), reader.height, reader.width) == expected.shape[:3]
        for indices in [*requests(len(expected), count), list(range(len(expected)))]:
            assert np.array_equal(reader.read(indices).numpy(), expected[indices]), indices
        return reader.clips_decoded


@needs_torchcodec
@pytest.mark.parametrize("name", CODINGS)
def test_frames_are_those_of_a_whole_decode(folder, name):
    path = written(folder, name)
    its_own = assert_reads_as(path, decode_all(path), count=4)
    assert bool(its_own) == (name in ITS_OWN)


@needs_torchcodec
@pytest.mark.parametrize("path", real_videos(), ids=lambda path: path.name)
def test_real_videos(path):
    with VideoReader(path) as ours, opened(path) as reader:
        assert (len(reader), reader.rate, reader.height, reader.width) == (
            len(ours),
            ours.rate,
            ours.height,
            ours.width,
        )
        for indices in requests(min(len(ours), 300), 2):
            assert outcome(reader, indices) == outcome(ours, indices)


@needs_torchcodec
@pytest.mark.parametrize("matrix", ["bt709", "smpte170m", "bt470bg"])
@pytest.mark.parametrize("pixels", ["yuv420p", "yuvj420p"])
def test_colours_are_the_same(tmp_path, matrix, pixels):
    options = H264 | {"x264-params": f"colormatrix={matrix}:log-level=none"}
    path = write_video(tmp_path / "colours.mp4", FRAMES[:12], options=options, pix_fmt=pixels)
    assert assert_reads_as(path, decode_all(path), count=2) > 0


@needs_torchcodec
@pytest.mark.parametrize(("height", "width"), [(62, 98), (128, 34)])
def test_frames_of_no_round_size(tmp_path, height, width):
    path = write_video(tmp_path / "size.mp4", numbered_frames(12, height, width), options=H264)
    assert assert_reads_as(path, decode_all(path), count=2) > 0


@needs_torchcodec
@pytest.mark.parametrize("rotation", [90, 180, 270, "mirrored"])
def test_turned_videos_are_left_to_pyav(tmp_path, rotation):
    path = write_video(tmp_path / "turned.mp4", FRAMES[:20], options=H264, rotation=rotation)
    box = Box(3, 5, 20, 30)
    with VideoReader(path) as ours, opened(path) as reader:
        assert np.array_equal(reader.read([17, 4], box), ours.read([17, 4], box))
        assert reader.clips_decoded == 0


@needs_torchcodec
@pytest.mark.parametrize("name", ["gop_12.mp4", "h265.mp4"])
def test_frames_that_an_edit_list_leaves_out_do_not_count(folder, tmp_path, name):
    path = edited(written(folder, name), tmp_path / name, 14, 20)
    assert_reads_as(path, decode_all(path), count=4)


@needs_torchcodec
def test_a_box_is_cut_and_order_and_repeats_are_kept(folder):
    path = written(folder, "gop_12.mp4")
    whole = decode_all(path)
    with opened(path) as reader:
        part = reader.read([59, 0, 0, 31], Box(7, 9, 21, 33))
        assert np.array_equal(part.numpy(), whole[[59, 0, 0, 31], 7:28, 9:42])
        assert part.is_contiguous()
        assert part.untyped_storage().nbytes() == part.nbytes  # the rest of the frames is let go of
        assert reader.clips_decoded == 1
        assert tuple(reader.read([]).shape) == (0, 64, 80, 3)
        for box in (Box(0, 0, 65, 80), Box(-1, 0, 8, 8), Box(57, 0, 8, 8), Box(0, 0, 0, 8)):
            with pytest.raises(ValueError, match="`box` must lie within the frame of 64 x 80"):
                reader.read([0], box)
        for index in (-1, COUNT):
            with pytest.raises(IndexError, match=rf"`indices` must lie in 0 to 59 in .*gop_12.mp4, got {index}\."):
                reader.read([0, index])


@needs_torchcodec
def test_damage_is_the_same_error_and_stays_in_its_gop(folder, tmp_path):
    path = damage(written(folder, "gop_12.mp4"), tmp_path / "damaged.mp4", packet=30)
    whole = decode_all(written(folder, "gop_12.mp4"))
    with opened(path) as reader:
        with pytest.raises(VideoError, match=r"damaged.mp4: damaged \(Invalid data"):
            reader.read([35])
        for index in (0, 23, 40, 59):
            assert np.array_equal(reader.read([index])[0].numpy(), whole[index])


@needs_torchcodec
@pytest.mark.parametrize("name", FAULTS, ids=lambda name: ascii(name)[:20])
def test_a_fault_is_the_same_error(folder, tmp_path, name):
    make, reason = faults(folder)[name]
    make(tmp_path / name)
    with pytest.raises(VideoError, match=reason):
        opened(tmp_path / name)


@needs_torchcodec
@pytest.mark.parametrize("name", ["x.mp4", "x.m3u8", "x.mpd", "x"])
@pytest.mark.parametrize("script", [hls, dash, concat])
def test_a_script_reads_no_other_file_and_reaches_no_network(folder, tmp_path, script, name):
    (tmp_path / "secret.ts").write_bytes(written(folder, "gop_12.ts").read_bytes())
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.setblocking(False)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/x.ts"
        for target in (str(tmp_path / "secret.ts"), f"file:{tmp_path / 'secret.ts'}", url):
            (tmp_path / name).write_text(script(target))
            with pytest.raises(VideoError, match=r"not a video in one of the containers|no video, or damaged|holds no"):
                opened(tmp_path / name)
        with pytest.raises(BlockingIOError):  # nobody called
            server.accept()


@needs_torchcodec
@pytest.mark.parametrize("script", [hls, concat])
def test_a_script_with_the_index_of_a_video_is_not_handed_to_torchcodec(folder, tmp_path, monkeypatch, script):
    """An index comes with the data, so it may lie: here it says that the script is a video."""
    (tmp_path / "secret.ts").write_bytes(written(folder, "gop_12.ts").read_bytes())
    path = tmp_path / "x.mp4"
    path.write_text(script(str(tmp_path / "secret.ts")))
    with VideoReader(written(folder, "gop_12.mp4")) as reader:
        reader.file.bytes.close()
        reader.file.bytes = watched_file.WatchedFile(str(path), timeout=5)
        monkeypatch.setattr(torchcodec_reader, "_opened", lambda file: pytest.fail("it was opened"))
        with pytest.raises(VideoError):
            TorchcodecReader(reader).read([3])


@pytest.mark.parametrize(
    ("head", "is_video"),
    [
        (b"\0\0\0\x20ftypisom", True),
        (b"\0\0\0\x08wide\0\0", True),
        (b"\x1a\x45\xdf\xa3\x9f\x42\x86\x81\x01\x42\xf7\x81\x01\x00", True),
        (b"\x1a\x45\xdf\xa3<MPD dash:profile" + bytes(50), False),
        (b"\x1a\x45\xdf\xa3\nc=IN IP4 0.0.0.0" + bytes(50), False),
        (b"\x1a\x45\xdf\xa3" + b"a" * 70, False),
        (b"#EXTM3U\n", False),
        (b"ffconcat version 1.0", False),
        (b"<?xml", False),
        (b"", False),
    ],
)
def test_scripts_are_told_by_their_beginning(tmp_path, head, is_video):
    class File:
        bytes = watched_file.WatchedFile(str(tmp_path / "head"), 5) if (tmp_path / "head").write_bytes(head) >= 0 else 0

    assert torchcodec_reader._begins_like_video(File) == is_video  # type: ignore[arg-type]


@needs_torchcodec
@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_read_that_hangs_is_the_same_error(folder, tmp_path, monkeypatch, after):
    monkeypatch.setattr(watched_file, "_NO_WAIT", 0)
    path = tmp_path / "video.mp4"
    path.write_bytes(written(folder, "gop_12.mp4").read_bytes())
    with opened(path, read_timeout=0.2) as reader:
        hanging = Hanging(monkeypatch, "pread", after)
        with pytest.raises(VideoError, match=r"video\.mp4: cannot be read: a read did not end within 0\.2 s"):
            read_all(reader)
    hanging.released.set()


def test_without_torchcodec_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchcodec", None)
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", None)
    message = (
        r"`decoder` is 'torchcodec', which cannot be used \(.*\)\. It needs `pip install \"lightning-multigrid\[to"
    )
    with pytest.raises(ImportError, match=message):
        check_torchcodec()


def test_without_ffmpeg_the_error_says_so():
    pytest.importorskip("torchcodec")
    script = (
        "from lightning_multigrid.torchcodec_reader import check_torchcodec\n"
        "try:\n    check_torchcodec()\n"
        "except ImportError as error:\n    print(error)\n"
    )
    env = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=env)
    if not run.stdout:
        pytest.skip("FFmpeg's libraries lie where the system finds them")
    assert "`decoder` is 'torchcodec', which cannot be used (Could not load libtorchcodec" in run.stdout
    assert "the shared libraries of FFmpeg" in run.stdout
