"""A video made anew shows the same frames at the same times, upright and small."""

import errno
from contextlib import nullcontext
from fractions import Fraction
from io import BytesIO

import av
import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import interpolate

from lightning_multigrid.decode import VideoError, VideoReader, make_table, open_video, own_table
from lightning_multigrid.files import InputFile
from lightning_multigrid.prepare.transcode import Encoding, Planes, TranscodeJob, transcode
from tests.helpers.codings import damage, written
from tests.helpers.preparing import decoded_whole
from tests.helpers.videos import number_of, numbered_frames, write_video


def prepared(source, target, encoding=Encoding(), **arguments):
    """The table of the prepared video."""
    transcode(TranscodeJob(str(source), str(target), encoding, **arguments))
    return own_table(InputFile(target))


def pixels(path):
    with VideoReader(path) as video:
        return video.read(range(len(video)))


def psnr(one, other):
    """Peak signal-to-noise ratio of 8-bit values, in dB."""
    return float(10 * torch.log10(255**2 / (one.double() - other.double()).square().mean()))


def scaled(frames, height, width):
    """Frames T x H x W x 3 at another size, by an independent scaler."""
    channels_first = frames.permute(0, 3, 1, 2).float()
    small = interpolate(channels_first, (height, width), mode="bicubic", antialias=True, align_corners=False)
    return small.clamp(0, 255).permute(0, 2, 3, 1)


def smooth_frames(count, height, width):
    """Frames without noise: shades that drift."""
    rows, columns = np.mgrid[:height, :width]
    waves = [[np.sin((columns + 2 * t) / 40 + c) * np.cos((rows + t) / 30 - c) for c in range(3)] for t in range(count)]
    return (128 + 90 * np.array(waves)).astype(np.uint8).transpose(0, 2, 3, 1)


@pytest.mark.parametrize(
    ("height", "width", "shown"), [(96, 128, (96, 128)), (320, 400, (256, 320)), (97, 131, (96, 130))]
)
def test_pixels_are_those_of_the_scaled_source(tmp_path, height, width, shown):
    # Only without subsampling may a side be odd.
    source = write_video(tmp_path / "a.mp4", smooth_frames(12, height, width), options={"crf": "8"}, pix_fmt="yuv444p")
    made = prepared(source, tmp_path / "b.mp4")
    assert (made.height, made.width) == shown
    assert psnr(scaled(pixels(source), *shown), pixels(tmp_path / "b.mp4")) > 40


@pytest.mark.parametrize("count", [1, 2, 3, 150])
def test_frame_i_is_frame_i(tmp_path, count):
    source = write_video(tmp_path / "a.mp4", numbered_frames(count), options={"g": "60", "bf": "3"})
    made = prepared(source, tmp_path / "b.mp4")
    assert (len(made), made.height, made.width) == (count, 48, 64)
    assert [number_of(frame.numpy()) for frame in pixels(tmp_path / "b.mp4")] == list(range(count))


@pytest.mark.parametrize("rotation", [90, 180, 270, "mirrored", "upside down", "transposed"])
def test_frames_are_upright(tmp_path, rotation):
    source = write_video(tmp_path / "a.mp4", numbered_frames(5, 48, 80), rotation=rotation)
    prepared(source, tmp_path / "b.mp4")
    before, after = pixels(source), pixels(tmp_path / "b.mp4")
    assert before.shape == after.shape
    assert psnr(before, after) > 30
    assert psnr(before, after.flip(1)) < 20
    assert psnr(before, after.flip(2)) < 20
    assert not any(make_table(tmp_path / "b.mp4").orientation)


def test_times_of_a_variable_rate_are_kept(tmp_path):
    times = [0, 1, 2, 10, 11, 40, 41, 42, 43, 100]
    source = write_video(tmp_path / "a.mp4", numbered_frames(10), pts=times)
    prepared(source, tmp_path / "b.mp4")
    with VideoReader(source) as one, VideoReader(tmp_path / "b.mp4") as other:
        assert other.rate == pytest.approx(one.rate)
        shown = other.table.times - other.table.times[0]
        np.testing.assert_allclose(shown / shown[-1], np.array(times) / 100, atol=1e-6)


def at_one_time_twice(folder):
    """Two frames have one time, in milliseconds of a Matroska file."""
    source = write_video(folder / "a.mkv", numbered_frames(10), options={"bf": "0"})
    with av.open(str(source)) as given, av.open(str(folder / "b.mkv"), "w") as made:
        stream = made.add_stream_from_template(given.streams.video[0])
        for packet in given.demux(video=0):
            if packet.size:
                packet.pts = packet.dts = 100 if packet.pts == 133 else packet.pts
                packet.stream = stream
                made.mux(packet)
    return folder / "b.mkv"


def one_behind_another(folder):
    """Two recordings, whose times both begin with 0."""
    parts = [write_video(folder / f"{name}.ts", numbered_frames(30)).read_bytes() for name in "ab"]
    (folder / "both.ts").write_bytes(b"".join(parts))
    return folder / "both.ts"


def later_behind_another(folder):
    """Two recordings, the second of a clock that is ten minutes ahead."""
    return joined(folder, 0, 600)


def earlier_behind_another(folder):
    """The same the other way round, which FFmpeg takes for a clock that has wrapped."""
    return joined(folder, 600, 0)


def joined(folder, *begins):
    parts = []
    for begin in begins:
        times = range(30 * begin, 30 * begin + 30)
        parts.append(write_video(folder / f"{begin}.ts", numbered_frames(30), pts=times).read_bytes())
    (folder / "both.ts").write_bytes(b"".join(parts))
    return folder / "both.ts"


def of_images(folder):
    """Images, whose numbers say no times."""
    for number, frame in zip((0, 1, 2, 10, 11, 40, 41), numbered_frames(7), strict=True):
        Image.fromarray(frame).save(folder / f"{number}.png")
    return folder


JOINED = one_behind_another, later_behind_another, earlier_behind_another


@pytest.mark.parametrize("encoding", [Encoding(preset="ultrafast"), Planes()])
@pytest.mark.parametrize("make", [at_one_time_twice, *JOINED, of_images])
def test_frames_are_shown_when_those_of_the_source_are(tmp_path, make, encoding):
    (tmp_path / "in").mkdir()
    source, rate = make(tmp_path / "in"), 30.0 if make is of_images else None
    table = None if rate else make_table(source)
    target = tmp_path / f"target{encoding.suffix}"
    transcode(TranscodeJob(str(source), str(target), encoding, images_per_second=rate))
    with open_video(source, rate, table) as one, open_video(target) as other:
        times = [[video.time_of(frame) for frame in range(len(video))] for video in (one, other)]
    assert np.diff(times[0]).min() > 0
    np.testing.assert_allclose(times[0], times[1], atol=1e-4)
    last = {at_one_time_twice: 9 / 30, of_images: 6 / 30}.get(make, 59 / 30)
    assert times[0][-1] == pytest.approx(last, abs=2e-3)


def test_a_tiny_video(tmp_path):
    source = write_video(tmp_path / "a.mkv", np.full((3, 1, 1, 3), 200, np.uint8), codec="ffv1", pix_fmt="bgr0")
    made = prepared(source, tmp_path / "b.mp4")
    assert (len(made), made.height, made.width) == (3, 2, 2)
    assert (pixels(tmp_path / "b.mp4").float() - 200).abs().max() < 8


@pytest.mark.parametrize(
    ("codec", "pix_fmt", "suffix"),
    [
        ("libx264", "yuvj420p", "mp4"),
        ("libx264", "yuv444p", "mp4"),
        ("libx264", "yuv420p10le", "mp4"),
        ("libx265", "yuv422p", "mp4"),
        ("libvpx-vp9", "yuv420p", "webm"),
        ("mpeg4", "yuv420p", "avi"),
        ("ffv1", "bgr0", "mkv"),
        ("gif", "rgb8", "gif"),
    ],
)
def test_colours_of_any_source_are_kept(tmp_path, codec, pix_fmt, suffix):
    colours = np.array([(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0), (90, 140, 190)], np.uint8)
    frames = np.repeat(np.repeat(colours.reshape(1, 1, 6, 3), 12, axis=2), 48, axis=1).repeat(4, axis=0)
    source = write_video(tmp_path / f"a.{suffix}", frames, codec=codec, pix_fmt=pix_fmt)
    prepared(source, tmp_path / "b.mp4")
    # Of each colour's 12 columns the 6 in the middle; a GIF dithers.
    shown = [pixels(path).float().unflatten(2, (6, 12)) for path in (source, tmp_path / "b.mp4")]
    patches = [frames[:, 8:-8, :, 3:9].mean(dim=(1, 3)) for frames in shown]
    assert (patches[0] - patches[1]).abs().max() < 5


def test_the_matrix_is_kept(tmp_path):
    frames = np.full((3, 64, 64, 3), (220, 40, 60), np.uint8)
    options = {"x264-params": "colormatrix=bt709"}
    source = write_video(tmp_path / "a.mp4", frames, options=options)
    prepared(source, tmp_path / "b.mp4")
    with av.open(str(tmp_path / "b.mp4")) as container:
        assert container.streams.video[0].codec_context.colorspace == 1  # BT.709
    assert psnr(pixels(source), pixels(tmp_path / "b.mp4")) > 35


@pytest.mark.parametrize("first", ["undef", "bt470bg"])
@pytest.mark.parametrize("encoding", [Encoding(preset="ultrafast", crf=5), Planes()])
def test_a_matrix_that_changes_does_not_change_the_colours(tmp_path, first, encoding):
    parts = []
    for name, number in {first: 5, "bt709": 1}.items():
        frame = av.VideoFrame.from_ndarray(np.full((64, 64, 3), (220, 40, 60), np.uint8), format="rgb24")
        frame = frame.reformat(format="yuv420p", dst_colorspace=number)
        frame.colorspace = 2 if name == "undef" else number
        with av.open(str(tmp_path / f"{name}.ts"), "w") as container:
            stream = container.add_stream("libx264", options={"crf": "5", "x264-params": f"colormatrix={name}"})
            stream.height, stream.width, stream.pix_fmt = 64, 64, "yuv420p"
            for frame.pts in range(4):
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
        parts.append((tmp_path / f"{name}.ts").read_bytes())
    source, target = tmp_path / "both.ts", tmp_path / f"target{encoding.suffix}"
    source.write_bytes(b"".join(parts))
    transcode(TranscodeJob(str(source), str(target), encoding))
    with open_video(source, None, make_table(source)) as one, open_video(target) as other:
        before, after = (video.read(range(8))[:, 32, 32].float() for video in (one, other))
    assert (before[-1] - before.new_tensor((220, 40, 60))).abs().max() < 5
    assert (before - after).abs().max() < 5


def test_a_full_disk_is_no_fault_of_the_video(tmp_path, monkeypatch):
    """Also where only the end of the file finds it full: PyAV then raises an error of its own."""

    class Full(BytesIO):
        def write(self, data):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("lightning_multigrid.prepare.transcode.new_file", lambda _: nullcontext(Full()))
    source = write_video(tmp_path / "a.mp4", numbered_frames(5))
    with pytest.raises(OSError, match="No space left on device"):
        prepared(source, tmp_path / "b.mp4")


def test_what_the_decoder_needs_is_little(tmp_path):
    source = write_video(tmp_path / "a.mp4", numbered_frames(99), audio=True)
    prepared(source, tmp_path / "b.mp4")
    table = make_table(tmp_path / "b.mp4")
    # 3 groups of 33: a keyframe, and after it twice one frame that others refer to and 15 that none does.
    assert len(set(table.entries.tolist())) == 3
    assert np.count_nonzero(table.droppable) == 3 * 2 * 15
    assert table.direct
    with av.open(str(tmp_path / "b.mp4")) as container:
        assert [stream.type for stream in container.streams] == ["video"]
        assert container.streams.video[0].codec_context.pix_fmt == "yuv420p"


def test_pixels_that_are_not_square_become_so(tmp_path):
    """64 x 48 pixels, twice as wide as high, are shown as 128 x 48."""
    options = {"x264-params": "sar=2/1"}
    source = write_video(tmp_path / "a.mp4", numbered_frames(5), options=options)
    made = prepared(source, tmp_path / "b.mp4", Encoding(short_side=32))
    assert (made.height, made.width) == (32, 86)  # 85.3, even
    table = make_table(tmp_path / "b.mp4")
    assert (table.height, table.width, table.stored_width) == (32, 86, 86)
    assert [number_of(frame.numpy()) for frame in pixels(tmp_path / "b.mp4")] == list(range(5))


def test_the_table_stands_behind_the_video(tmp_path):
    source = write_video(tmp_path / "a.mp4", numbered_frames(40))
    made = prepared(source, tmp_path / "b.mp4", made_from="of a")
    assert (made.made_from, made.file_size) == ("of a", (tmp_path / "b.mp4").stat().st_size)
    expected = make_table(tmp_path / "b.mp4")
    for name in ("packets", "entries", "checksums", "times", "positions", "sizes", "droppable"):
        assert np.array_equal(getattr(made, name), getattr(expected, name)), name
    with VideoReader(tmp_path / "b.mp4") as video:
        assert video.table.made_from == "of a"
        assert number_of(video.read([33])[0].numpy()) == 33
        assert not video.fallbacks


def test_a_source_is_decoded_once_and_its_copy_twice(tmp_path, monkeypatch):
    """The second decode of the copy finds its entries."""
    source, decoded = write_video(tmp_path / "a.mp4", numbered_frames(12)), decoded_whole(monkeypatch)
    prepared(source, tmp_path / "b.mp4")
    assert decoded[0] == str(source)
    assert len(decoded) == 2


def test_equal_sources_make_equal_bytes(tmp_path):
    source = write_video(tmp_path / "a.mp4", numbered_frames(70, 64, 96))
    for name in ("b.mp4", "c.mp4"):
        prepared(source, tmp_path / name)
    assert (tmp_path / "b.mp4").read_bytes() == (tmp_path / "c.mp4").read_bytes()


def test_sizes():
    assert Encoding(short_side=128).size(256, 340) == (128, 170)
    assert Encoding().size(1080, 1920) == (256, 456)  # 455.1
    assert Encoding().size(100, 200) == (100, 200)
    assert Encoding().size(257, 257) == (256, 256)
    assert Encoding().size(1, 5) == (2, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"short_side": 255}, "`short_side` must be an even number of at least 16 pixels, got 255"),
        ({"crf": 52}, "`crf` must be from 0 .* to 51 .*, got 52"),
        ({"preset": "fastest"}, "`preset` must be one of ultrafast, .*, got 'fastest'"),
    ],
)
def test_encodings_that_there_are_not(arguments, message):
    for kind in (Encoding, Planes) if "short_side" in arguments else (Encoding,):
        with pytest.raises(ValueError, match=message):
            kind(**arguments)


def test_a_rate_that_is_no_whole_number(tmp_path):
    source = write_video(tmp_path / "a.mp4", numbered_frames(40), rate=Fraction(30000, 1001))
    prepared(source, tmp_path / "b.mp4")
    with VideoReader(tmp_path / "b.mp4") as video:
        assert video.rate == pytest.approx(30000 / 1001, rel=1e-9)


def test_a_damaged_video_is_left_out(tmp_path):
    source = damage(written(tmp_path, "gop_12.mp4"), tmp_path / "lost.mp4", packet=30)
    with pytest.raises(VideoError, match=r"lost.mp4: damaged \(.* packets that it can't decode: 1\)"):
        prepared(source, tmp_path / "b.mp4")
    assert not (tmp_path / "b.mp4").exists()
