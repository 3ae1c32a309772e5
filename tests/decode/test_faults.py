"""Damaged and hostile video files by the thousand: only our errors, no wrong frame by an index, nothing that grows."""

import ctypes
import os
import random
import time
from contextlib import suppress
from pathlib import Path

import av
import numpy as np
import pytest
import torch

from lightning_multigrid.decode import VideoError, VideoReader, full_decode, make_table, read_frames
from lightning_multigrid.decode.frame_table import checksum
from tests.helpers.codings import H264, PREPARED, damage, written
from tests.helpers.mutations import mutate
from tests.helpers.videos import decode_all, number_of, numbered_frames, write_video

SOURCES = ["gop_12.mp4", "faststart.mp4", "pyramid.mp4", "fragments.mp4", "gop_12.mkv", "gop_12.ts", "h265.mp4"]
SOURCES += ["vp8.webm", "vp9.webm", "av1.mp4", "mpeg4_b.avi", "mjpeg.avi", "mpeg2.mpg", "gop_12.flv", "vp8.ivf"]
NUMBERS = [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**16, 255, 2**63]

needs_proc = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc to measure memory with")


def resident():
    """Bytes of this process in memory, without those that it has let go of and C's library holds back."""
    with suppress(AttributeError):  # other libraries than GNU's
        ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    ("name", "table", "claim", "said"),
    [
        ("gop_12.mp4", b"stsz", (1).to_bytes(4, "big") + (2**27).to_bytes(4, "big"), "134217728"),
        ("fragments.mp4", b"trun", (2**24).to_bytes(4, "big"), "167772[0-9]+"),
    ],
)
def test_a_few_bytes_cannot_claim_millions_of_frames(folder, tmp_path, name, table, claim, said):
    data = bytearray(written(folder, name).read_bytes())
    at = data.index(table) + 8
    data[at : at + len(claim)] = claim
    (tmp_path / name).write_bytes(data)
    with pytest.raises(VideoError, match=rf"damaged: its frames claim {said} bytes, {len(data)} are there"):
        VideoReader(tmp_path / name)


@needs_proc
def test_sound_that_counts_its_samples_claims_no_frames(folder):
    """As QuickTime's compressed sound does: each sample has 1 byte and lasts 1, whatever there is of it."""
    data = bytearray(write_video(folder / "sound.mov", numbered_frames(20), options=H264, audio=True).read_bytes())
    sound, one, most = data.index(b"soun"), (1).to_bytes(4, "big"), (2**27).to_bytes(4, "big")
    for box, fields in {b"stsz": one + most, b"stts": one + most + one}.items():
        place = data.index(box, sound) + 8
        data[place : place + len(fields)] = fields
    (folder / "counted.mov").write_bytes(data)
    before = resident()
    with VideoReader(folder / "counted.mov", make_table(folder / "counted.mov")) as video:
        assert len(video) == 20
    assert resident() - before < 2**27


def test_a_title_claims_no_frames(folder):
    with av.open(str(folder / "title.mp4"), "w") as made:
        made.metadata["title"] = "Elephant paints with its trunk, a tutorial"
        stream = made.add_stream("libx264", rate=30)
        stream.width, stream.height = 64, 48
        for frame in numbered_frames(3):
            made.mux(stream.encode(av.VideoFrame.from_ndarray(frame)))
        made.mux(stream.encode())
    assert read_frames(folder / "title.mp4", [0, 1, 2]).shape == (3, 48, 64, 3)


def test_a_file_cannot_take_more_time_than_its_bytes_allow(folder, monkeypatch):
    monkeypatch.setattr(full_decode, "_SECONDS", 0.0)
    monkeypatch.setattr(full_decode, "_SECONDS_PER_BYTE", 0.0)
    with pytest.raises(VideoError, match=r"takes too long to decode, for a file of \d+ bytes"):
        make_table(written(folder, "gop_12.mp4"))


def test_the_search_for_entries_has_a_limit_of_time_too(folder, monkeypatch):
    """Also where packets come from the container; without entries the file is read."""
    monkeypatch.setattr(full_decode, "_SEARCH", -1e9)
    for name in ("gop_12.mp4", "gop_12.ts"):
        path = written(folder, name)
        with pytest.raises(VideoError, match=r"takes too long to decode, for a file of \d+ bytes"):
            make_table(path)
        with VideoReader(path) as video:
            assert number_of(video.read([41])[0].numpy()) == 41


def mutate_video(content, draw):
    """Damage as of disks, downloads and attackers; half of it in the tables, where it matters most."""
    table = max(content.find(b"moov"), 0)
    kind = draw.random()
    if kind < 0.1:
        return content[: draw.randrange(len(content))]
    if kind < 0.25:
        return mutate(content, draw)
    data = bytearray(content)
    for _ in range(draw.choice([1, 1, 2, 5, 50])):
        at = draw.randrange(len(data)) if draw.random() < 0.5 else min(table + draw.randrange(1500), len(data) - 1)
        if draw.random() < 0.5:
            data[at] ^= 1 << draw.randrange(8)
        else:
            size = draw.choice([1, 2, 4, 8])
            data[at : at + size] = (draw.choice(NUMBERS) % 256**size).to_bytes(size, draw.choice(["big", "little"]))
    return bytes(data)


def read_mutations(folder, target, count, seed):
    """Reads mutated videos. Yields the seed and the CPU seconds that each took."""
    contents = [written(folder, name).read_bytes() for name in SOURCES]
    for number in range(seed, seed + count):
        draw = random.Random(number)
        which = draw.randrange(len(SOURCES))
        (path := target / f"mutated{Path(SOURCES[which]).suffix}").write_bytes(mutate_video(contents[which], draw))
        began = time.process_time()
        # A damaged table may tell of hours of frames: no more than a clip is asked for.
        with suppress(VideoError), VideoReader(path) as reader:
            indices = [min(len(reader) - 1, 4 * point) for point in range(8)]
            frames = reader.read(indices)
            assert tuple(frames.shape) == (8, reader.height, reader.width, 3), number
        yield number, time.process_time() - began


@needs_proc
def test_mutated_videos_are_video_errors_or_go_unnoticed(folder, tmp_path):
    for number, seconds in read_mutations(folder, tmp_path, 150, seed=0):
        assert seconds < 10, number


@needs_proc
@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_many_mutated_videos(folder, tmp_path):
    """20,000 files take some minutes."""
    for number, seconds in read_mutations(folder, tmp_path, 4_000, seed=10**6):
        assert seconds < 10, number
    before, files = resident(), open_files()
    for number, seconds in read_mutations(folder, tmp_path, 20_000, seed=2 * 10**6):
        assert seconds < 10, number
    assert resident() - before < 50 * 2**20
    assert open_files() == files


def sequential(path):
    """The frames of a damaged file up to the first error, by PyAV alone."""
    frames = []
    with suppress(av.FFmpegError), av.open(str(path)) as container:
        container.streams.video[0].thread_count = 1
        frames += [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    return frames


def test_damage_that_makes_no_error_spreads_no_further_than_in_a_sequential_decode(folder, tmp_path):
    """What the decoder makes up for lost macroblocks depends on what was in its memory; the other frames are exact."""
    source = written(folder, "pyramid.mp4")
    table, content, whole = make_table(source), source.read_bytes(), decode_all(source)
    large = np.flatnonzero(table.sizes > 60).tolist()
    compared = damaged = 0
    for seed in range(25):
        draw = random.Random(seed)
        data = bytearray(content)
        packet = draw.choice(large)
        for _ in range(3):
            place = draw.randrange(45, int(table.sizes[packet]))
            data[int(table.positions[packet]) + place] ^= 1 << draw.randrange(8)
        (path := tmp_path / f"{seed}.mp4").write_bytes(data)
        expected = sequential(path)
        spared = [n for n, frame in enumerate(expected) if np.array_equal(frame, whole[n])]
        damaged += len(expected) - len(spared)
        with suppress(VideoError), VideoReader(path) as reader:
            for number in spared:
                assert np.array_equal(reader.read([number])[0].numpy(), whole[number]), seed
                compared += 1
    assert compared > 100
    assert damaged > 10


def read_clips(paths, count):
    draw = random.Random(0)
    for number in range(count):
        path = paths[number % len(paths)]
        try:
            with VideoReader(path) as reader:
                start = draw.randrange(len(reader) - 28)
                reader.read(range(start, start + 28, 4))
        except VideoError:
            assert "damaged" in path.name


def many_files(folder, tmp_path):
    """Good and bad ones; decoders of several sizes take turns."""
    names = ["gop_12.mp4", "prepared.mp4", "pyramid.mp4", "gop_12.mkv", "h265.mp4", "vp9.webm", "mpeg4_b.avi"]
    names.append("av1.mp4")
    paths = [written(folder, name) for name in names]
    paths.append(damage(paths[0], tmp_path / "damaged.mp4", packet=30))
    for number, side in enumerate((48, 64, 96)):
        frames = numbered_frames(40, side, side + 16)
        paths.append(write_video(tmp_path / f"{number}.mp4", frames, options=PREPARED if number else H264))
    return paths


@needs_proc
def test_a_damaged_file_gives_one_answer_with_a_table_and_without(tmp_path):
    """FFmpeg finds no fault in it. What its damaged frames show depends on which memory the decoder has back."""
    draw, path = np.random.default_rng(0), tmp_path / "a.mp4"
    blocks = draw.integers(0, 255, (130, 40, 3), dtype=np.uint8)
    frames = [np.kron(blocks[index // 2 :][:30], np.ones((8, 8, 1), np.uint8)) for index in range(200)]
    parameters = "keyint=24:min-keyint=24:open-gop=1:bframes=4:log-level=none:pools=none:frame-threads=1"
    write_video(path, frames, codec="libx265", options={"x265-params": parameters})
    data = path.read_bytes()
    for seed in range(3):
        rng, damaged = random.Random(seed), bytearray(data)
        for _ in range(4):
            at = rng.randrange(len(data) // 3, len(data) - 8000)
            damaged[at : at + 6] = rng.randbytes(6)
        path.write_bytes(damaged)
        with av.open(str(path)) as container:
            container.streams.video[0].codec_context.thread_count = 1
            sums: list[int] = []
            for packet in container.demux(video=0):
                frames = []
                with suppress(av.InvalidDataError):
                    frames = packet.decode()
                for frame in frames:  # the last one is held while the next packet is decoded, as `decode` does
                    sums.append(checksum(frame))
        table = make_table(path)
        assert table.checksums.tolist() == sums
        with VideoReader(path, table) as video:
            assert torch.equal(video.read(range(len(sums))), read_frames(path, range(len(sums))))


def test_memory_and_open_files_stay_flat(folder, tmp_path):
    paths = many_files(folder, tmp_path)
    read_clips(paths, 24)
    before, files = resident(), open_files()
    read_clips(paths, 72)
    assert resident() - before < 20 * 2**20
    for content in (b"no video", written(folder, "faststart.mp4").read_bytes()[:3000]):
        (tmp_path / "bad.mp4").write_bytes(content)
        with pytest.raises(VideoError):
            VideoReader(tmp_path / "bad.mp4")
    assert open_files() == files
