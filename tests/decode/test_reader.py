"""Every frame is compared with a decode of the whole file by PyAV alone, or with the number drawn into it."""

import io
import os
import pickle
import random
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from PIL import ExifTags, Image, ImageOps

from lightning_multigrid.decode import Box, FrameTable, VideoError, VideoReader, make_table, open_video, read_frames
from lightning_multigrid.prepare.transcode import Planes, TranscodeJob, transcode
from tests.helpers.codings import CODINGS, COUNT, FRAMES, H264, HEIGHT, WIDTH, damage, real_videos, requests, written
from tests.helpers.field_pictures import SIDE, expected_frames, write_field_pictures
from tests.helpers.rare_files import mp4_cut
from tests.helpers.sampling import sampled
from tests.helpers.videos import decode_all, mp4_turned, number_of, numbered_frames, write_video


@pytest.fixture
def video(folder):
    return written(folder, "gop_12.mp4")


def opened(path):
    """A reader with the table that another process would have made."""
    return VideoReader(path, FrameTable.from_bytes(make_table(path).to_bytes()))


def assert_reads_as(path, expected, count=12):
    for reader in (opened(path), VideoReader(path)):
        with reader:
            assert len(reader) == len(expected)
            assert (reader.height, reader.width) == expected.shape[1:3]
            for indices in [*requests(len(expected), count), list(range(len(expected)))]:
                assert np.array_equal(reader.read(indices).numpy(), expected[indices]), indices


def assert_shows(path, numbers, count=12):
    """What is read is a whole decode, of the frames of these numbers."""
    expected = decode_all(path)
    assert [number_of(frame) for frame in expected] == list(numbers)
    assert_reads_as(path, expected, count)


@pytest.mark.parametrize("name", CODINGS)
def test_frames_are_those_of_a_whole_decode(folder, name):
    assert_shows(written(folder, name), range(COUNT))  # nothing was lost in making the file


@pytest.mark.parametrize("path", sampled(real_videos(), *real_videos()[:1]), ids=lambda path: path.name)
def test_real_videos(path):
    assert_reads_as(path, decode_all(path), count=4)


def test_read_frames_is_uint8_rgb_in_the_order_asked_for(folder):
    path = written(folder, "lossless.mkv")
    frames = read_frames(path, [59, 0, 0, 31])
    assert (frames.dtype, tuple(frames.shape)) == (torch.uint8, (4, HEIGHT, WIDTH, 3))
    assert [number_of(frame) for frame in frames.numpy()] == [59, 0, 0, 31]
    # Red, green and blue differ by construction: a swap of channels would show.
    pattern = np.s_[HEIGHT // 2 + 2 : HEIGHT * 3 // 4 - 2]
    for channel in range(3):
        drawn, read = FRAMES[59, pattern, :, channel].astype(int), frames[0, pattern, :, channel].numpy().astype(int)
        assert np.abs(drawn - read).mean() < 25
    assert read_frames(path, np.array([3, 1])).shape[0] == 2
    assert tuple(read_frames(path, []).shape) == (0, HEIGHT, WIDTH, 3)


@pytest.mark.parametrize(("count", "height", "width"), [(5, 37, 51), (5, 2, 2), (5, 1, 17), (1, 64, 80)])
def test_odd_sizes_and_one_frame(tmp_path, count, height, width):
    path = write_video(tmp_path / "odd.mkv", numbered_frames(count, height, width), codec="ffv1", pix_fmt="yuv444p")
    assert_reads_as(path, decode_all(path))


@pytest.mark.parametrize(
    ("rotation", "store"),
    [
        (0, lambda upright: upright),
        (90, lambda upright: np.rot90(upright, 1, axes=(1, 2))),
        (180, lambda upright: np.rot90(upright, 2, axes=(1, 2))),
        (270, lambda upright: np.rot90(upright, 3, axes=(1, 2))),
        ("mirrored", lambda upright: upright[:, :, ::-1]),
        ("upside down", lambda upright: upright[:, ::-1]),
        ("transposed", lambda upright: upright.transpose(0, 2, 1, 3)),
    ],
    ids=lambda value: "" if callable(value) else str(value),
)
def test_frames_are_shown_upright_and_boxes_are_cut_from_what_is_shown(tmp_path, rotation, store):
    path = write_video(tmp_path / "turned.mp4", store(FRAMES[:20]), options=H264, rotation=rotation)
    draw = random.Random(str(rotation))
    with VideoReader(path) as reader:
        assert (reader.height, reader.width) == (HEIGHT, WIDTH)
        whole = reader.read([17, 4])
        assert [number_of(frame) for frame in whole.numpy()] == [17, 4]
        assert whole.is_contiguous()
        for _ in range(10):
            height, width = draw.randint(1, HEIGHT), draw.randint(1, WIDTH)
            top, left = draw.randint(0, HEIGHT - height), draw.randint(0, WIDTH - width)
            part = reader.read([17, 4], Box(top, left, height, width))
            assert torch.equal(part, whole[:, top : top + height, left : left + width])
    if not isinstance(rotation, str):
        assert np.array_equal(whole.numpy(), decode_all(path)[[17, 4]])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_jpegs_of_a_video_are_turned_as_their_exif_data_say(tmp_path, orientation):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation], exif[ExifTags.Base.Make] = orientation, "maker"
    block = exif.tobytes()
    head = b"\xff\xd8\xff\xe1" + (2 + len(block)).to_bytes(2, "big") + block
    plain = write_video(tmp_path / "plain.avi", FRAMES[:3], codec="mjpeg", pix_fmt="yuvj420p")
    with av.open(str(plain)) as source, av.open(str(tmp_path / "exif.avi"), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.size:
                told = av.Packet(head + bytes(packet)[2:])
                told.pts, told.dts, told.time_base, told.stream = packet.pts, packet.dts, packet.time_base, stream
                target.mux(told)
    with VideoReader(plain) as without, VideoReader(tmp_path / "exif.avi", make_table(tmp_path / "exif.avi")) as reader:
        for number, frame in enumerate(reader.read(range(3))):
            image = Image.fromarray(without.read([number])[0].numpy())
            image.info["exif"] = block
            assert np.array_equal(frame, ImageOps.exif_transpose(image))


def test_what_is_turned_by_an_odd_angle_is_refused(tmp_path):
    upright = write_video(tmp_path / "turned.mp4", FRAMES[:5], options=H264).read_bytes()
    (tmp_path / "odd.mp4").write_bytes(mp4_turned(upright, (56756, 32768, -32768, 56756), one=1 << 16))
    with pytest.raises(VideoError, match="its display matrix turns frames by 30 degrees; only quarter turns are"):
        VideoReader(tmp_path / "odd.mp4")


@pytest.mark.parametrize("matrix", [8, 12])
def test_colours_that_ffmpeg_does_not_convert_are_refused(tmp_path, matrix):
    name = {8: "YCgCo", 12: "chroma-derived-nc"}[matrix]
    path = write_video(tmp_path / "a.mkv", FRAMES[:3], options={"x264-params": f"colormatrix={name}"})
    with pytest.raises(VideoError, match=rf"has colours of the matrix {matrix} of ITU-T H\.273, which FFmpeg can't c"):
        make_table(path)


@pytest.mark.parametrize(("pix_fmt", "bits"), [("gray16le", 16), ("gray10le", 10), ("gbrp12le", 12)])
def test_more_than_8_bits_that_are_not_yuv_are_refused(pix_fmt, bits, tmp_path):
    path = write_video(tmp_path / "thermal.mkv", FRAMES[:3], codec="ffv1", pix_fmt=pix_fmt)
    with pytest.raises(VideoError, match=rf"has {bits} bits a channel \({pix_fmt}\), 8 are required where it is not"):
        VideoReader(path)


@pytest.fixture(params=["file", "images", "planes"])
def opened_as(request, video, tmp_path):
    """The same frames as any kind of video."""
    if request.param == "images":
        for number, frame in enumerate(FRAMES):
            Image.fromarray(frame).save(tmp_path / f"{number}.png")
        return open_video(tmp_path, images_per_second=30)
    if request.param == "planes":
        transcode(TranscodeJob(str(video), str(tmp_path / "a.planes"), Planes(HEIGHT)))
        return open_video(tmp_path / "a.planes")
    return open_video(video)


@pytest.mark.parametrize(
    "box", [(0, 0, 65, 80), (0, 0, 64, 81), (-1, 0, 8, 8), (57, 0, 8, 8), (0, 73, 8, 8), (0, 0, 0, 8)]
)
def test_frames_and_boxes_that_there_are_not(opened_as, box):
    with opened_as as reader:
        for read in (reader.read, reader.read_yuv):
            with pytest.raises(ValueError, match="`box` must lie within the frame of 64 x 80"):
                read([0], Box(*box))
            for index in (-1, COUNT, 10**9):
                with pytest.raises(IndexError, match=rf"`indices` must lie in 0 to 59 in .*, got {index}\."):
                    read([0, index])


@pytest.mark.parametrize("name", ["gop_12.mp4", "gop_250.mp4", "open_gop.mp4", "h265.mp4"])
@pytest.mark.parametrize(("skipped", "kept"), [(5, 55), (14, 46), (14, 20)])
def test_frames_that_an_edit_list_leaves_out_do_not_count(folder, tmp_path, name, skipped, kept):
    (path := tmp_path / name).write_bytes(mp4_cut(written(folder, name).read_bytes(), skipped, kept, rate=30))
    assert_shows(path, range(skipped, skipped + kept))
    if name == "gop_12.mp4":
        with opened(path) as reader:
            reader.read([kept - 1])
            assert reader.packets_fed <= 16  # found by seeking, so the index was believed


@pytest.mark.parametrize("first", [0, 1, 13, 30])
def test_wrong_times_are_found_out(folder, tmp_path, first):
    """From one packet on, the times of B-frames are those of the order in which they are stored."""
    data = bytearray(written(folder, "gop_12.mp4").read_bytes())
    table = data.index(b"ctts") + 8  # counts of packets, and how much later than decoded they are shown
    packets = 0
    for entry in range(int.from_bytes(data[table : table + 4], "big")):
        at = table + 4 + 8 * entry
        if packets >= first:
            data[at + 4 : at + 8] = (1024).to_bytes(4, "big")
        packets += int.from_bytes(data[at : at + 4], "big")
    assert packets == COUNT
    (path := tmp_path / "wrong.mp4").write_bytes(data)
    expected = decode_all(path)
    assert [number_of(frame) for frame in expected] == list(range(COUNT))
    assert_reads_as(path, expected)
    with opened(path) as reader:
        assert np.array_equal(torch.cat([reader.read([index]) for index in range(COUNT)]).numpy(), expected)
        if first < 2:  # found out at once: each frame was decoded from the beginning, once
            assert reader.packets_fed <= sum(index + 1 + 4 for index in range(COUNT))


@pytest.mark.parametrize("name", ["gop_12.mp4", "h265.mp4"])
def test_a_keyframe_that_is_none_is_not_started_at(folder, tmp_path, name):
    data = bytearray(written(folder, name).read_bytes())
    table = data.index(b"stss") + 8  # how many keyframes, and the number of each, from 1
    assert int.from_bytes(data[table + 8 : table + 12], "big") == 13
    data[table + 8 : table + 12] = (18).to_bytes(4, "big")
    (path := tmp_path / name).write_bytes(data)
    assert_reads_as(path, decode_all(path))
    with opened(path) as reader:
        for index in range(20, 24):
            before = reader.packets_fed
            reader.read([index])
            assert reader.packets_fed - before <= index + 6  # decoded from frame 0 on, once


def test_frames_that_are_not_coded_do_not_count(folder, tmp_path):
    """MPEG-4 may say in a few bytes that there is no new picture."""
    # Start code; P, no whole second, marker, 5 bits of time, marker, not coded; stuffing.
    nothing = b"\0\0\1\xb6" + int("0101101001001111", 2).to_bytes(2, "big")
    path = tmp_path / "not_coded.avi"
    with av.open(str(written(folder, "mpeg4.avi"))) as source, av.open(str(path), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for number, packet in enumerate(packet for packet in source.demux(video=0) if packet.size):
            sent = av.Packet(nothing) if number == 20 else packet
            sent.pts, sent.dts, sent.time_base, sent.stream = packet.pts, packet.dts, packet.time_base, stream
            target.mux(sent)
    expected = decode_all(path)
    assert len(expected) == COUNT - 1
    assert_reads_as(path, expected)


def test_samples_without_a_byte_do_not_count(folder, tmp_path):
    data = bytearray(write_video(tmp_path / "whole.mp4", FRAMES[:10], codec="mjpeg", pix_fmt="yuvj420p").read_bytes())
    sizes = data.index(b"stsz") + 12
    first, second = (slice(sizes + 4 * sample, sizes + 4 * sample + 4) for sample in (3, 4))
    data[first] = sum(int.from_bytes(data[sample], "big") for sample in (first, second)).to_bytes(4, "big")
    data[second] = bytes(4)
    (path := tmp_path / "no_byte.mp4").write_bytes(data)
    # Of the two pictures that are now in one sample, the decoder shows the second.
    assert_reads_as(path, np.delete(decode_all(tmp_path / "whole.mp4"), 3, axis=0))


@pytest.mark.parametrize("packets_per_frame", [1, 2])
def test_frames_of_two_field_pictures(tmp_path, packets_per_frame):
    lumas = [(20 + 7 * frame, 29 + 7 * frame) for frame in range(21)]
    path = write_field_pictures(tmp_path / "fields.mp4", lumas, gop=7, packets_per_frame=packets_per_frame)
    with av.open(str(path)) as container:
        rows = np.stack([frame.to_ndarray()[:SIDE, 0] for frame in container.decode(video=0)])
    assert np.array_equal(rows, expected_frames(lumas))
    expected = decode_all(path)
    with opened(path) as video:
        assert len(video) == 21
        assert np.array_equal(video.read(range(21)).numpy(), expected)
        for frame in (20, 3, 13, 0, 7, 12):
            assert np.array_equal(video.read([frame])[0].numpy(), expected[frame])
    if packets_per_frame == 1:  # with two, packets are no frames, and the file is decoded from its beginning
        with opened(path) as video:
            video.read([12])
            assert video.packets_fed == 5  # itself, and 7, 9, 11 and 13, which others may refer to


def test_frames_at_the_start_that_need_what_is_gone_do_not_count(folder, tmp_path):
    source = written(folder, "h265_open_gop.ts")
    with av.open(str(source)) as container:
        second = [packet for packet in container.demux(video=0) if packet.is_keyframe][1]
    data = source.read_bytes()
    tables = 3 * 188  # packets that say what the stream holds
    (path := tmp_path / "cut.ts").write_bytes(data[:tables] + data[second.pos :])
    expected = decode_all(path)
    first = number_of(expected[0])
    assert [number_of(frame) for frame in expected] == list(range(first, COUNT))
    with av.open(str(path)) as container:
        assert sum(packet.size > 0 for packet in container.demux(video=0)) > len(expected)
    assert_reads_as(path, expected)


@pytest.mark.parametrize("which", [0, 8])
def test_a_frame_that_is_lost_is_not_counted(folder, tmp_path, which):
    source, path = written(folder, "h265.mp4"), tmp_path / "lost.mp4"
    data = bytearray(source.read_bytes())
    with av.open(str(source)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
    lost = [packet for packet in packets if packet.is_disposable][which]
    data[lost.pos + 4] = 38 << 1  # the type of the unit, behind its length: filler data
    path.write_bytes(data)
    number = sorted(packet.pts for packet in packets).index(lost.pts)
    assert_shows(path, (n for n in range(COUNT) if n != number))


def test_hidden_frames_of_vp8_do_not_count(folder, tmp_path):
    source = written(folder, "vp8.ivf")
    data = bytearray(source.read_bytes())
    with av.open(str(source)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
    for number in (7, 41):
        assert not packets[number].is_keyframe
        data[data.index(bytes(packets[number]))] &= 0xEF  # the bit that shows a frame
    (path := tmp_path / "hidden.ivf").write_bytes(data)
    assert_shows(path, (n for n in range(COUNT) if n not in (7, 41)))
    with opened(path) as reader:
        reader.read([50])
        assert reader.packets_fed <= 13  # found by seeking, so the index was believed


@pytest.mark.parametrize(
    ("name", "rate"),
    [("gop_12.mp4", 30), ("gop_12.mkv", 30), ("vp9.webm", 30), ("variable_rate.mp4", 59 * 30 / (3 * 59 + 1 + 40))],
)
def test_rate_is_that_of_the_frames(folder, name, rate):
    with VideoReader(written(folder, name)) as reader:
        assert reader.rate == pytest.approx(rate, rel=1e-3)


MOST = dict.fromkeys(["gop_12.mp4", "gop_12.mkv", "gop_12.ts", "fragments.mp4", "faststart.mp4"], 16)
MOST |= dict.fromkeys(["variable_rate.mp4", "late_start.mp4", "mpeg4_b.avi", "mpeg4_b.mp4"], 16)
MOST |= dict.fromkeys(["h265.mp4", "h265_open_gop.mkv", "h265_radl.mp4"], 18)
MOST |= {"vp8.webm": 13, "vp9.webm": 13, "mpeg4.avi": 13, "av1.mp4": 14, "mpeg2.ts": 17, "mjpeg.avi": 1}
"""The GOP of 12, and the packets, 4 of H.264, that the decoder is behind what it shows."""


@pytest.mark.parametrize(("name", "most"), MOST.items())
def test_a_frame_costs_no_more_than_its_gop(folder, name, most):
    with opened(written(folder, name)) as reader:
        for index in range(COUNT):
            before = reader.packets_fed
            reader.read([index])
            assert reader.packets_fed - before <= most, index


@pytest.mark.parametrize("name", ["gop_250.mp4", "intra_refresh.mp4", "mpeg2.mpg", "no_times.h264"])
def test_a_frame_costs_no_more_than_what_comes_before_it(folder, name):
    with opened(written(folder, name)) as reader:
        for index in range(0, COUNT, 7):
            before = reader.packets_fed
            reader.read([index])
            assert reader.packets_fed - before <= index + 1 + 4


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="no /proc to count threads in")
def test_the_decoder_starts_no_threads(folder):
    for name in ("gop_12.mp4", "h265.mp4", "vp9.webm", "av1.mp4"):
        with opened(written(folder, name)) as reader:
            before = len(os.listdir("/proc/self/task"))
            reader.read([7, 40])
            assert len(os.listdir("/proc/self/task")) == before, name


def test_a_frame_asked_for_often_is_decoded_once(folder):
    with opened(written(folder, "mjpeg.avi")) as reader:
        reader.read([40, 3, 40, 3, 40, 40])
        assert reader.packets_fed == 2


def test_all_frames_cost_one_decode(video):
    with opened(video) as reader:
        reader.read(range(COUNT))
        assert reader.packets_fed <= COUNT + 1  # one empty packet brings out the last frames


def test_damage_stays_in_its_gop(folder, tmp_path):
    whole = written(folder, "gop_12.mp4")
    path = damage(whole, tmp_path / "damaged.mp4", packet=30)
    expected = np.delete(decode_all(whole), 33, axis=0)  # the frame of that packet does not come out
    table = make_table(path)
    assert str(table.damage) == "damaged (frames that FFmpeg conceals: 0, packets that it can't decode: 1)"
    spared = [*range(30), *range(35, COUNT - 1)]
    with VideoReader(path, table) as reader:
        assert len(reader) == COUNT - 1
        for index in random.Random(2).sample(spared, 12):
            assert np.array_equal(reader.read([index])[0].numpy(), expected[index])
        assert reader.damage == table.damage
        reader.read([34])
        assert np.array_equal(reader.read([58])[0].numpy(), expected[58])  # the reader lives on


def test_threads_do_not_disturb_each_other(folder):
    paths = [written(folder, name) for name in ("gop_12.mp4", "vp9.webm", "h265_ten_bits.mp4", "mjpeg.avi")]
    expected = {path: decode_all(path) for path in paths}

    def reads_right(seed):
        path = random.Random(seed).choice(paths)
        indices = random.Random(seed).choices(range(COUNT), k=6)
        return np.array_equal(read_frames(path, indices).numpy(), expected[path][indices])

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(reads_right, range(60)))


# Names that FFmpeg reads as image patterns, protocols, options or lists unless it is told not to.
NAMES = ["100%.mp4", "clip%03d.mp4", "%d.mp4", "a:b.mp4", "http:x.mp4", "concat:a|b.mp4", "-leading.mp4"]
NAMES += ["with space.mp4", "'single' \"double\".mp4", "übung-视频-🎬.mp4", "new\nline.mp4", "back\\slash.mp4"]
NAMES += ["*?[0-9].mp4", "#fragment?query=1&.mp4", "no_suffix", "wrong_suffix.jpg", "playlist.m3u8"]
NAMES.append(os.fsdecode(b"not-utf-8-\xff.mp4"))


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_odd_names_are_plain_files(video, tmp_path, monkeypatch, name):
    try:
        (tmp_path / name).write_bytes(video.read_bytes())
    except (OSError, UnicodeError):
        pytest.skip("this file system has no such names")
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / name, name):
        assert number_of(read_frames(path, [33])[0].numpy()) == 33


def hls(target):
    return f"#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\n{target}\n#EXT-X-ENDLIST\n"


def dash(target):
    return f"""<?xml version="1.0"?>
<MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" mediaPresentationDuration="PT2S"><Period>
<AdaptationSet mimeType="video/mp4"><Representation id="1" bandwidth="1000" codecs="avc1" width="64" height="48">
<BaseURL>{target}</BaseURL></Representation></AdaptationSet></Period></MPD>"""


def concat(target):
    return f"ffconcat version 1.0\nfile '{target}'\n"


@pytest.mark.parametrize("name", ["x.mp4", "x.m3u8", "x.mpd", "x.ts", "x"])
@pytest.mark.parametrize("script", [hls, dash, concat])
def test_a_script_reads_no_other_file(folder, tmp_path, script, name):
    (tmp_path / "secret.ts").write_bytes(written(folder, "gop_12.ts").read_bytes())
    for target in ("secret.ts", str(tmp_path / "secret.ts"), f"file:{tmp_path / 'secret.ts'}"):
        (tmp_path / name).write_text(script(target))
        with pytest.raises(VideoError, match=r"not a video in one of the containers|not a video, or damaged|holds no"):
            read_frames(tmp_path / name, [0])


@pytest.mark.parametrize(("script", "name"), [(hls, "x.m3u8"), (concat, "x.mp4")])
def test_the_scripts_would_work_on_an_unguarded_reader(folder, tmp_path, script, name):
    (tmp_path / "secret.ts").write_bytes(written(folder, "gop_12.ts").read_bytes())
    (tmp_path / name).write_text(script("secret.ts"))
    assert len(decode_all(tmp_path / name)) == COUNT


@pytest.mark.parametrize("name", ["x.mp4", "x.m3u8", "x.mpd"])
@pytest.mark.parametrize("script", [hls, dash, concat])
def test_a_script_reaches_no_network(tmp_path, script, name):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.setblocking(False)
        (tmp_path / name).write_text(script(f"http://127.0.0.1:{server.getsockname()[1]}/x.ts"))
        with pytest.raises(VideoError):
            read_frames(tmp_path / name, [0])
        with pytest.raises(BlockingIOError):  # nobody called
            server.accept()


def jpegs(frames, **options):
    """Each frame as a JPEG file."""
    files = [io.BytesIO() for _ in frames]
    for file, frame in zip(files, frames, strict=True):
        Image.fromarray(frame).save(file, "jpeg", quality=90, **options)
    return [file.getvalue() for file in files]


@pytest.mark.parametrize(
    ("suffix", "options", "size"),
    [
        ("mjpeg", {}, (48, 64)),  # a JPEG of 1 KB, the others of 6 KB
        ("mjpeg", {}, (240, 320)),
        ("mjpg", {"progressive": True}, (240, 320)),
        ("MJPG", {"subsampling": 0}, (240, 320)),
    ],
)
def test_jpegs_behind_each_other_are_a_video(tmp_path, suffix, options, size):
    (path := tmp_path / f"video.{suffix}").write_bytes(b"".join(jpegs(numbered_frames(30, *size), **options)))
    assert_shows(path, range(30), count=4)
    with opened(path) as reader:
        assert reader.table.direct
        reader.read([20, 3])
        assert (reader.packets_fed, reader.fallbacks, bool(reader.damage)) == (2, 0, False)


def test_a_picture_and_a_script_are_no_video_by_the_suffix_of_jpegs(tmp_path):
    (tmp_path / "0.jpg").write_bytes(jpegs(numbered_frames(1, 240, 320))[0])
    with pytest.raises(VideoError, match="not a video in one of the containers"):
        read_frames(tmp_path / "0.jpg", [0])
    (tmp_path / "list.mjpeg").write_text("#EXTM3U\n#EXTINF:1,\n0.jpg\n#EXT-X-ENDLIST\n")
    with pytest.raises(VideoError, match="not a video in one of the containers|damaged"):
        read_frames(tmp_path / "list.mjpeg", [0])


def test_pictures_are_no_video(tmp_path):
    for number in range(3):
        write_video(tmp_path / f"{number}.jpg", FRAMES[:1], codec="mjpeg", pix_fmt="yuvj420p", format="mjpeg")
    (tmp_path / "%d.jpg").write_text("the pattern of a sequence, here the name of a file")
    assert len(decode_all(tmp_path / "%d.jpg")) == 3  # what an unguarded reader makes of it
    with pytest.raises(VideoError, match="not a video in one of the containers"):
        read_frames(tmp_path / "%d.jpg", [0])


def sound(path, *, cover=False):
    with av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream("aac", rate=8000)
        if cover:
            picture = container.add_stream("mjpeg", rate=1)
            picture.height, picture.width, picture.pix_fmt = HEIGHT, WIDTH, "yuvj420p"
            picture.disposition = av.stream.Disposition.attached_pic.value
            container.mux(picture.encode(av.VideoFrame.from_ndarray(FRAMES[0], format="rgb24")))
            container.mux(picture.encode())
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 8000), np.float32), format="fltp", layout="mono")
        silence.sample_rate, silence.pts = 8000, 0
        container.mux(stream.encode(silence))
        container.mux(stream.encode())


def part(name, first=0.0, last=1.0):
    """Makes a file of a part of another one."""

    def make(folder, path):
        data = written(folder, name).read_bytes()
        path.write_bytes(data[round(first * len(data)) : round(last * len(data))])

    return make


def of(content):
    return lambda folder, path: path.write_bytes(content)


NO_VIDEO = "not a video, or damaged, or cut short"


def late_half(folder, path):
    """Half of a file that begins at 1000 s, as a part of a longer recording may."""
    data = write_video(path, FRAMES, pts=range(30_000, 30_000 + COUNT), options={"g": "12"}).read_bytes()
    path.write_bytes(data[: len(data) // 2])


def far_times(folder, path):
    """Two frames of an IVF file jump to a time far away, of which their headers of 12 bytes tell."""
    data, at = bytearray(written(folder, "vp8.ivf").read_bytes()), 32
    for number in range(COUNT // 2):
        if number in (8, 16):
            data[at + 4 : at + 12] = (2**62).to_bytes(8, "little")
        at += 12 + int.from_bytes(data[at : at + 4], "little")
    path.write_bytes(data)


FAULTS = {
    "empty.mp4": (of(b""), NO_VIDEO),
    "text.mp4": (of(b"a text\n" * 100), NO_VIDEO),
    "zeros.mp4": (of(bytes(5000)), NO_VIDEO),
    "no_head.mp4": (part("gop_12.mp4", first=0.1), NO_VIDEO),
    "no_index.mp4": (part("gop_12.mp4", last=0.5), NO_VIDEO),  # which lies behind its pictures
    "half_faststart.mp4": (part("faststart.mp4", last=0.5), "cut short: its last packet is not all there"),
    "last_bytes.mp4": (part("faststart.mp4", last=0.999), "cut short"),
    "half.mkv": (part("gop_12.mkv", last=0.5), r"cut short: it lasts 0\.8 s of the 2\.0 s that it declares"),
    "late_half.mkv": (late_half, r"cut short: it lasts 0\.\d s of the 2\.0 s that it declares"),
    "half.avi": (part("mjpeg.avi", last=0.5), "cut short: its last packet is not all there"),
    "far_times.ivf": (far_times, "the times of its frames add up to more than 64 bits hold"),
    "sound.m4a": (lambda folder, path: sound(path), "holds no video, only other streams"),
    "sound_and_cover.m4a": (lambda folder, path: sound(path, cover=True), "holds no video, only other streams"),
    "sound.mp3": (of(b"\xff\xfb\x90\0" * 2000), "not a video in one of the containers"),
    "folder.mp4": (lambda folder, path: path.mkdir(), "not an ordinary file"),
    "pipe.mp4": (lambda folder, path: os.mkfifo(path), "not an ordinary file"),
    "missing.mp4": (lambda folder, path: None, "No such file or directory"),
    "n" * 300: (lambda folder, path: None, "File name too long"),
    "null\0.mp4": (lambda folder, path: None, "embedded null"),
}


def test_a_transport_stream_whose_clock_wraps_is_whole(tmp_path):
    """After 26.5 hours, in which FFmpeg counts the time before as negative."""
    wraps = 2**33 * 30 // 90_000
    path, options = tmp_path / "a.ts", {"mpegts_copyts": "1"}
    write_video(path, [*FRAMES, *FRAMES], pts=range(wraps - 100, wraps - 100 + 2 * COUNT), container_options=options)
    assert len(make_table(path)) == 2 * COUNT


@pytest.mark.parametrize("name", FAULTS, ids=lambda name: ascii(name)[:20])
def test_a_fault_is_a_video_error_that_names_file_and_reason(folder, tmp_path, name):
    make, reason = FAULTS[name]
    path = tmp_path / name
    make(folder, path)
    with pytest.raises(VideoError, match=reason) as caught:
        VideoReader(path)
    error = caught.value
    assert (error.path, str(error)) == (str(path), f"{path}: {error.reason}".replace("\0", "\\x00"))
    assert len(str(error).splitlines()) == 1


def test_a_video_error_is_one_line_and_survives_the_way_out_of_a_worker():
    error = pickle.loads(pickle.dumps(VideoError(os.fsdecode(b"a\nb\xff.mp4"), "two\nlines")))
    assert (error.path, error.reason) == (os.fsdecode(b"a\nb\xff.mp4"), "two\nlines")
    assert str(error) == "a\\nb\\udcff.mp4: two\\nlines"


def test_titles_need_not_be_utf8(video, tmp_path):
    # The encoder's name stands in the file's header: a camera of 2005 might have written it in Latin-1.
    data = video.read_bytes()
    assert data.count(b"Lavf") == 1
    (path := tmp_path / "latin.mp4").write_bytes(data.replace(b"Lavf", b"L\xe4\xfcf"))
    assert number_of(read_frames(path, [7])[0].numpy()) == 7


def huge_picture(name, data):
    """A video of 80 x 64 pixels made to say that it has 16,000 x 16,000."""
    patched = bytearray(data)
    before, size = {
        "vp8.webm": (b"\x9d\x01\x2a", (16000).to_bytes(2, "little") * 2),
        "mjpeg.avi": (b"\xff\xc0\0\x11\x08", (16000).to_bytes(2, "big") * 2),
        "raw.avi": (b"strf\x28\0\0\0\x28\0\0\0", (16000).to_bytes(4, "little") * 2),
    }[name]
    at = patched.find(before)
    assert at > 0
    while at > 0:
        patched[at + len(before) : at + len(before) + len(size)] = size
        at = patched.find(before, at + 1)
    return bytes(patched)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("vp8.webm", "damaged, or frames of more than 67108864 pixels"),
        ("mjpeg.avi", "damaged"),
        ("raw.avi", "declares frames of 16000 x 16000 pixels, more than 67108864"),
    ],
)
def test_huge_declared_sizes_are_refused_at_no_cost(folder, tmp_path, name, reason):
    resource = pytest.importorskip("resource")
    raw = {"codec": "rawvideo", "pix_fmt": "yuv420p"}
    whole = write_video(tmp_path / name, FRAMES[:10], **raw) if name == "raw.avi" else written(folder, name)
    (path := tmp_path / f"huge_{name}").write_bytes(huge_picture(name, whole.read_bytes()))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(VideoError, match=reason):
        read_frames(path, [0])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes; a frame has 384,000


@pytest.mark.parametrize("kind", [MemoryError, KeyboardInterrupt, SystemExit])
def test_what_is_no_fault_of_the_file_is_passed_on(video, tmp_path, monkeypatch, kind):
    def fail(*args, **options):
        raise kind

    with VideoReader(video) as reader:
        monkeypatch.setattr("lightning_multigrid.decode.reader.rgb_frame", fail)
        with pytest.raises(kind):
            reader.read([0])
    monkeypatch.setattr(av, "open", fail)
    (tmp_path / "new.mp4").write_bytes(video.read_bytes())
    with pytest.raises(kind):
        VideoReader(tmp_path / "new.mp4")


def test_a_closed_reader_says_so(video):
    reader = VideoReader(video)
    reader.close()
    reader.close()
    with pytest.raises(VideoError, match="cannot be read"):
        reader.read([0])


def test_damage_makes_no_noise(folder, tmp_path):
    bad = damage(written(folder, "gop_12.mp4"), tmp_path / "damaged.mp4", packet=30)
    script = (
        "import av, sys\n"
        "from lightning_multigrid.decode import VideoReader\n"
        "with VideoReader(sys.argv[1]) as video:\n    video.read([34])\n    print(video.damage)\n"
        "assert av.logging.get_level() is None\n"
    )
    run = subprocess.run([sys.executable, "-c", script, str(bad)], capture_output=True, text=True, check=True)
    assert run.stderr == ""
    assert run.stdout.startswith("damaged (")


def test_png_in_quicktime_is_decoded_once(tmp_path):
    """A packet says that it is a keyframe: FFmpeg's decoder adds another one to the frame before."""
    path = write_video(tmp_path / "a.mov", frames := numbered_frames(12), codec="png", pix_fmt="rgb24")
    table = make_table(path)
    for order in ([3, 7], [9, 0, 3]):
        with VideoReader(path, table) as video:
            assert (video.read(order).numpy() == np.stack([frames[index] for index in order])).all()
            assert (video.fallbacks, video.packets_fed) == (0, len(order))
