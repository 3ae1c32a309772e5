"""Videos at URLs are what they are on a disk, to the bit, at a request or two for a clip, whatever the server does."""

import multiprocessing
import os
import random
import warnings
from dataclasses import replace
from itertools import cycle, islice
from urllib.parse import unquote

import fsspec.asyn
import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader

from lightning_multigrid.clips import ClipSampling, VideoDataset
from lightning_multigrid.decode import TableStore, VideoError, VideoReader, make_table, open_video, read_frames
from lightning_multigrid.files import remote_file
from lightning_multigrid.prepare import Planes, check, index, prepare
from lightning_multigrid.sources import ManifestError, VideoList
from lightning_multigrid.video import VideoDataModule
from lightning_multigrid.video.broken_videos import SlowVideoWarning
from tests.helpers.preparing import FAST
from tests.helpers.recorder import TINY, Recorder, quiet_trainer
from tests.helpers.video_server import serving
from tests.helpers.videos import numbered_frames, write_video

ROWS = "a.mp4,0\nb #1.mkv,1\nc.webm,2\nd.mp4,0\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Serves four videos in three containers, their list, and the same videos prepared."""
    folder = tmp_path_factory.mktemp("remote")
    (served := folder / "served").mkdir()
    for place, row in enumerate(ROWS.splitlines()):
        name = row.partition(",")[0]
        codec = {"codec": "libvpx-vp9"} if name.endswith("webm") else {"options": {"g": "6", "bf": "2"}}
        write_video(served / name, numbered_frames(40, first=40 * place), **codec)
    write_video(served / "stream.ts", numbered_frames(20))
    (served / "list.csv").write_text(ROWS)
    prepare(VideoList(served / "list.csv").read(), served / "prepared", FAST)
    with serving(served, folder / "told") as server:
        yield server


@pytest.fixture(autouse=True)
def _fresh(server, monkeypatch):
    """No server fails, and this process knows nothing of it."""
    server.fail()
    server.forget()
    monkeypatch.setattr(remote_file, "_WAITS", (0.0, 0.0, 0.0))
    monkeypatch.setattr(remote_file, "_processes", [])


@pytest.mark.parametrize("name", ["a.mp4", "b #1.mkv", "c.webm"])
def test_frames_are_those_of_the_file_at_three_requests_at_most(server, name):
    path, random_ = server.folder / name, random.Random(name)
    table = make_table(path)
    url = f"{server.url}/{name.replace('#', '%23').replace(' ', '%20')}"
    for _ in range(8):
        frames = [random_.randrange(40) for _ in range(random_.randint(1, 8))]
        server.forget()
        with VideoReader(url, table) as remote, VideoReader(path, table) as local:
            assert torch.equal(remote.read(frames), local.read(frames))
            assert (remote.slow_because, remote.fallbacks) == ("", 0)
        assert 1 <= len(server.ranges) <= 3


def test_a_prepared_video_holds_its_own_table(server):
    with VideoReader(f"{server.url}/prepared/videos/a.mp4") as remote:
        assert remote.slow_because == ""
        assert torch.equal(remote.read([3, 30]), read_frames(server.folder / "prepared/videos/a.mp4", [3, 30]))
    assert len(server.ranges) == 2


def test_planes_are_those_of_the_file_at_three_requests_at_most(server):
    made = prepare(VideoList(server.folder / "list.csv").read(), server.folder / "planes", Planes(32)).folder
    name = os.path.relpath(VideoList(made).read().path(0), server.folder)
    with open_video(f"{server.url}/{name}") as remote, open_video(server.folder / name) as local:
        for indices in (range(0, 40, 4), [39, 0, 20]):
            server.forget()
            clips = [video.read_yuv(indices, (3, 5, 20, 24)) for video in (remote, local)]
            assert torch.equal(clips[0].data, clips[1].data)
            assert 1 <= len(server.ranges) <= 3
        assert torch.equal(remote.read([7]), local.read([7]))


def test_whatever_the_server_does_frames_are_right_or_an_error_names_the_file(server):
    path, url = server.folder / "a.mp4", f"{server.url}/a.mp4"
    table, faults = make_table(path), ["503", "cut", "ok", "short", "429", "ok", "late"]
    right = read_frames(path, [5, 25])
    server.fail(*islice(cycle(faults), 60))
    read = 0
    for _ in range(12):
        try:
            with VideoReader(url, table) as video:
                assert torch.equal(video.read([5, 25]), right)
            read += 1
        except VideoError as error:
            assert str(error).startswith(f"{url}: cannot be read (")  # noqa: PT017
    assert read > 6


@pytest.mark.parametrize(("name", "why"), [("a.mp4", "has no frame table"), ("stream.ts", "is copied from its URL")])
def test_what_can_not_be_read_by_ranges_is_copied_and_said(server, name, why):
    table = make_table(server.folder / name) if name == "stream.ts" else None
    with VideoReader(f"{server.url}/{name}", table) as video:
        assert video.slow_because.startswith(why)
        assert torch.equal(video.read([15, 2]), read_frames(server.folder / name, [15, 2]))
        assert torch.equal(video.read([7]), read_frames(server.folder / name, [7]))
    copies = [line for line in server.ranges if line.split()[1].startswith("bytes=0-")]
    assert len(copies) <= 2  # of the end of a small file, where its own table would be, and of the whole


def test_a_video_that_has_changed_is_never_read_by_its_old_table(server, tmp_path):
    path, url = server.folder / "changing.mp4", f"{server.url}/changing.mp4"
    write_video(path, numbered_frames(20))
    store = TableStore(tmp_path, server.url)
    assert index([(server.url, [url])], tmp_path).made == 1
    assert store.known([url]).missing == []
    table = make_table(path)
    with VideoReader(url, table) as video:
        video.read([3])
    write_video(path, numbered_frames(20, first=9), options={"crf": "30"})
    with VideoReader(url, table) as video, pytest.raises(VideoError, match=r"has changed|changed: frame 3 of 20"):
        video.read([3])
    with VideoReader(url, table) as video:
        assert video.slow_because == "has changed since its frame table was made"
        assert torch.equal(video.read([3]), read_frames(path, [3]))
    assert store.known([url]).missing == [url]


def test_a_list_and_a_prepared_folder_at_urls_are_those_of_the_disk(server, tmp_path):
    (tmp_path / "list.csv").write_text(ROWS)
    rows = [f"{server.url}/{name}" for name in ("a.mp4", "b%20%231.mkv", "c.webm", "d.mp4")]
    (tmp_path / "urls.csv").write_text("".join(f"{url},{label}\n" for label, url in enumerate(rows)))
    at_url = VideoList(f"{server.url}/list.csv").read()
    below = VideoList(tmp_path / "list.csv", server.url).read()
    assert at_url.paths() == below.paths() == VideoList(tmp_path / "urls.csv", server.url).read().paths() == rows
    assert [at_url.label(row) for row in range(4)] == [0, 1, 2, 0]
    with pytest.raises(ManifestError, match=r"urls.csv, line 1: the URL '.*' leads out of the root"):
        VideoList(tmp_path / "urls.csv").read()
    local = VideoList(server.folder / "prepared").read()
    for source in (f"{server.url}/prepared", f"{server.url}/prepared/metadata.csv"):
        prepared = VideoList(source).read()
        assert prepared.prepared
        names = [unquote(url).removeprefix(server.url) for url in prepared.paths()]
        assert names == [path.removeprefix(str(server.folder)) for path in local.paths()]
    with pytest.raises(ManifestError, match=r"none/metadata.csv can't be read: the server answers 404"):
        VideoList(f"{server.url}/none").read()
    with pytest.raises(ManifestError, match="gs://bucket/list.csv is at gs://; https://, http://, s3://"):
        VideoList("gs://bucket/list.csv").read()


def test_the_commands_make_of_urls_what_they_make_of_files(server, tmp_path):
    (tmp_path / "list.csv").write_text(ROWS + "none.mp4,1\n")
    remote, tables = VideoList(tmp_path / "list.csv", server.url).read(), tmp_path / "tables"
    none = {f"{server.url}/none.mp4": "cannot be read (the server answers 404 (Not Found))"}
    assert check(remote, tables) == none
    local = VideoList(server.folder / "list.csv").read()
    known = TableStore(tables, local.root).known(local.paths())
    assert known.missing == [local.path(1)]  # tables are known by names below the root, and a URL escapes them
    prepare(remote, tmp_path / "prepared", FAST)
    again = prepare(remote, tmp_path / "prepared", FAST)
    assert (again.made, again.there, again.broken.keys()) == (0, 4, none.keys())
    for name in ("a.mp4", "c.webm.mp4"):
        made, expected = (folder / "prepared/videos" / name for folder in (tmp_path, server.folder))
        with VideoReader(made) as ours, VideoReader(expected) as theirs:
            assert (ours.table.checksums == theirs.table.checksums).all()


def batches(source, tables, root=None, **arguments):
    """The mini-batches of a training on videos."""
    L.seed_everything(0, verbose=False)
    module = Recorder()
    data = VideoDataModule(VideoList(source, root), index=str(tables), **arguments, **{**TINY, "batch_size": 2})
    quiet_trainer(max_epochs=3).fit(module, data)
    return module.seen["train"]


def trainings(server, tables, source):
    """Trains on URLs and on the disk, and says where they differ; run by a process of its own."""
    warnings.filterwarnings("ignore", "You defined a `validation_step`")
    remote = batches(f"{server.url}/{source}", tables, num_workers=2)
    assert fsspec.asyn.iothread[0] is None  # its thread
    assert remote_file._processes == []
    local = batches(server.folder / source, tables, num_workers=2)
    assert len(remote) == len(local) == 6
    for ours, theirs in zip(remote, local, strict=True):
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])


@pytest.mark.slow
@pytest.mark.parametrize("source", ["list.csv", "prepared"])
def test_a_training_is_that_on_a_disk_and_opens_nothing_before_its_workers(server, tmp_path, source):
    process = multiprocessing.get_context("spawn").Process(target=trainings, args=(server, tmp_path / "tables", source))
    process.start()
    process.join()
    assert process.exitcode == 0


def test_a_clip_of_a_training_takes_a_request(server, tmp_path, monkeypatch):
    """A worker asks each server once what a file is."""
    manifest = VideoList(f"{server.url}/list.csv").read()
    assert index([(manifest.root, manifest.paths())], tmp_path).made == 4
    monkeypatch.setattr(remote_file, "_processes", [])
    dataset = VideoDataset(replace(manifest, tables=str(tmp_path)), ClipSampling(4, 16, 2))
    server.forget()
    for _ in range(3):
        assert not any(clip.broken for clip in dataset.__getitems__(range(4)))
    asked = [line.split()[0] for line in server.asked]
    assert (asked.count("HEAD"), asked.count("GET")) == (4, 12)


@pytest.mark.slow
def test_spawned_workers_read_urls(server, tmp_path):
    manifest = VideoList(f"{server.url}/prepared").read()
    dataset = VideoDataset(manifest, ClipSampling(4, 16, 2))
    loader = DataLoader(dataset, 2, num_workers=2, collate_fn=list, multiprocessing_context="spawn")
    clips = [clip for batch in loader for clip in batch]
    assert [clip.index for clip in clips] == [0, 1, 2, 3]
    assert not any(clip.broken for clip in clips)


def test_a_training_without_tables_says_that_it_is_slow(server, tmp_path, monkeypatch):
    monkeypatch.setattr("lightning_multigrid.video.frame_tables.index_in_subprocess", lambda *_: "")
    with pytest.warns(SlowVideoWarning, match=rf"{server.url}/.* has no frame table, so clips are read from its begin"):
        batches(server.folder / "list.csv", tmp_path / "tables", server.url)
