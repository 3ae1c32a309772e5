import os

import numpy as np
import pytest
import torch
from PIL import Image

from lightning_multigrid.decode import Box, FrameFolder, VideoError, VideoReader
from tests.helpers.videos import number_of, numbered_frames, write_video

FRAMES = numbered_frames(12)
STYLES = ["{}.png", "video-{:06d}.PNG", "{:03d}.jpg", "{}.jpeg", "{}.webp", "{}.bmp"]
DECIMALS = [("0.25.png", "0.5.png"), ("1.10.png", "1.9.png"), ("v1.10_1.png", "v1.9_1.png")]
SEVERAL = [("img_1.png", "flow_x_1.png"), ("1.png", "cover.png"), ("1.png", "01.png"), ("7.jpg", "7.png")]
SEVERAL.append(("a.png", "b.png"))


def write_frames(folder, frames, name="{:06d}.png"):
    folder.mkdir(parents=True)
    for number, frame in enumerate(frames, start=1):
        Image.fromarray(frame).save(folder / name.format(number))
    return folder


@pytest.fixture
def folder(tmp_path):
    return write_frames(tmp_path / "video", FRAMES)


def test_frames_come_back_as_they_were_written(folder):
    with FrameFolder(folder, rate=24) as video:
        assert (len(video), video.height, video.width, video.rate) == (12, 48, 64, 24)
        clip = video.read([5, 0, 11, 5])
    assert (clip.dtype, clip.shape) == (torch.uint8, (4, 48, 64, 3))
    assert np.array_equal(clip.numpy(), FRAMES[[5, 0, 11, 5]])


@pytest.mark.parametrize(
    "names",
    [
        *([name.format(number) for number in range(1, 13)] for name in STYLES),
        # Of several numbers, the first counts most.
        ["0.50.png", "0.75.png", "2.00.png", "10.00.png"],  # times
        ["shot1.08.png", "shot1.09.png", "shot1.10.png", "shot2.01.png"],
        ["00-01-59.png", "00-02-00.png", "00-10-01.png", "01-00-00.png"],
        ["a.9.png", "a.10.png", "a.11.png", "a.100.png"],  # behind a letter there is no decimal
        ["v2_000.png", "v2_001.png", "v2_010.png", "v10_001.png"],
    ],
)
def test_frames_are_in_the_order_of_their_numbers(tmp_path, names):
    for name, frame in zip(names, FRAMES, strict=False):
        Image.fromarray(frame).save(tmp_path / name)
    video = FrameFolder(tmp_path, rate=24)
    assert [number_of(frame) for frame in video.read(range(len(names))).numpy()] == [*range(len(names))]


@pytest.mark.parametrize("names", [[0, 1, 2, 6, 7], [0, 5, 10, 15, 20], ["0017", "0018", "0034", "0050", "0067"]])
def test_images_are_shown_equally_long_whatever_their_names(tmp_path, names):
    """Numbers may be missing, or count milliseconds."""
    (tmp_path / "video").mkdir()
    for name, frame in zip(names, FRAMES, strict=False):
        Image.fromarray(frame).save(tmp_path / f"video/frame_{name}.png")
    video = FrameFolder(tmp_path / "video", rate=2)
    assert [video.time_of(frame) for frame in range(6)] == [0, 0.5, 1, 1.5, 2, 2.5]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        # `0.5` is behind `0.25`, and image 9 of shot 1 before image 10.
        *((names, "images such as {} and {}, whose order is not") for names in DECIMALS),
        *((names, "several videos, by names such as {} and {}. Give each video a") for names in SEVERAL),
    ],
)
def test_names_without_a_clear_order_are_refused(tmp_path, names, message):
    for name in names:
        Image.fromarray(FRAMES[0]).save(tmp_path / name)
    with pytest.raises(VideoError, match=message.format(*sorted(names))):
        FrameFolder(tmp_path, rate=2)


def test_other_files_are_skipped(folder):
    (folder / "info.txt").touch()
    (folder / "._000001.png").touch()
    (folder / "thumbnails.png").mkdir()
    os.mkfifo(folder / "pipe.png")
    assert len(FrameFolder(folder, rate=24)) == 12


def test_it_reads_as_the_same_video_in_a_file_does(folder, tmp_path):
    lossless = write_video(tmp_path / "video.mp4", FRAMES, codec="libx264rgb", pix_fmt="rgb24", options={"crf": "0"})
    box = Box(3, 8, 40, 32)
    with VideoReader(lossless) as video, FrameFolder(folder, rate=30) as frames:
        shape = len(video), video.height, video.width, video.rate
        assert (len(frames), frames.height, frames.width, frames.rate) == shape
        assert torch.equal(frames.read([9, 2], box), video.read([9, 2], box))


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK"])
def test_whatever_the_mode_of_an_image_pixels_are_rgb(tmp_path, mode):
    (tmp_path / "video").mkdir()
    suffix = "jpg" if mode == "CMYK" else "png"
    Image.new("RGB", (16, 12), (102, 102, 102)).convert(mode).save(tmp_path / f"video/1.{suffix}")
    clip = FrameFolder(tmp_path / "video", rate=24).read([0])
    assert clip.shape == (1, 12, 16, 3)
    assert (clip.float() - 102).abs().max() <= 3


def test_16_bits_are_refused(tmp_path):
    (tmp_path / "video").mkdir()
    Image.fromarray(np.zeros((64, 64), np.uint16)).save(tmp_path / "video/1.png")
    with pytest.raises(VideoError, match=r"1\.png has 16 bits a channel, 8 are required"):
        FrameFolder(tmp_path / "video", rate=24).read([0])


# Where the first row and the first column of a stored image are shown; EXIF 2.32, 4.6.4 A.
TURNS = {
    1: lambda shown: shown,  # top, left
    2: lambda shown: shown[:, ::-1],  # top, right
    3: lambda shown: shown[::-1, ::-1],  # bottom, right
    4: lambda shown: shown[::-1],  # bottom, left
    5: lambda shown: shown.swapaxes(0, 1),  # left, top
    6: lambda shown: shown[:, ::-1].swapaxes(0, 1),  # right, top
    7: lambda shown: shown[::-1, ::-1].swapaxes(0, 1),  # right, bottom
    8: lambda shown: shown[::-1].swapaxes(0, 1),  # left, bottom
}


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
@pytest.mark.parametrize("orientation", TURNS)
def test_an_image_is_turned_as_its_camera_was(tmp_path, orientation, suffix):
    (tmp_path / "video").mkdir()
    stored = np.ascontiguousarray(TURNS[orientation](FRAMES[7]))
    exif = Image.Exif()
    exif[0x112] = orientation
    Image.fromarray(stored).save(tmp_path / f"video/1.{suffix}", exif=exif, quality=100, subsampling=0, lossless=True)
    with FrameFolder(tmp_path / "video", rate=24) as video:
        assert (video.height, video.width) == FRAMES.shape[1:3]
        difference = np.abs(video.read([0])[0].numpy().astype(int) - FRAMES[7])
        assert difference.max() <= (12 if suffix == "jpg" else 0)
        part = np.abs(video.read([0], Box(5, 7, 20, 31))[0].numpy().astype(int) - FRAMES[7, 5:25, 7:38])
        assert part.max() <= (12 if suffix == "jpg" else 0)


def test_a_folder_that_has_changed_is_read_as_it_is_now(folder):
    FrameFolder(folder, rate=24)
    (folder / "000012.png").unlink()
    for image in folder.iterdir():
        Image.fromarray(np.full((24, 40, 3), 0, np.uint8)).save(image)
    with FrameFolder(folder, rate=24) as video:
        assert (len(video), video.height, video.width) == (11, 24, 40)
        assert video.read(range(11)).shape == (11, 24, 40, 3)


# --- Faults ---


def test_no_folder_and_no_frames(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.mp4").touch()
    with pytest.raises(VideoError, match=r"missing: not a folder of frames \(No such file"):
        FrameFolder(tmp_path / "missing", rate=24)
    with pytest.raises(VideoError, match=r"file\.mp4: not a folder of frames \(Not a directory"):
        FrameFolder(tmp_path / "file.mp4", rate=24)
    with pytest.raises(VideoError, match=r"empty: holds no images \(\.bmp \.jpeg \.jpg \.png \.webp\)"):
        FrameFolder(tmp_path / "empty", rate=24)


def test_damaged_frames_are_named(folder, tmp_path):
    jpegs = write_frames(tmp_path / "jpegs", FRAMES, "{}.jpg")
    for frames, name in ((folder, "000004.png"), (jpegs, "4.jpg")):
        whole = (frames / name).read_bytes()
        (frames / name).write_bytes(whole[: len(whole) // 2])
        video = FrameFolder(frames, rate=24)
        assert len(video.read([0, 1, 2, 4])) == 4
        with pytest.raises(VideoError, match=rf"{frames}: {name} cannot be decoded \(\w+: .+\)") as caught:
            video.read([2, 3])
        assert caught.value.path == str(frames)


def test_what_is_no_image_is_refused_whatever_its_name(folder):
    # PostScript is a program, which Pillow has Ghostscript run.
    (folder / "000001.png").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 48\n")
    with pytest.raises(VideoError, match=r"000001\.png is not an image, or damaged at its head"):
        FrameFolder(folder, rate=24)


def test_a_frame_that_vanishes_is_named(folder):
    video = FrameFolder(folder, rate=24)
    (folder / "000003.png").unlink()
    with pytest.raises(VideoError, match=r"000003\.png cannot be decoded \(FileNotFoundError"):
        video.read([2])


def test_frames_of_different_sizes_are_refused(folder):
    Image.new("RGB", (60, 48)).save(folder / "000002.png")
    with pytest.raises(VideoError, match=r"000002\.png has 48 x 60 pixels, but the first frame 48 x 64"):
        FrameFolder(folder, rate=24).read([0, 1])


def test_a_frame_that_declares_too_many_pixels_is_refused(tmp_path):
    (tmp_path / "video").mkdir()
    Image.new("1", (8192, 8193)).save(tmp_path / "video/1.png")
    with pytest.raises(VideoError, match=r"1\.png has more than 67108864 pixels"):
        FrameFolder(tmp_path / "video", rate=24)
