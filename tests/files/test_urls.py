"""Videos at URLs: the frames of the same file on disk, no byte more than needed, nothing outside of the root."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path

import fsspec
import lightning as L
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from lightning_multigrid.decode.frame_table import FrameTable
from lightning_multigrid.decode.full_decode import make_table
from lightning_multigrid.decode.reader import VideoReader
from lightning_multigrid.decode.video_file import VideoError
from lightning_multigrid.files import urls
from lightning_multigrid.files.urls import is_url, size_and_change, sizes_and_changes
from lightning_multigrid.prepare.check_videos import check
from lightning_multigrid.prepare.prepare_videos import prepare
from lightning_multigrid.prepare.transcode import Encoding
from lightning_multigrid.sources.builder import ManifestBuilder
from lightning_multigrid.sources.kinetics import Kinetics
from lightning_multigrid.sources.text import ManifestError
from lightning_multigrid.sources.video_list import read_manifest
from lightning_multigrid.video.broken_videos import BrokenVideoWarning
from lightning_multigrid.video.datamodule import VideoDataModule
from tests.helpers.codings import COUNT, damage, requests, written
from tests.helpers.recorder import TINY, Recorder, quiet_trainer
from tests.helpers.videos import decode_all, numbered_frames, write_video

ROOT = "memory://bucket/videos"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("videos")


@pytest.fixture(autouse=True)
def _empty_memory():
    yield
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


def put(data: bytes | Path, key: str) -> str:
    """Copies a file, or bytes, to a key below the root, and returns its URL."""
    url = f"{ROOT}/{key}"
    fsspec.filesystem("memory").pipe(url, data if isinstance(data, bytes) else data.read_bytes())
    return url


class Watched:
    """What the store is asked for."""

    def __init__(self, monkeypatch) -> None:
        self.bytes = self.requests = 0
        read = MemoryFileSystem.cat_file

        def counting(files, path, start=None, end=None, **options):
            self.bytes, self.requests = self.bytes + end - start, self.requests + 1
            return read(files, path, start, end, **options)

        monkeypatch.setattr(MemoryFileSystem, "cat_file", counting)


# --- Reading ---


@pytest.mark.parametrize("name", ["gop_12.mp4", "gop_12.mkv", "h265.mp4", "vp9.webm", "faststart.mp4", "gop_12.ts"])
def test_frames_are_those_of_the_file(folder, name):
    path = written(folder, name)
    expected = decode_all(path)
    with VideoReader(put(path, name)) as reader:
        assert (len(reader), reader.height, reader.width) == expected.shape[:3]
        for indices in requests(len(expected), 4):
            assert np.array_equal(reader.read(indices).numpy(), expected[indices])


def test_no_byte_more_is_read_than_a_clip_needs(tmp_path, monkeypatch):
    noise = np.random.default_rng(0).integers(0, 256, (120, 96, 96, 3), np.uint8)
    options = {"g": "12", "bf": "0", "crf": "10", "x264-params": "log-level=none"}
    path = write_video(tmp_path / "large.mp4", noise, options=options)
    url, table = put(path, "large.mp4"), make_table(path)
    watched = Watched(monkeypatch)
    with VideoReader(url, table) as reader:
        assert np.array_equal(reader.read([60])[0].numpy(), decode_all(path)[60])
    assert watched.bytes == int(table.sizes[60])  # frame 60 is a keyframe


def test_a_table_is_made_in_few_requests(tmp_path, monkeypatch):
    noise = np.random.default_rng(0).integers(0, 256, (120, 48, 64, 3), np.uint8)
    path = write_video(tmp_path / "video.mp4", noise, options={"g": "40", "x264-params": "log-level=none"})
    url, watched = put(path, "video.mp4"), Watched(monkeypatch)
    assert len(make_table(url)) == 120
    assert watched.requests <= 30  # fewer than packets: the container, and each of three decodes


def test_files_are_read_by_their_url_too(folder):
    path = written(folder, "gop_12.mp4")
    with VideoReader(f"file://{path}") as reader:
        assert np.array_equal(reader.read([33])[0].numpy(), decode_all(path)[33])


def test_a_file_that_changes_is_indexed_anew(folder, tmp_path):
    """Also if it has as many bytes as before: the store tells when it was made."""
    first = written(folder, "gop_12.mp4").read_bytes()
    second = write_video(tmp_path / "other.mp4", numbered_frames(7, first=100)).read_bytes()
    size = max(len(first), len(second)) + 8
    url = put(padded(first, size), "a.mp4")
    with VideoReader(url) as reader:
        assert len(reader) == COUNT
    put(padded(second, size), "a.mp4")
    with VideoReader(url) as reader:
        assert len(reader) == 7


def padded(video: bytes, size: int) -> bytes:
    """The same video with a box of nothing behind it."""
    spare = size - len(video)
    return video + spare.to_bytes(4, "big") + b"free" + bytes(spare - 8)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (f"{ROOT}/missing.mp4", "there is no such file"),
        (f"{ROOT}/run", "a directory"),
        (f"{ROOT}/empty.mp4", "empty, 0 bytes"),
        (f"{ROOT}/text.mp4", "no video, or damaged, or cut short"),
        (f"{ROOT}/half.mp4", "cut short: its last packet is not all there"),
        (f"{ROOT}/script.mp4", "not a video in one of the containers|no video, or damaged"),
        ("nonsense://bucket/a.mp4", "has a protocol that fsspec does not know"),
        ("memory://a::file:///etc/hostname", "holds '::', with which fsspec chains URLs"),
    ],
)
def test_a_fault_is_a_video_error(folder, url, reason):
    put(b"", "empty.mp4")
    put(b"a text\n" * 100, "text.mp4")
    whole = written(folder, "faststart.mp4").read_bytes()
    put(whole[: len(whole) // 2], "half.mp4")
    put(b"", "run/a.mp4")
    put(f"#EXTM3U\n#EXTINF:10,\n{written(folder, 'gop_12.ts')}\n#EXT-X-ENDLIST\n".encode(), "script.mp4")
    with pytest.raises(VideoError, match=reason) as caught:
        VideoReader(url)
    assert caught.value.path == url


class FailingStore(MemoryFileSystem):
    """Its reads fail, or hang until they are released."""

    protocol = "failing"
    released = threading.Event()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return MemoryFileSystem._strip_protocol(path.replace("failing://", "memory://"))

    def cat_file(self, path, start=None, end=None, **options):
        if "hanging" in path:
            self.released.wait()
        raise RuntimeError("the store is on fire")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("burning.mp4", "cannot be read .*RuntimeError: the store is on fire"),
        ("hanging.mp4", r"cannot be read: a read did not end within 0\.2 s"),
    ],
)
def test_a_store_that_fails_or_hangs_is_a_video_error(folder, monkeypatch, name, reason):
    monkeypatch.setattr(FailingStore, "released", threading.Event())
    fsspec.register_implementation("failing", FailingStore, clobber=True)
    url = put(written(folder, "gop_12.mp4"), name).replace("memory://", "failing://")
    with pytest.raises(VideoError, match=reason):
        VideoReader(url, read_timeout=0.2)
    FailingStore.released.set()


def test_damage_is_named(folder, tmp_path):
    url = put(damage(written(folder, "gop_12.mp4"), tmp_path / "damaged.mp4", packet=30), "damaged.mp4")
    with VideoReader(url) as reader:
        reader.read([34])
        assert reader.damage.refused == 1


# --- Lists ---


def listed(tmp_path: Path, *rows: str, **options):
    (tmp_path / "list.csv").write_text("".join(f"{row}\n" for row in rows))
    return read_manifest(tmp_path / "list.csv", **options)


@pytest.mark.parametrize("root", [ROOT, f"{ROOT}/"])
def test_paths_start_from_the_url(tmp_path, root):
    manifest = listed(tmp_path, "run/a.mp4 0", f"{ROOT}/b.mp4 1", "./c//d.mp4 0", root=root)
    assert [manifest.path(row) for row in range(3)] == [f"{ROOT}/{key}" for key in ("run/a.mp4", "b.mp4", "c/d.mp4")]
    assert all(is_url(manifest.path(row)) for row in range(3))


@pytest.mark.parametrize(
    "path",
    [
        "../secret.mp4",
        "run/../../secret.mp4",
        "/secret.mp4",
        "%2e%2e/secret.mp4",
        "run/%2E%2E/%2e%2e/secret.mp4",
        "..\\secret.mp4",
        "memory://bucket/secret.mp4",
        "memory://bucket/videos-of-others/secret.mp4",
        "s3://bucket/secret.mp4",
        "file:///etc/hostname",
        "a::file:///etc/hostname",
        "simplecache::memory://bucket/secret.mp4",
    ],
)
@pytest.mark.parametrize("allow", [False, True])
def test_no_path_leads_out_of_the_url(tmp_path, path, allow):
    with pytest.raises(
        ManifestError, match=r"list\.csv, line 1: the path .* leads out of the root 'memory://bucket/vi"
    ):
        listed(tmp_path, f"{path} 0", root=ROOT, allow_outside_root=allow)


@pytest.mark.parametrize("options", [{}, {"root": "videos"}, {"allow_outside_root": True}])
def test_a_list_opens_no_url_unless_the_root_is_one(tmp_path, options):
    url = put(b"", "secret.mp4")
    manifest = listed(tmp_path, f"{url} 0", "http://host/a.mp4 1", **options)
    for row in range(2):
        assert not is_url(manifest.path(row))
        with pytest.raises(VideoError, match="there is no such file"):
            VideoReader(manifest.path(row))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"root": "nonsense://bucket"}, "`root` can't be read: .*a protocol that fsspec does not know"),
        ({"root": "memory://a::file:///etc"}, "`root` can't be read: .*holds '::', with which fsspec chains"),
        ({"root": "memory://bucket/../other"}, "`root` can't be read: .*holds '..'. Give the URL without it"),
        ({"root": ROOT, "frame_rate": 24}, "`root` is 'memory://.*', but folders of frames must lie on disk. Copy"),
    ],
)
def test_roots_that_cannot_be_read(tmp_path, options, message):
    with pytest.raises(ManifestError, match=message):
        listed(tmp_path, "a.mp4 0", **options)


def test_a_protocol_whose_package_is_missing_is_named(tmp_path, monkeypatch):
    def fail(protocol):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec, "get_filesystem_class", fail)
    with pytest.raises(
        ManifestError, match=r"`s3://` \(Install s3fs to access S3\)\. `pip install fsspec\[s3\]` brings"
    ):
        listed(tmp_path, "a.mp4 0", root="s3://bucket/videos")


def test_what_is_not_there_is_left_out_by_choice(tmp_path, caplog):
    put(b"1", "run/a.mp4")
    put(b"1", "swim/b.mp4")
    rows = ["run/a.mp4 0", "run/missing.mp4 0", "swim/b.mp4 1", "fly/c.mp4 1"]
    manifest = listed(tmp_path, *rows, root=ROOT, existing_only=True)
    assert (len(manifest), manifest.missing) == (2, 2)
    assert [manifest.path(row) for row in range(2)] == [f"{ROOT}/run/a.mp4", f"{ROOT}/swim/b.mp4"]


def test_official_annotations_take_a_url(tmp_path):
    (tmp_path / "train.csv").write_text(
        "label,youtube_id,time_start,time_end,split,is_cc\nrun,-3B32lodo2M,59,69,train,0\n"
    )
    manifest = Kinetics(tmp_path / "train.csv", ROOT).read()
    assert manifest.path(0) == f"{ROOT}/-3B32lodo2M_000059_000069.mp4"
    with pytest.raises(ManifestError, match="`videos` is 'memory://.*', but `replacements` need videos on disk. Put"):
        Kinetics(tmp_path / "train.csv", ROOT, replacements=tmp_path).read()


# --- Runs ---


def test_check_reads_videos_at_a_url(folder, tmp_path):
    put(written(folder, "gop_12.mp4"), "good.mp4")
    put(b"a text\n" * 100, "text.mp4")
    found = dict(check(listed(tmp_path, "good.mp4 0", "text.mp4 0", "missing.mp4 0", root=ROOT)))
    assert found[f"{ROOT}/good.mp4"].reason is None
    assert "no video" in found[f"{ROOT}/text.mp4"].reason
    assert found[f"{ROOT}/missing.mp4"].reason == "there is no such file"


def test_prepare_makes_of_a_url_what_it_makes_of_a_folder(folder, tmp_path):
    (tmp_path / "in" / "run").mkdir(parents=True)
    for name in ("run/a.mp4", "b.mkv"):
        whole = written(folder, "gop_12.mkv" if name == "b.mkv" else "gop_12.mp4").read_bytes()
        (tmp_path / "in" / name).write_bytes(whole)
        put(whole, name)
    rows = ["run/a.mp4 0", "b.mkv 1", "missing.mp4 1"]
    options = {"encoding": Encoding(short_side=48, preset="ultrafast"), "max_bad_fraction": 0.5}
    summaries = [
        prepare(listed(tmp_path, *rows, root=root), tmp_path / out, **options)
        for root, out in ((ROOT, "remote"), (ROOT, "remote"), (tmp_path / "in", "local"))
    ]
    assert [(summary.made, summary.kept) for summary in summaries] == [(2, 0), (0, 2), (2, 0)]
    assert summaries[1].broken == {f"{ROOT}/missing.mp4": "there is no such file"}
    manifests = [read_manifest(tmp_path / out) for out in ("remote", "local")]
    for row in range(2):
        remote, local = (Path(manifest.path(row)) for manifest in manifests)
        assert remote.relative_to(tmp_path / "remote") == local.relative_to(tmp_path / "local")
        frames = [FrameTable.from_bytes(manifest.table(row)).checksums for manifest in manifests]
        assert np.array_equal(*frames)


def fit(tmp_path: Path, rows: int, **options) -> tuple[Recorder, VideoDataModule]:
    lines = [f"{number}.mp4 {number % 3}" for number in range(rows)]
    (tmp_path / "list.csv").write_text("\n".join(lines))
    data = VideoDataModule(tmp_path / "list.csv", tmp_path / "list.csv", **{**TINY, **options})
    module = Recorder()
    host: L.Trainer = quiet_trainer()
    host.fit(module, datamodule=data)
    return module, data


def test_training_on_videos_in_memory(folder, tmp_path):
    for number in range(7):
        put(written(folder, "gop_12.mp4"), f"{number}.mp4")
    with pytest.warns(BrokenVideoWarning, match=r"Cannot read memory://bucket/videos/7\.mp4: there is no such file"):
        module, data = fit(tmp_path, rows=8, root=ROOT)
    assert sum(len(labels) for _, labels in module.seen["train"]) == 8
    assert data.broken == {f"{ROOT}/7.mp4": "there is no such file"}


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_workers_read_urls(folder, tmp_path):
    for number in range(8):
        (tmp_path / f"{number}.mp4").write_bytes(written(folder, "gop_12.mp4").read_bytes())
    with warnings.catch_warnings():
        warnings.simplefilter("error", BrokenVideoWarning)
        modules = [fit(tmp_path, rows=8, root=root, num_workers=2)[0] for root in (f"file://{tmp_path}", tmp_path)]
    remote, local = (np.concatenate([clips.numpy() for clips, _ in module.seen["val"]]) for module in modules)
    assert np.array_equal(remote, local)


def test_a_builder_keeps_what_it_is_given(tmp_path):
    builder = ManifestBuilder("list.csv", ROOT)
    builder.add("übung 1.mp4", [0], where="line 1")
    assert builder.build().path(0) == f"{ROOT}/übung 1.mp4"


def test_a_store_is_asked_for_many_sizes_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, 240,000 videos on S3 at 30 ms take two hours."""
    look_up = urls._look_up
    at_once = threading.Barrier(16)
    monkeypatch.setattr(urls, "_look_up", lambda url: (at_once.wait(timeout=10), look_up(url))[1])
    MemoryFileSystem().pipe({f"/bucket/{number}": b"x" * number for number in range(15)})
    stored = [f"memory://bucket/{number}" for number in range(16)]
    found = sizes_and_changes([*stored, __file__, __file__ + "x"])
    assert [found[path][0] for path in stored[:15]] == list(range(15))
    assert found[__file__] == size_and_change(__file__)
    assert all(isinstance(found[path], FileNotFoundError) for path in (stored[15], __file__ + "x"))
