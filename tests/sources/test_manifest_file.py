"""A manifest file is what was saved, or an error; never anything else."""

import json
import os
import random
import shutil
import time

import numpy as np
import pytest
from hypothesis import given
from safetensors.numpy import load, save

from lightning_multigrid.sources import builder as built
from lightning_multigrid.sources.builder import ManifestBuilder
from lightning_multigrid.sources.manifest_file import load_manifest, prepared_manifest, save_manifest
from lightning_multigrid.sources.text import ManifestError
from lightning_multigrid.sources.video_list import VideoList, read_manifest
from lightning_multigrid.video.datamodule import VideoDataModule
from tests.helpers.mutations import check_rows, mutate, seeds

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


def manifest(folder, *, multi_label=False, spans=False, stretches=False, classes=("run", "swim")):
    builder = ManifestBuilder(folder / "list.csv", folder / "videos", classes=classes, multi_label=multi_label)
    for row, path in enumerate(PATHS):
        labels = [row % 2, 1, 0][: row % 4] if multi_label else [row % 2]
        stretch = (row + 0.25, row + 1) if stretches and row else None
        builder.add(path, labels, where="", spans=[(row, row + 0.5)] * len(labels) if spans else [], stretch=stretch)
    return builder.build()


def rows(manifest):
    return [
        (
            os.path.relpath(manifest.path(row), manifest.root),
            manifest.labels(row),
            manifest.labels_between(row, 0, 3.2),
            manifest.stretch(row),
        )
        for row in range(len(manifest))
    ]


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("spans", [False, True])
@pytest.mark.parametrize("stretches", [False, True])
@pytest.mark.parametrize("classes", [(), ("run", "swim")])
def test_what_is_saved_is_loaded(tmp_path, multi_label, spans, stretches, classes):
    saved = manifest(tmp_path, multi_label=multi_label, spans=spans, stretches=stretches, classes=classes)
    save_manifest(saved, tmp_path / "manifest.safetensors")
    for source in (tmp_path / "manifest.safetensors", tmp_path):
        loaded = read_manifest(source)
        assert rows(loaded) == rows(saved)
        assert (loaded.root, loaded.classes, loaded.multi_label) == (saved.root, classes, multi_label)


def test_it_is_a_safetensors_file_and_the_same_each_time(tmp_path):
    tables = {str(tmp_path / "videos" / "a.mp4"): b"table", str(tmp_path / "elsewhere.mp4"): b"of no row"}
    for name in ("one", "other"):
        save_manifest(manifest(tmp_path, stretches=True), tmp_path / name, tables)
    content = (tmp_path / "one").read_bytes()
    assert content == (tmp_path / "other").read_bytes()
    arrays = load(content)
    assert arrays["labels"].tolist() == [row % 2 for row in range(len(PATHS))]
    assert arrays["stretches"].tolist() == [[0, np.inf], *([row + 0.25, row + 1] for row in range(1, len(PATHS)))]
    assert arrays["tables"].tobytes() == b"table"


def test_the_folder_may_move(tmp_path):
    (tmp_path / "one").mkdir()
    save_manifest(manifest(tmp_path / "one"), tmp_path / "one" / "manifest.safetensors")
    shutil.move(tmp_path / "one", tmp_path / "other")
    assert load_manifest(tmp_path / "other" / "manifest.safetensors").path(0) == str(
        tmp_path / "other" / "videos" / "a.mp4"
    )


def test_a_video_without_a_label(tmp_path):
    builder = ManifestBuilder(tmp_path / "list.csv", tmp_path)
    builder.add("a.mp4", where="")
    save_manifest(builder.build(), tmp_path / "m.safetensors")
    assert not load_manifest(tmp_path / "m.safetensors").labelled


def test_classes_of_the_training_split_are_taken_if_there_are_none(tmp_path):
    save_manifest(manifest(tmp_path, classes=()), tmp_path / "m.safetensors")
    assert read_manifest(tmp_path / "m.safetensors", classes=("x", "y")).classes == ("x", "y")
    with pytest.raises(ManifestError, match="label 1 is not from 0 to 0"):
        read_manifest(tmp_path / "m.safetensors", classes=("x",))


def test_what_is_not_on_disk_is_left_out(tmp_path):
    save_manifest(manifest(tmp_path), tmp_path / "m.safetensors")
    (tmp_path / "videos" / "run").mkdir(parents=True)
    (tmp_path / "videos" / "run" / "b c.mp4").touch()
    found = read_manifest(tmp_path / "m.safetensors", existing_only=True)
    assert [row[0] for row in rows(found)] == ["run/b c.mp4"]
    assert found.missing == len(PATHS) - 1


def test_the_data_module_takes_it_whatever_the_root_of_a_list(tmp_path):
    save_manifest(manifest(tmp_path), tmp_path / "m.safetensors")
    (tmp_path / "list.csv").write_text("a.mp4 1\n")
    data = VideoDataModule(train=str(tmp_path / "m.safetensors"), val=str(tmp_path / "list.csv"), root=tmp_path / "x")
    data.setup("fit")
    assert data.num_classes == 2
    assert rows(data.manifests()["train"]) == rows(manifest(tmp_path))
    assert data.manifests()["val"].path(0) == str(tmp_path / "x" / "a.mp4")


@pytest.mark.parametrize(
    ("name", "value"), [("root", "x"), ("classes", ("swim", "run")), ("multi_label", True), ("frame_rate", 5.0)]
)
def test_arguments_that_say_otherwise_than_what_is_prepared_are_refused(tmp_path, name, value):
    save_manifest(manifest(tmp_path), tmp_path / "m.safetensors")
    with pytest.raises(ManifestError, match=rf"`{name}` is .*, but what is prepared says that itself, and .*otherwise"):
        VideoList(tmp_path / "m.safetensors", **{name: value}).read()
    save_manifest(manifest(tmp_path, multi_label=True), tmp_path / "several.safetensors")
    same = VideoList(tmp_path / "several.safetensors", classes=("run", "swim"), multi_label=True)
    assert len(same.read()) == len(PATHS)


def test_videos_elsewhere_are_not_saved(tmp_path):
    with pytest.raises(ValueError, match="The videos of a manifest file must be files in its folder"):
        save_manifest(manifest(tmp_path), tmp_path / "other" / "m.safetensors")


def parts(content):
    """What a manifest file says about its arrays, and the arrays, the tables among them."""
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return json.loads(header["__metadata__"]["about"]), load(content)


def edited(content, about=(), **changes):
    """A manifest file with other values in its header, or other arrays; without those that are None."""
    said, arrays = parts(content)
    kept = {name: np.asarray(values) for name, values in {**arrays, **changes}.items() if values is not None}
    return save(kept, {"about": json.dumps({**said, **dict(about)})})


@pytest.fixture
def content(tmp_path):
    save_manifest(manifest(tmp_path), tmp_path / "m.safetensors")
    return (tmp_path / "m.safetensors").read_bytes()


def refuse(path, content, message):
    path.write_bytes(content)
    with pytest.raises(ManifestError, match=message):
        load_manifest(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"root": ".."}, "`root` leads out of its folder"),
        ({"root": "/etc"}, "`root` leads out of its folder"),
        ({"root": "a/../../b"}, "`root` leads out of its folder"),
        ({"root": None}, "its header lacks `version`, `root`, `classes` or `multi_label`, or has one of another type"),
        ({"root": "\ud800"}, "`root` leads out of its folder"),
        ({"root": ""}, "`root` leads out of its folder"),
        ({"root": "a\0b"}, "`root` leads out of its folder"),
        ({"classes": "run"}, "its header lacks"),
        ({"multi_label": 1}, "its header lacks"),
        ({"version": "3"}, "its header lacks"),
        ({"version": 4}, "it is of version 4, and version 3 is required"),
        ({"classes": ["run", 1]}, "`classes` are not names that differ"),
        ({"classes": ["run"]}, "a label belongs to no class"),
        ({"classes": ["run", "run"]}, "`classes` are not names that differ"),
    ],
)
def test_headers_that_lie(tmp_path, content, changes, message):
    refuse(tmp_path / "m", edited(content, changes), message)


FEW = [[0.0, 1.0]] * len(PATHS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": None}, "its arrays are label_offsets, path_offsets, .*, or of other types; paths, .* are required"),
        ({"more": np.zeros(1)}, "its arrays are label_offsets, .*more"),
        ({"labels": np.zeros(8, np.int64)}, "its arrays are .* or of other types"),
        ({"paths": np.zeros((2, 5), np.uint8)}, "its arrays are .* or of other types"),
        ({"tables": None}, "it has no tables of videos at its end"),
        ({"tables": np.zeros(3, np.int8)}, "it has no tables of videos at its end"),
        ({"zzz": np.zeros(3, np.uint8)}, "it has no tables of videos at its end"),
        ({"labels": np.full(8, -1, np.int32)}, "a label belongs to no class"),
        ({"labels": np.full(8, 2, np.int32)}, "a label belongs to no class"),
        ({"labels": np.zeros(9, np.int32)}, "the bounds of its labels are not in order"),
        ({"path_offsets": [0]}, "the bounds of its paths are not in order"),
        ({"path_offsets": np.zeros(0, np.int64)}, "the bounds of its paths are not in order"),
        ({"path_offsets": [0], "paths": np.zeros(0, np.uint8)}, "its paths and labels differ in number, or there are"),
        ({"label_offsets": [0, 8]}, "its paths and labels differ in number"),
        ({"spans": FEW[:3]}, "`spans` are not a start and an end for each label"),
        ({"spans": [[0.0, np.nan]] * len(PATHS)}, "the start or the end of a label is not a number"),
        ({"stretches": FEW[:3]}, "`stretches` are not a start and an end for each video's stretch"),
        ({"stretches": np.zeros((0, 3))}, "`stretches` are not a start and an end"),
        ({"stretches": [*FEW[1:], [np.nan, 1]]}, "the start or the end of a video's stretch is not a number"),
        ({"stretches": [*FEW[1:], [2, 2]]}, "a video's stretch begins before 0, or ends where it begins"),
        ({"stretches": [*FEW[1:], [-1, 2]]}, "a video's stretch begins before 0, or ends where it begins"),
        ({"table_places": [[0, 0]]}, "its tables and videos differ in number"),
        ({"table_places": [[0, 0]] * 7 + [[0, 1]]}, "the bounds of its tables are not in order"),
        ({"table_places": [[0, 0]] * 7 + [[1, 0]]}, "the bounds of its tables are not in order"),
        ({"table_places": [[0, 0]] * 7 + [[-1, 0]]}, "the bounds of its tables are not in order"),
        ({"table_places": [[0, 0]] * 7 + [[2**63 - 1, 2**63 - 1]]}, "the bounds of its tables are not in order"),
    ],
)
def test_arrays_that_lie(tmp_path, content, changes, message):
    assert edited(content) == content
    refuse(tmp_path / "m", edited(content, **changes), message)


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
    refuse(tmp_path / "m", content.replace(old, new), message)


def test_a_path_that_no_file_system_takes(tmp_path, monkeypatch):
    monkeypatch.setattr(built, "_LONGEST_PATH", 5000)  # as a file that another program wrote
    for length in (4096, 4097):
        builder = ManifestBuilder(tmp_path / "list.csv", tmp_path)
        builder.add("x" * length, [0], where="")
        save_manifest(builder.build(), tmp_path / f"{length}")
    assert len(load_manifest(tmp_path / "4096")) == 1
    with pytest.raises(ManifestError, match="a path is longer than 4,096 bytes"):
        load_manifest(tmp_path / "4097")


def test_a_video_of_two_classes_where_each_has_one(tmp_path):
    save_manifest(manifest(tmp_path, multi_label=True), tmp_path / "m")
    content = edited((tmp_path / "m").read_bytes(), {"multi_label": False})
    refuse(tmp_path / "m", content, "a video has not exactly one label")


@pytest.mark.parametrize("value", [-1, 10**6, 2**62, -(2**63)])
def test_bounds_that_lie(tmp_path, content, value):
    _, arrays = parts(content)
    for name, what in (("path_offsets", "paths"), ("label_offsets", "labels")):
        for place in range(len(PATHS) + 1):
            offsets = arrays[name].copy()
            offsets[place] = value
            refuse(tmp_path / "m", edited(content, **{name: offsets}), f"the bounds of its {what} are not in order")


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:7],
        lambda content: content[:50],
        lambda content: content[: len(content) // 2],
        lambda content: content[:-1],
        lambda content: content + b"\0",
        lambda content: bytes(len(content)),
        lambda content: (2**63).to_bytes(8, "little") + content[8:],
        lambda content: (100_000).to_bytes(8, "little") + b"[" * 100_000,
        lambda content: (4).to_bytes(8, "little") + b"null",
        lambda content: save({"a": np.zeros(3)}),
        lambda content: content.replace(b'"I32"', b'"F32"'),
        lambda content: content.replace(b'"U8"', b'"F4"'),
        lambda content: content.replace(b'"F64"', b'"XYZ"'),
        lambda content: content.replace(b"data_offsets", b"data_0ffsets", 1),
        lambda content: b"a.mp4 0\n" * 99,
    ],
)
def test_what_is_no_manifest_file_is_refused(tmp_path, content, damage):
    message = "m is no manifest of prepared videos, or damaged: .* Run `lightning-multigrid prepare` again"
    refuse(tmp_path / "m", damage(content), message)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(
        ManifestError, match=r"m\.safetensors can't be read: No such file .* Check the path and its perm"
    ):
        read_manifest(tmp_path / "m.safetensors")
    os.mkfifo(tmp_path / "m.safetensors")  # not waited for
    with pytest.raises(ManifestError, match="is no manifest of prepared videos, or damaged: it is not a file"):
        read_manifest(tmp_path / "m.safetensors")


@pytest.mark.parametrize("name", ["manifest.packed", "packets.index"])
def test_folders_of_older_versions_are_to_be_prepared_again(tmp_path, name):
    (tmp_path / name).write_bytes(b"LMGpack1")
    for source in (tmp_path, tmp_path / name):
        with pytest.raises(
            ManifestError,
            match=rf"{source} was prepared by an older version\. Run `lightning-multigrid prepare` again, and give the",
        ):
            read_manifest(source)
    save_manifest(manifest(tmp_path), tmp_path / "manifest.safetensors")
    assert prepared_manifest(str(tmp_path)) == str(tmp_path / "manifest.safetensors")


def try_mutated(folder, content, seed):
    """A mutated file is an error of ours, or a manifest whose rows are all in order."""
    path = folder / "mutated"
    path.write_bytes(mutate(content, random.Random(seed)))
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
        save_manifest(manifest(folder, multi_label=multi_label, spans=multi_label, stretches=multi_label), folder / "m")
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
