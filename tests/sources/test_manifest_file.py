"""A manifest file is what was saved, or an error; never anything else."""

import json
import os
import random
import shutil

import pytest

from lightning_multigrid.sources.builder import ManifestBuilder
from lightning_multigrid.sources.manifest_file import load_manifest, save_manifest
from lightning_multigrid.sources.text import ManifestError
from lightning_multigrid.sources.video_list import VideoList
from lightning_multigrid.video.datamodule import VideoDataModule
from tests.helpers.annotations import read_or_refused
from tests.helpers.mutations import fuzzed, mutate

PATHS = ["a.mp4", "run/b c.mp4", "run/line\nbreak.mp4", "-dash.mp4", "run/été 漢.mp4", "\udcff.mp4", "...mp4"]
PATHS += ["a/..b.mp4"]


def manifest(folder, *, multi_label=False, spans=False, classes=("run", "swim")):
    builder = ManifestBuilder(folder / "list.csv", folder / "videos", classes=classes, multi_label=multi_label)
    for row, path in enumerate(PATHS):
        labels = [row % 2, 1, 0][: row % 4] if multi_label else [row % 2]
        stretch = (row / 2, row + 1) if spans else (0, float("inf"))
        builder.add(path, labels, where="", spans=[(row, row + 0.5)] * len(labels) if spans else [], stretch=stretch)
    return builder.build()


def rows(manifest):
    paths = [os.path.relpath(manifest.path(row), manifest.root) for row in range(len(manifest))]
    return [(path, *manifest.spans(row), manifest.stretch(row)) for row, path in enumerate(paths)]


@pytest.fixture
def saved(tmp_path):
    save_manifest(manifest(tmp_path), tmp_path / "manifest.json")
    return tmp_path / "manifest.json"


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("spans", [False, True])
@pytest.mark.parametrize("classes", [(), ("run", "swim")])
def test_what_is_saved_is_loaded(tmp_path, multi_label, spans, classes):
    given = manifest(tmp_path, multi_label=multi_label, spans=spans, classes=classes)
    for name in ("manifest.json", "other"):
        save_manifest(given, tmp_path / name)
    assert (tmp_path / "manifest.json").read_bytes() == (tmp_path / "other").read_bytes()
    for source in (tmp_path / "manifest.json", tmp_path):
        loaded = VideoList(source).read()
        assert rows(loaded) == rows(given)
        assert (loaded.root, loaded.classes, loaded.multi_label) == (given.root, classes, multi_label)
        assert loaded.prepared


def test_the_folder_may_move(tmp_path):
    (tmp_path / "one").mkdir()
    save_manifest(manifest(tmp_path / "one"), tmp_path / "one" / "manifest.json")
    shutil.move(tmp_path / "one", tmp_path / "other")
    assert load_manifest(tmp_path / "other" / "manifest.json").path(0) == str(tmp_path / "other" / "videos" / "a.mp4")


def test_a_video_without_a_label(tmp_path):
    builder = ManifestBuilder(tmp_path / "list.csv", tmp_path)
    builder.add("a.mp4", where="")
    save_manifest(builder.build(), tmp_path / "m.json")
    assert not load_manifest(tmp_path / "m.json").labelled


def test_classes_of_the_training_split_are_taken_if_there_are_none(tmp_path):
    save_manifest(manifest(tmp_path, classes=()), tmp_path / "manifest.json")
    found = VideoList(tmp_path).read(("x", "y"))
    assert (found.classes, found.prepared) == (("x", "y"), True)
    with pytest.raises(ManifestError, match="label 1 is not from 0 to 0"):
        VideoList(tmp_path).read(("x",))


def test_what_is_not_on_disk_is_left_out(saved, tmp_path):
    (tmp_path / "videos" / "run").mkdir(parents=True)
    (tmp_path / "videos" / "run" / "b c.mp4").touch()
    found = VideoList(saved, existing_only=True).read()
    assert [row[0] for row in rows(found)] == ["run/b c.mp4"]
    assert (found.missing, found.prepared) == (len(PATHS) - 1, True)


def test_the_data_module_takes_it_beside_a_list(saved, tmp_path):
    (tmp_path / "list.csv").write_text("a.mp4 1\n")
    data = VideoDataModule(train=str(saved), val=str(tmp_path / "list.csv"))
    data.setup("fit")
    assert data.num_classes == 2
    assert rows(data.manifests()["train"]) == rows(manifest(tmp_path))
    assert data.manifests()["val"].path(0) == str(tmp_path / "a.mp4")


@pytest.mark.parametrize(
    ("name", "value"), [("root", "x"), ("classes", ("swim", "run")), ("multi_label", True), ("frame_rate", 5.0)]
)
def test_arguments_that_say_otherwise_than_what_is_prepared_are_refused(saved, tmp_path, name, value):
    with pytest.raises(ManifestError, match=r"has its own `root`, `classes` .* and the arguments say otherwise"):
        VideoList(saved, **{name: value}).read()
    save_manifest(manifest(tmp_path, multi_label=True), saved)
    assert len(VideoList(saved, classes=("run", "swim"), multi_label=True).read()) == len(PATHS)


def test_videos_elsewhere_are_not_saved(tmp_path):
    with pytest.raises(ValueError, match="The videos of a manifest file must be files in its folder"):
        save_manifest(manifest(tmp_path), tmp_path / "other" / "manifest.json")


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
        ({"root": None}, "is no manifest of prepared videos, or damaged"),
        ({"classes": ["run"]}, "row 2: label 1 is not from 0 to 0"),
        ({"classes": ["run", "run"]}, "`classes` must be a sequence of different names"),
        ({"version": 4}, "it is of version 4, and version 5 is required"),
        ({"rows": []}, "lists no videos"),
        ({"rows": 5}, "is no manifest of prepared videos, or damaged"),
        ({"rows": [["a.mp4", [0]]]}, "is no manifest of prepared videos, or damaged"),
        ({"rows": [[5, [0], [], 0, None]]}, "is no manifest of prepared videos, or damaged"),
        ({"rows": [["a.mp4", 0, [], 0, None]]}, "is no manifest of prepared videos, or damaged"),
        ({"rows": [["a.mp4", [0.5], [], 0, None]]}, "is no manifest of prepared videos, or damaged"),
        ({"rows": [["a.mp4", [2], [], 0, None]]}, "row 1: label 2 is not from 0 to 1"),
        ({"rows": [["a.mp4", [0, 1], [], 0, None]]}, r"row 1: 2 labels \(0, 1\), one is required"),
        ({"rows": [["a.mp4", [0], [[0, "1"]], 0, None]]}, "is no manifest of prepared videos, or damaged"),
        ({"rows": [["a.mp4", [0], [[0, 1], [0, 1]], 0, None]]}, "row 1: 1 labels with 2 spans"),
        ({"rows": [["\ud800.mp4", [0], [], 0, None]]}, r"row 1: '\\ud800\.mp4' is not the path of a file"),
        ({"rows": [["run/../../a.mp4", [0], [], 0, None]]}, "row 1: the path .* leads out of the root"),
        ({"rows": [["/etc/passwd", [0], [], 0, None]]}, "row 1: the path .* leads out of the root"),
    ],
)
def test_contents_that_lie(saved, changes, message):
    content = json.loads(saved.read_text())
    refuse(saved, json.dumps(content | changes).encode(), message)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[: len(content) // 2],
        lambda content: b"a.mp4 0\n" * 99,
        lambda content: b"9" * 5000,  # Python reads no number of so many digits
    ],
)
def test_what_is_no_json_is_refused(saved, damage):
    refuse(saved, damage(saved.read_bytes()), r"manifest\.json is not JSON")


@pytest.mark.parametrize("content", [b"null", b"[]", b"{}"])
def test_what_is_no_manifest_is_refused(saved, content):
    refuse(saved, content, "is no manifest of prepared videos, or damaged .*Run `lightning-multigrid prepare` again")


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(ManifestError, match=r"manifest\.json can't be read: No such file"):
        VideoList(tmp_path / "manifest.json").read()


@pytest.fixture(scope="module")
def contents(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mutated")
    found = []
    for multi_label in (False, True):
        save_manifest(manifest(folder, multi_label=multi_label, spans=multi_label), folder / "m")
        found.append((folder / "m").read_bytes())
    return folder, found


@fuzzed(20_000)
def test_mutated_files_are_read_or_refused(contents, numbers):
    folder, found = contents
    for seed in numbers:
        (folder / "mutated").write_bytes(mutate(found[seed % 2], random.Random(seed)))
        read_or_refused(lambda: load_manifest(folder / "mutated"))
