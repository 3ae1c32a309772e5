"""YUV planes against FFmpeg's own conversion to RGB, on files that say what their colours mean."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import torch

import lightning_multigrid.decode.reader
from lightning_multigrid.decode import Box, VideoReader
from lightning_multigrid.pixels import YuvClip, YuvFormat, resample_clips
from tests.helpers.videos import numbered_frames, write_video

# Numbers of ITU-T H.273 and FFmpeg: matrix, and limited (1) or full (2) range; 0 says nothing.
COLOURS = {
    "unspecified": (0, 0),
    "BT.601 PAL": (5, 1),
    "BT.601 NTSC": (6, 1),
    "BT.709": (1, 1),
    "BT.601 full": (5, 2),
    "BT.709 full": (1, 2),
}
BOXES = [Box(0, 0, 48, 64), Box(0, 0, 47, 63), Box(1, 0, 20, 20), Box(0, 1, 21, 20), Box(3, 5, 17, 31), Box(7, 8, 1, 1)]


def coloured(path: Path, matrix: int, colour_range: int, *, height: int = 48, width: int = 64) -> Path:
    """Eight frames of saturated patches, in the given colours, and tagged with them."""
    draws = np.random.default_rng(0)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=30, options={"crf": "5"})
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
        stream.codec_context.colorspace, stream.codec_context.color_range = matrix or 2, colour_range
        for number in range(8):
            patches = draws.choice([0, 80, 255], (-(-height // 8), -(-width // 8), 3)).astype(np.uint8)
            pixels = np.ascontiguousarray(patches.repeat(8, 0).repeat(8, 1)[:height, :width])
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame = frame.reformat(
                format="yuv420p", dst_colorspace=matrix or None, dst_color_range=colour_range or None
            )
            frame.colorspace, frame.color_range = matrix or 2, colour_range
            frame.pts, frame.time_base = number, Fraction(1, 30)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def read_both(path: Path, indices: list[int], box: Box | None) -> tuple[YuvClip, torch.Tensor]:
    with VideoReader(path) as video:
        clip = video.read_yuv(indices, box)
        assert isinstance(clip, YuvClip)
        return clip, video.read(indices, box)


@pytest.mark.parametrize("colours", COLOURS)
def test_colours_are_those_of_ffmpegs_converter(tmp_path: Path, colours: str) -> None:
    path = coloured(tmp_path / "video.mp4", *COLOURS[colours])
    for box in (None, *BOXES):  # also boxes that begin or end within a chroma sample
        clip, rgb = read_both(path, [6, 0, 3, 3], box)
        matrix = "bt709" if "709" in colours else "bt601"
        assert (clip.format.matrix, clip.format.full_range) == (matrix, "full" in colours)
        assert clip.rgb().shape == (3, 4, *rgb.shape[1:3])
        torch.testing.assert_close(clip.rgb(), rgb.permute(3, 0, 1, 2).float(), atol=3, rtol=0)


def test_the_converter_keeps_no_colours_of_the_video_before(tmp_path: Path) -> None:
    paths = {name: coloured(tmp_path / f"{name}.mp4", *colours) for name, colours in COLOURS.items()}
    for name in ("BT.709", "BT.601 PAL", "BT.709", "unspecified", "BT.709 full", "BT.601 full", "BT.601 NTSC"):
        clip, rgb = read_both(paths[name], [2], None)
        torch.testing.assert_close(clip.rgb(), rgb.permute(3, 0, 1, 2).float(), atol=3, rtol=0, msg=name)


def test_frames_of_odd_width(tmp_path: Path) -> None:
    # x264 takes no odd sizes; MPEG-4 does.
    path = write_video(tmp_path / "odd.mp4", numbered_frames(5, 44, 61), codec="mpeg4", options={"q:v": "2"})
    for box in (None, Box(43, 60, 1, 1), Box(1, 1, 43, 60)):
        clip, rgb = read_both(path, [4, 1], box)
        torch.testing.assert_close(clip.rgb(), rgb.permute(3, 0, 1, 2).float(), atol=3, rtol=0)


ODD = {"frames": numbered_frames(6, 45, 60), "codec": "mpeg4", "options": {"q:v": "2"}}
"""FFmpeg's converter interpolates the chroma of an odd height."""


@pytest.mark.parametrize(
    "video",
    [{"pix_fmt": "yuv444p"}, {"pix_fmt": "yuv420p10le"}, {"rotation": 90}, {"rotation": "mirrored"}, ODD],
    ids=["4:4:4", "10 bit", "turned", "mirrored", "odd height"],
)
def test_other_videos_come_as_rgb(tmp_path: Path, video: dict) -> None:
    path = write_video(tmp_path / "video.mp4", **{"frames": numbered_frames(6), **video})
    with VideoReader(path) as reader:
        clip = reader.read_yuv([4, 2], Box(3, 5, 17, 31))
        assert isinstance(clip, torch.Tensor)
        assert torch.equal(clip, reader.read([4, 2], Box(3, 5, 17, 31)))


def test_a_video_whose_colours_change_comes_as_rgb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = coloured(tmp_path / "video.mp4", 1, 1)
    format_of_frame, seen = lightning_multigrid.decode.reader.yuv_format, []

    def changing(frame: av.VideoFrame, frames: int, box: Box) -> YuvFormat | None:
        seen.append(frame)
        return format_of_frame(frame, frames, box) if len(seen) < 3 else None

    monkeypatch.setattr(lightning_multigrid.decode.reader, "kind_of", lambda frame: (object(),))
    monkeypatch.setattr(lightning_multigrid.decode.reader, "yuv_format", changing)
    with VideoReader(path) as video:
        assert torch.equal(video.read_yuv(range(6)), video.read(range(6)))  # type: ignore[arg-type]
    assert len(seen) == 3


def test_a_cut_of_a_clip_is_a_clip_of_the_cut(tmp_path: Path) -> None:
    path = coloured(tmp_path / "video.mp4", 1, 1)
    whole, _ = read_both(path, [1, 4, 6], Box(3, 1, 40, 60))
    for box in (Box(0, 0, 40, 60), Box(1, 2, 11, 20), Box(2, 3, 9, 9)):
        expected, _ = read_both(path, [6, 1, 1], Box(3 + box.top, 1 + box.left, box.height, box.width))
        cut = whole.cut([2, 0, 0], *box)
        assert cut.format == expected.format
        assert torch.equal(cut.data, expected.data)


@pytest.mark.parametrize("antialias", [False, True])
def test_resampled_clips_are_those_of_rgb(tmp_path: Path, antialias: bool) -> None:
    path = coloured(tmp_path / "video.mp4", 1, 1)
    pairs = [read_both(path, [5, 1], box) for box in BOXES[1:4]]
    options = {"flips": [True, False, True], "mean": (0, 0, 0), "std": (1 / 255,) * 3, "antialias": antialias}
    clips = resample_clips([clip for clip, _ in pairs], 16, **options)
    expected = resample_clips([rgb for _, rgb in pairs], 16, **options)
    torch.testing.assert_close(clips, expected, atol=3.01, rtol=0)
    mixed = resample_clips([pairs[0][0], pairs[1][1], pairs[2][0]], 16, **options)
    assert torch.equal(mixed, torch.stack([clips[0], expected[1], clips[2]]))


@pytest.mark.cuda
def test_a_gpu_computes_the_same_colours(tmp_path: Path) -> None:
    clip, _ = read_both(coloured(tmp_path / "video.mp4", 1, 1), [0, 5], Box(3, 5, 17, 31))
    on_gpu = clip.format.view(clip.data.cuda())
    torch.testing.assert_close(on_gpu.rgb().cpu(), clip.rgb(), atol=1e-3, rtol=0)
