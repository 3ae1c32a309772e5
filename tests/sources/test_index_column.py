"""The packet indices in a manifest: what is put in comes out by row, old files are read, and damage is named."""

import multiprocessing
import os
import pickle
import random
import signal
import threading
import time
from functools import partial

import pytest

from lightning_multigrid.clips.opening import prepared_index
from lightning_multigrid.decode.packet_index import PacketIndex
from lightning_multigrid.files.durable import remove_partial
from lightning_multigrid.sources.builder import ManifestBuilder
from lightning_multigrid.sources.packed_file import load_manifest, save_manifest
from lightning_multigrid.sources.text import ManifestError
from lightning_multigrid.sources.video_list import read_manifest
from tests.helpers.drives import nothing_is_in_memory
from tests.helpers.folders_0_2_0 import index_file, manifest_file
from tests.helpers.indices import INDEX, KEY, make_index
from tests.helpers.mutations import fuzzed, mutate
from tests.helpers.sampling import sampled

OTHER = make_index([KEY] * 3, [5, 6, 7])
NAMES = ["a/first.mp4", "übung-视频.mp4", "without.mp4", os.fsdecode(b"not-utf-8-\xff.mp4"), "übung-视频.mp4"]
INDICES = [INDEX, OTHER, None, INDEX, OTHER]  # of the rows; one video is in two


def as_bytes(indices):
    return [b"" if index is None else index.to_bytes() for index in indices]


def manifest(folder, names=NAMES):
    builder = ManifestBuilder(folder / "list.csv", folder / "videos", classes=["run"])
    for name in names:
        builder.add(name, [0], where="")
    return builder.build()


@pytest.fixture
def path(tmp_path):
    save_manifest(manifest(tmp_path), tmp_path / "manifest.packed", as_bytes(INDICES[:4]))
    return tmp_path / "manifest.packed"


@pytest.fixture
def older(tmp_path):
    """The same folder of version 0.2.0. Its index has another order, and one video more."""
    pairs = zip(map(os.fsencode, NAMES), as_bytes(INDICES), strict=True)
    entries = [(name, index) for name, index in pairs if index] + [(b"more.mp4", OTHER.to_bytes())]
    (tmp_path / "manifest.packed").write_bytes(manifest_file(manifest(tmp_path), tmp_path))
    (tmp_path / "packets.index").write_bytes(index_file(entries[::-1]))
    return tmp_path / "manifest.packed"


def found(manifest):
    return [prepared_index(manifest, row) for row in range(len(manifest))]


def test_what_is_written_is_found_by_row(path):
    assert found(load_manifest(path)) == INDICES
    assert path.read_bytes().count(OTHER.to_bytes()) == 1


def test_an_older_folder_is_read(older):
    assert found(load_manifest(older)) == INDICES


@pytest.mark.parametrize("which", ["path", "older"])
def test_rows_that_are_left_out_take_their_indices_with_them(which, request, tmp_path):
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / NAMES[1]).touch()
    (tmp_path / "videos" / NAMES[3]).touch()
    source = request.getfixturevalue(which)
    assert found(read_manifest(source, existing_only=True)) == [OTHER, INDEX, OTHER]


def test_a_manifest_without_indices(tmp_path):
    save_manifest(manifest(tmp_path), tmp_path / "m")
    assert found(load_manifest(tmp_path / "m")) == [None] * len(NAMES)


@pytest.mark.parametrize("method", sampled(["fork", "spawn"], "fork"))
def test_workers_read_it(path, method, monkeypatch):
    monkeypatch.chdir(path.parent)
    loaded = load_manifest(path.name)  # a relative path means the same in a worker
    assert found(loaded) == INDICES
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply(found, (loaded,)) == INDICES
    assert len(pickle.dumps(loaded.index)) < 1000


def test_opening_reads_no_index(tmp_path):
    names = [f"{number:06}.mp4" for number in range(20_000)]
    save_manifest(manifest(tmp_path, names), tmp_path / "m", as_bytes([INDEX, OTHER] * 10_000))
    began = time.process_time()
    loaded = load_manifest(tmp_path / "m")
    spent = time.process_time() - began
    assert all(prepared_index(loaded, row) == (INDEX, OTHER)[row % 2] for row in range(0, 20_000, 997))
    assert spent < 0.5  # reading all of it takes longer


def test_a_new_file_replaces_the_old_one_whole_or_not_at_all(path):
    def interrupted():
        yield OTHER.to_bytes()
        raise KeyboardInterrupt

    before = load_manifest(path)
    with pytest.raises(KeyboardInterrupt):
        save_manifest(manifest(path.parent), path, interrupted())
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert found(load_manifest(path)) == INDICES
    save_manifest(manifest(path.parent, ["b.mp4", "a.mp4"]), path, as_bytes([OTHER, INDEX]))
    assert found(load_manifest(path)) == [OTHER, INDEX]
    assert found(before) == INDICES  # who has the old one open keeps it


def test_a_killed_writer_leaves_the_old_file(path):
    def killed():
        yield OTHER.to_bytes()
        os.kill(os.getpid(), signal.SIGKILL)

    save = partial(save_manifest, manifest(path.parent), path, killed())
    writer = multiprocessing.get_context("fork").Process(target=save)
    writer.start()
    writer.join()
    assert writer.exitcode == -signal.SIGKILL
    assert found(load_manifest(path)) == INDICES
    assert len(list(path.parent.iterdir())) == 2
    remove_partial(str(path.parent))  # as the next `prepare` does
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_spawned_worker_that_comes_after_a_new_file_does_not_misread_it(path):
    pickled = pickle.dumps(load_manifest(path))
    save_manifest(manifest(path.parent, ["x", *NAMES]), path, as_bytes([OTHER, *INDICES[:4]]))
    later = pickle.loads(pickled)
    with pytest.warns(UserWarning, match=r"Packet indices of .*manifest.packed are damaged, or were written anew"):
        assert found(later) == [None] * len(NAMES)
    path.unlink()
    with pytest.warns(UserWarning, match="No such file or directory.* Videos are indexed as they are read"):
        assert found(pickle.loads(pickled)) == [None, None, None, None, None]


def test_one_damaged_index_is_named_and_the_others_count(path):
    data = bytearray(path.read_bytes())
    data[data.index(b"\1sets")] ^= 1
    path.write_bytes(data)
    with pytest.warns(UserWarning, match="are no packet index: their checksum is wrong"):
        assert found(load_manifest(path)) == [None, *INDICES[1:]]


def test_a_drive_that_is_gone_is_waited_for_in_time_and_asked_again(path, monkeypatch):
    loaded = load_manifest(path)
    loaded.index.timeout = 0.2
    later = pickle.loads(pickle.dumps(loaded))
    released, read = threading.Event(), os.pread
    with monkeypatch.context() as patch:
        nothing_is_in_memory(patch)
        patch.setattr(os, "pread", lambda *args: (released.wait(), read(*args))[1])
        with pytest.warns(UserWarning, match=r"manifest.packed .*: a read did not end within 0\.2 s"):
            assert prepared_index(later, 0) is None
        released.set()
    assert found(later) == INDICES


def test_a_file_that_is_cut_while_it_is_open_is_named(path):
    """A file that is mapped into memory would end the process here."""
    names = [f"{number}.mp4" for number in range(300)]
    save_manifest(manifest(path.parent, names), path, as_bytes([INDEX] * 300))
    loaded = load_manifest(path)
    os.truncate(path, 100)
    with pytest.warns(
        UserWarning, match=r"manifest.packed is shorter than it was\. Videos are indexed as they are read"
    ):
        assert found(loaded) == [None] * 300


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data[:-500], lambda data: data + b"\0"])
def test_a_file_of_another_length_is_refused(path, change):
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ManifestError, match="it is cut short or too long, .* Run `lightning-multigrid prepare` again"):
        load_manifest(path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"path,label\n" * 9,
        lambda data: data[: len(data) // 2],
        lambda data: b"LMGSTO\1\n" + data[8:],
    ],
)
def test_a_damaged_index_of_an_older_folder_is_named_and_not_used(older, damage):
    file = older.with_name("packets.index")
    file.write_bytes(damage(file.read_bytes()))
    with pytest.warns(UserWarning, match=r"packets.index is no index of videos, .* indexed as they are read"):
        assert load_manifest(older).index is None


def test_an_older_folder_without_its_index_or_with_a_pipe_for_it(older):
    file = older.with_name("packets.index")
    file.unlink()
    assert found(load_manifest(older)) == [None] * len(NAMES)
    os.mkfifo(file)  # not waited for
    assert found(load_manifest(older)) == [None] * len(NAMES)


def try_mutated(loaded_from, mutated_file, content, seed):
    """An error that names the file, or for each row the right index, or none."""
    draw = random.Random(seed)
    content = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        content[draw.randrange(len(content))] = draw.randrange(256)
    mutated_file.write_bytes(content if draw.random() < 0.7 else mutate(bytes(content), draw))
    try:
        loaded = load_manifest(loaded_from)
    except ManifestError as error:
        assert "is no packed manifest, or damaged" in str(error)  # noqa: PT017
        return
    for row, index in enumerate(INDICES):
        try:
            data = loaded.index[row] if loaded.index else b""
            answer = PacketIndex.from_bytes(data) if data else None
        except ValueError:
            continue
        assert answer in (None, index)


@pytest.mark.filterwarnings("ignore:.* is no index of videos:UserWarning")
@pytest.mark.parametrize(("which", "name"), [("path", "manifest.packed"), ("older", "packets.index")])
@fuzzed(some=75)
def test_mutated_indices_are_an_error_or_an_answer(which, name, request, tmp_path, numbers):
    source = request.getfixturevalue(which)
    content = (tmp_path / name).read_bytes()
    for seed in numbers:
        try_mutated(source, tmp_path / name, content, seed)
