"""A row of a manifest is opened with what is known of its video, and closed whatever happens."""

from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from lightning_multigrid.clips.opening import frame_table, open_row, read_pixels
from lightning_multigrid.decode import VideoError, VideoReader, make_table
from lightning_multigrid.pixels import YuvClip
from lightning_multigrid.sources.builder import ManifestBuilder
from lightning_multigrid.sources.table_store import TableStore
from tests.helpers.videos import number_of, numbered_frames, write_video

FRAMES = 30
RATE = 10


def manifest(folder, *, images=False):
    builder = ManifestBuilder(folder / "list.csv", frame_rate=RATE if images else None)
    builder.add("a" if images else "a.mp4", [0], where="row")
    return builder.build()


@pytest.fixture
def indexed(tmp_path):
    """Thirty frames in three seconds, and the table of the video."""
    path = write_video(tmp_path / "a.mp4", numbered_frames(FRAMES), rate=RATE, options={"g": "5"})
    store = TableStore(tmp_path / "tables")
    store.add(str(path), make_table(path).to_bytes())
    return replace(manifest(tmp_path), tables=store)


def numbers(frames):
    return [number_of(frame) for frame in frames.numpy()]


def test_planes_are_read_where_the_video_has_them(indexed, tmp_path):
    (tmp_path / "a").mkdir()
    for number, frame in enumerate(numbered_frames(3)):
        Image.fromarray(frame).save(tmp_path / "a" / f"{number}.png")
    with open_row(indexed, 0) as video, open_row(manifest(tmp_path, images=True), 0) as images:
        assert isinstance(read_pixels(video, [3, 0], pixels="yuv"), YuvClip)
        assert numbers(read_pixels(video, [3, 0])) == [3, 0]
        assert numbers(read_pixels(images, [2, 0], pixels="yuv")) == [2, 0]
        assert images.rate == RATE


def test_a_video_is_closed_whatever_happens(indexed, monkeypatch):
    closed = []
    close = VideoReader.close
    monkeypatch.setattr(VideoReader, "close", lambda self: (closed.append(self), close(self))[1])
    with open_row(indexed, 0):
        assert not closed
    with pytest.raises(KeyError), open_row(indexed, 0):
        raise KeyError
    assert len(closed) == 2


def test_a_folder_without_images_is_a_broken_video(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(VideoError, match="holds no images"), open_row(manifest(tmp_path, images=True), 0):
        raise AssertionError


def test_a_video_is_opened_with_its_table(indexed):
    assert frame_table(indexed, 0).to_bytes() == make_table(indexed.path(0)).to_bytes()
    with open_row(indexed, 0) as video:
        assert numbers(video.read([27])) == [27]
        assert video.table.entries[27] == 25  # the reader's own would begin with the first packet
    assert frame_table(replace(indexed, tables=None), 0) is None
    assert frame_table(replace(indexed, tables=TableStore(Path(indexed.path(0)).parent / "none")), 0) is None


@pytest.mark.parametrize(
    "damage", [lambda data: data.replace(b"checksums", b"checkzums"), lambda data: data[:-1], lambda data: b"x"]
)
def test_a_damaged_table_is_named_and_left_out(indexed, damage):
    [path] = Path(indexed.tables.folder).rglob("*.table")
    path.write_bytes(damage(path.read_bytes()))
    message = r"Frame tables in .*tables are damaged: they are no frame table.* Videos are read from their beginning"
    with pytest.warns(UserWarning, match=message), open_row(indexed, 0) as video:
        assert numbers(video.read([27])) == [27]
