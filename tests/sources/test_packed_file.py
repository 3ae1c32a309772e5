"""A packed manifest is what was saved, or an error; never anything else."""

import json
import os
import random
import shutil
import struct
import time
import zlib

import pytest
from hypothesis import given

from lightning_multigrid.prepare import prepare
from lightning_multigrid.sources import builder as packed
from lightning_multigrid.sources.builder import ManifestBuilder
from lightning_multigrid.sources.packed_file import load_manifest, save_manifest
from lightning_multigrid.sources.text import ManifestError
from lightning_multigrid.sources.video_list import read_manifest
from lightning_multigrid.video.datamodule import VideoDataModule
from tests.helpers.mutations import check_rows, mutate, seeds
from tests.helpers.videos import numbered_frames, write_video

PATHS = [
    "a.mp4",
    "run/b c.mp4",
    "run/line\nbreak.mp4",
    "-dash.mp4",
    "run/été 漢.mp4",
    "\udcff.mp4",
    "...mp4",
    "a/..b.mp4",
]


def manifest(folder, *, multi_label=False, spans=False, classes=("run", "swim")):
    builder = ManifestBuilder(folder / "list.csv", folder / "videos", classes=classes, multi_label=multi_label)
    for row, path in enumerate(PATHS):
        labels = [row % 2, 1, 0][: row % 4] if multi_label else [row % 2]
        builder.add(path, labels, where="", spans=[(row, row + 0.5)] * len(labels) if spans else [])
    return builder.build()


def rows(manifest):
    return [
        (os.path.relpath(manifest.path(row), manifest.root), manifest.labels(row), manifest.labels_between(row, 0, 3.2))
        for row in range(len(manifest))
    ]


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("spans", [False, True])
@pytest.mark.parametrize("classes", [(), ("run", "swim")])
def test_what_is_saved_is_loaded(tmp_path, multi_label, spans, classes):
    saved = manifest(tmp_path, multi_label=multi_label, spans=spans, classes=classes)
    save_manifest(saved, tmp_path / "manifest.packed")
    for source in (tmp_path / "manifest.packed", tmp_path):
        loaded = read_manifest(source)
        assert rows(loaded) == rows(saved)
        assert (loaded.root, loaded.classes, loaded.multi_label) == (saved.root, classes, multi_label)


def test_the_folder_may_move(tmp_path):
    (tmp_path / "one").mkdir()
    save_manifest(manifest(tmp_path / "one"), tmp_path / "one" / "manifest.packed")
    shutil.move(tmp_path / "one", tmp_path / "other")
    assert load_manifest(tmp_path / "other" / "manifest.packed").path(0) == str(tmp_path / "other" / "videos" / "a.mp4")


def test_a_video_without_a_label(tmp_path):
    builder = ManifestBuilder(tmp_path / "list.csv", tmp_path)
    builder.add("a.mp4", where="")
    save_manifest(builder.build(), tmp_path / "m")
    assert not load_manifest(tmp_path / "m").labelled


def test_classes_of_the_training_split_are_taken_if_there_are_none(tmp_path):
    save_manifest(manifest(tmp_path, classes=()), tmp_path / "m")
    assert read_manifest(tmp_path / "m", classes=("x", "y")).classes == ("x", "y")
    with pytest.raises(ManifestError, match="label 1 is not from 0 to 0"):
        read_manifest(tmp_path / "m", classes=("x",))


def test_what_is_not_on_disk_is_left_out(tmp_path):
    save_manifest(manifest(tmp_path), tmp_path / "m")
    (tmp_path / "videos" / "run").mkdir(parents=True)
    (tmp_path / "videos" / "run" / "b c.mp4").touch()
    found = read_manifest(tmp_path / "m", existing_only=True)
    assert [row[0] for row in rows(found)] == ["run/b c.mp4"]
    assert found.missing == len(PATHS) - 1


def test_the_data_module_takes_it_whatever_its_root(tmp_path):
    save_manifest(manifest(tmp_path), tmp_path / "m")
    data = VideoDataModule(train=str(tmp_path / "m"), val=str(tmp_path / "m"), root="elsewhere")
    data.setup("fit")
    assert data.num_classes == 2
    assert rows(data.manifests()["val"]) == rows(manifest(tmp_path))


def test_a_root_beside_it_is_refused(tmp_path):
    save_manifest(manifest(tmp_path), tmp_path / "m")
    with pytest.raises(ManifestError, match="`root` is 'x', but the videos of .* lie beside it"):
        read_manifest(tmp_path / "m", "x")


def test_videos_elsewhere_are_not_saved(tmp_path):
    with pytest.raises(ValueError, match="The videos of a packed manifest must be files in its folder"):
        save_manifest(manifest(tmp_path), tmp_path / "other" / "m")


def edited(content, **changes):
    """A packed manifest with other values in its header, and its check sum set right."""
    (length,) = struct.unpack_from("<Q", content, 8)
    header = {**json.loads(content[16 : 16 + length]), **changes}
    text = json.dumps(header).encode()
    start = 16 + length + -length % 8
    return sealed(content[:8] + struct.pack("<Q", len(text)) + text + bytes(-len(text) % 8) + content[start:])


def sealed(content):
    return content[:-4] + struct.pack("<I", zlib.crc32(content[:-4]))


@pytest.fixture
def content(tmp_path):
    save_manifest(manifest(tmp_path), tmp_path / "m")
    return (tmp_path / "m").read_bytes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"root": ".."}, "`root` leads out of its folder"),
        ({"root": "/etc"}, "`root` leads out of its folder"),
        ({"root": "a/../../b"}, "`root` leads out of its folder"),
        ({"root": None}, "`root` of its header is not of the type str"),
        ({"root": "\ud800"}, "`root` leads out of its folder"),
        ({"root": ""}, "`root` leads out of its folder"),
        ({"root": "a\0b"}, "`root` leads out of its folder"),
        ({"rows": -1}, "the numbers of its header are too small"),
        ({"rows": True}, "`rows` of its header is not of the type int"),
        ({"rows": 0}, "the numbers of its header are too small"),
        ({"rows": 2**39}, "it is cut short"),
        ({"labels": 3}, "its check sum is wrong"),
        ({"path_bytes": 2**80}, "it is cut short"),
        ({"path_bytes": -1}, "the numbers of its header are too small"),
        ({"spans": 1}, "`spans` of its header is not of the type bool"),
        ({"classes": "run"}, "`classes` of its header is not of the type list"),
        ({"classes": ["run", 1]}, "`classes` are not names that differ"),
        ({"classes": ["run"]}, "a label belongs to no class"),
        ({"classes": ["run", "run"]}, "`classes` are not names that differ"),
    ],
)
def test_headers_that_lie(tmp_path, content, changes, message):
    (tmp_path / "m").write_bytes(edited(content, **changes))
    with pytest.raises(ManifestError, match=message):
        load_manifest(tmp_path / "m")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"run/b c.mp4", b"../../c.mp4", "a path leads out of its folder"),
        (b"run/b c.mp4", b"run/../.mp4", "a path leads out of its folder"),
        (b"run/b c.mp4", b"run/./c.mp4", "a path leads out of its folder"),
        (b"run/b c.mp4", b"/etc/passwd", "a path is absolute, empty, or not in its normal form"),
        (b"run/b c.mp4", b"run//b c.mp", "a path is absolute, empty, or not in its normal form"),
        (b"run/b c.mp4", b"run/b c.mp/", "a path is absolute, empty, or not in its normal form"),
        (b"run/b c.mp4", b"run\0b c.mp4", "a path is absolute, empty, or not in its normal form"),
    ],
)
def test_paths_that_lead_elsewhere(tmp_path, content, old, new, message):
    assert len(old) == len(new)
    (tmp_path / "m").write_bytes(sealed(content.replace(old, new)))
    with pytest.raises(ManifestError, match=message):
        load_manifest(tmp_path / "m")


def test_a_path_that_no_file_system_takes(tmp_path, monkeypatch):
    monkeypatch.setattr(packed, "_LONGEST_PATH", 5000)  # as a file that another program wrote
    for length in (4096, 4097):
        builder = ManifestBuilder(tmp_path / "list.csv", tmp_path)
        builder.add("x" * length, [0], where="")
        save_manifest(builder.build(), tmp_path / f"{length}")
    assert len(load_manifest(tmp_path / "4096")) == 1
    with pytest.raises(ManifestError, match="a path is longer than 4,096 bytes"):
        load_manifest(tmp_path / "4097")


def test_a_span_of_no_time(tmp_path):
    save_manifest(manifest(tmp_path, spans=True), tmp_path / "m")
    half, none = struct.pack("<d", 3.5), struct.pack("<d", float("nan"))
    content = (tmp_path / "m").read_bytes()
    assert content.count(half) == 1
    (tmp_path / "m").write_bytes(sealed(content.replace(half, none)))
    with pytest.raises(ManifestError, match="the start or the end of a label is not a number"):
        load_manifest(tmp_path / "m")


def test_a_video_of_two_classes_where_each_has_one(tmp_path):
    save_manifest(manifest(tmp_path, multi_label=True), tmp_path / "m")
    (tmp_path / "m").write_bytes(edited((tmp_path / "m").read_bytes(), multi_label=False))
    with pytest.raises(ManifestError, match="a video has not exactly one label"):
        load_manifest(tmp_path / "m")


@pytest.mark.parametrize("value", [-1, 10**6, 2**62, -(2**63)])
def test_bounds_that_lie(tmp_path, content, value):
    (length,) = struct.unpack_from("<Q", content, 8)
    start = 16 + length + -length % 8
    for place in range(2 * (len(PATHS) + 1)):
        at = start + 8 * place
        (tmp_path / "m").write_bytes(sealed(content[:at] + struct.pack("<q", value) + content[at + 8 :]))
        with pytest.raises(ManifestError, match="the bounds of its (paths|labels) are not in order"):
            load_manifest(tmp_path / "m")


def test_one_flipped_bit_is_found(tmp_path, content):
    rng = random.Random(0)
    for _ in range(200):
        damaged = bytearray(content)
        damaged[rng.randrange(8, len(content))] ^= 1 << rng.randrange(8)
        (tmp_path / "m").write_bytes(damaged)
        with pytest.raises(
            ManifestError, match="is no packed manifest, or damaged: .* Run `lightning-multigrid prepare`"
        ):
            load_manifest(tmp_path / "m")


def test_prepare_writes_a_damaged_one_anew_and_keeps_the_videos(tmp_path):
    write_video(tmp_path / "a.mp4", numbered_frames(3))
    (tmp_path / "list.csv").write_text("a.mp4 0\n")
    source, damaged = read_manifest(tmp_path / "list.csv"), tmp_path / "out" / "manifest.packed"
    prepare(source, tmp_path / "out")
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-1])
    with pytest.raises(
        ManifestError, match=r"Run `lightning-multigrid prepare` again, which keeps the finished videos\."
    ):
        read_manifest(tmp_path / "out")
    summary = prepare(source, tmp_path / "out")
    assert (summary.made, summary.kept) == (0, 1)
    assert damaged.read_bytes() == content


def try_mutated(folder, content, seed):
    """A mutated file is an error of ours, or a manifest whose rows are all in order."""
    rng = random.Random(seed)
    mutated = mutate(content, rng)
    # Half of them have a right check sum, as an attacker's would.
    path = folder / "mutated"
    path.write_bytes(sealed(mutated) if rng.random() < 0.5 and len(mutated) > 20 else mutated)
    start = time.monotonic()
    try:
        loaded = load_manifest(path)
    except ManifestError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        check_rows(loaded)
    assert time.monotonic() - start < 10


@pytest.fixture(scope="module")
def contents(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mutated")
    found = []
    for multi_label in (False, True):
        save_manifest(manifest(folder, multi_label=multi_label, spans=multi_label), folder / "m")
        found.append((folder / "m").read_bytes())
    return folder, found


@given(seed=seeds())
def test_mutated_files(contents, seed):
    folder, found = contents
    try_mutated(folder, found[seed % 2], seed)


@pytest.mark.slow  # 20,000 files
def test_many_mutated_files(contents):
    folder, found = contents
    for seed in range(20_000):
        try_mutated(folder, found[seed % 2], seed)
