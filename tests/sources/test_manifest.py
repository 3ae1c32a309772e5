"""The packed manifest and its builder: what goes in comes out, nothing leaves the root, and workers share it."""

import os
import pickle
from multiprocessing.reduction import ForkingPickler

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_multigrid.sources.builder import ManifestBuilder, renamed
from lightning_multigrid.sources.text import ManifestError


def build(rows, **arguments):
    builder = ManifestBuilder("list.csv", "/data", **arguments)
    for number, (path, labels) in enumerate(rows, start=1):
        builder.add(path, labels, where=f"line {number}")
    return builder.build()


def rows_of(manifest):
    return [(manifest.path(index), manifest.labels(index)) for index in range(len(manifest))]


TEXT = st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1, max_size=30)
NAMES = TEXT.filter(lambda name: name not in (".", ".."))


@given(st.lists(st.tuples(NAMES, st.sets(st.integers(0, 2**31 - 2), max_size=4)), min_size=1, max_size=20))
def test_what_goes_in_comes_out(rows):
    manifest = build(rows, multi_label=True)
    assert rows_of(manifest) == [("/data/" + name, tuple(sorted(labels))) for name, labels in rows]
    assert rows_of(pickle.loads(pickle.dumps(manifest))) == rows_of(manifest)


def test_names_that_are_not_utf8_survive():
    name = os.fsdecode(b"\xe9t\xe9.mp4")
    assert build([(name, [0])]).path(0) == "/data/" + name


def test_half_a_surrogate_is_no_name():
    with pytest.raises(ManifestError, match=r"list\.csv, line 1: the path '\\ud800\.mp4' is not valid text"):
        build([("\ud800.mp4", [0])])


def test_a_row_is_tens_of_bytes():
    manifest = build([(f"train/{index:011d}_000010_000020.mp4", [index % 400]) for index in range(1000)])
    # 35 characters, two offsets of 8 bytes, a label of 4, and the class itself.
    assert len(pickle.dumps(manifest)) < 1000 * (35 + 8 + 8 + 4) + 5000


def test_a_spawned_worker_gets_it_as_shared_memory():
    """It is sent as multiprocessing sends a dataset to a process that it spawns; starting one takes seconds."""
    received = pickle.loads(ForkingPickler.dumps(build([("a.mp4", [1]), ("b.mp4", [0])])))
    assert rows_of(received) == [("/data/a.mp4", (1,)), ("/data/b.mp4", (0,))]
    assert [column.is_shared() for column in received.rows if len(column)] == [True] * 4


def test_a_builder_may_go_on_after_a_manifest_was_built():
    builder = ManifestBuilder("list.csv", "/data")
    builder.add("a.mp4", [0], where="line 1")
    first = builder.build()
    for line in range(2, 5000):
        builder.add("b.mp4", [0], where=f"line {line}")
    assert rows_of(first) == [("/data/a.mp4", (0,))]
    assert len(builder.build()) == 4999


@pytest.mark.parametrize("index", [-1, 2, 10**12])
def test_no_such_row(index):
    manifest = build([("a.mp4", [0]), ("b.mp4", [1])])
    for method in (manifest.path, manifest.label, manifest.labels, manifest.stretch):
        with pytest.raises(IndexError, match=rf"Row {index} of a manifest of 2 videos"):
            method(index)
    with pytest.raises(IndexError, match="manifest of 2 videos"):
        manifest.labels_between(index, 0, 1)


def test_label_is_the_one_of_a_video_that_has_one():
    manifest = build([("a.mp4", [3]), ("b.mp4", [1, 5]), ("c.mp4", []), ("d.mp4", [5, 1, 5])], multi_label=True)
    assert manifest.label(0) == 3
    assert manifest.labels(3) == (1, 5)
    for index, count in ((1, 2), (2, 0)):
        with pytest.raises(ManifestError, match=rf"/data/.\.mp4' of list\.csv has {count} labels, one is required"):
            manifest.label(index)


def test_number_of_classes():
    assert build([("a", [3]), ("b", [1])]).num_classes == 4
    assert build([("a", [3])], classes=list("vwxyz")).num_classes == 5
    assert build([("a", [])]).num_classes == 0
    assert build([("a", [])], classes=["x"]).num_classes == 1


@pytest.mark.parametrize(
    ("rows", "arguments", "text"),
    [
        ([("a", [1])], {}, "Manifest('list.csv': 1 video, 2 classes, root='/data')"),
        ([("a", []), ("b", [])], {}, "Manifest('list.csv': 2 videos, no labels, root='/data')"),
        (
            [("a", [156])] * 1234,
            {"multi_label": True, "frame_rate": 24},
            "Manifest('list.csv': 1,234 folders of frames at 24 per second, 157 classes, multi-label, root='/data')",
        ),
    ],
)
def test_says_what_it_holds(rows, arguments, text):
    assert repr(build(rows, **arguments)) == text


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("a/b.mp4", "/data/a/b.mp4"),
        ("./a//b.mp4", "/data/a/b.mp4"),
        ("a/../b.mp4", "/data/b.mp4"),
        ("/data/a.mp4", "/data/a.mp4"),
        ("/data/x/../a.mp4", "/data/a.mp4"),
        ("..a/b.mp4", "/data/..a/b.mp4"),
        ("-a.mp4", "/data/-a.mp4"),
        ("concat:a|b", "/data/concat:a|b"),
        ("x" * 300 + ".mp4", "/data/" + "x" * 300 + ".mp4"),
    ],
)
def test_paths_inside_the_root(given, kept):
    assert build([(given, [0])]).path(0) == kept


@pytest.mark.parametrize("url", ["http://host/a.mp4", "s3://bucket/a.mp4", "file:///etc/passwd"])
def test_urls_are_refused(url):
    with pytest.raises(ManifestError, match="line 1: the path '.*' is a URL. Mount the store, or copy the videos to"):
        build([(url, [0])], allow_outside_root=True)
    with pytest.raises(ManifestError, match="`root` is '.*', a URL. Mount the store, or copy the videos to a disk"):
        ManifestBuilder("train.csv", url)


OUTSIDE = ["..", "../a.mp4", "a/../../a.mp4", "./../a.mp4", "/a.mp4", "/data/../a.mp4", "/database/a.mp4"]
OUTSIDE += ["/data", "//data/a.mp4"]


@pytest.mark.parametrize("path", OUTSIDE)
def test_paths_outside_the_root_are_refused(path):
    with pytest.raises(ManifestError, match=r"line 1: the path '.*' leads out of the root '/data'\. Give a root that"):
        build([(path, [0])])


@pytest.mark.parametrize("path", OUTSIDE)
def test_paths_outside_the_root_on_request(path):
    manifest = build([(path, [0])], allow_outside_root=True)
    assert os.path.normpath(manifest.path(0)) == os.path.normpath(os.path.join("/data", path))


def test_without_a_root_absolute_paths_stand_but_dots_lead_nowhere():
    builder = ManifestBuilder("/lists/train.csv")
    builder.add("/far/a.mp4", [0], where="line 1")
    builder.add("b.mp4", [0], where="line 2")
    assert [path for path, _ in rows_of(builder.build())] == ["/far/a.mp4", "/lists/b.mp4"]
    with pytest.raises(ManifestError, match=r"line 3: .*leads out of the root '/lists'"):
        builder.add("../far/a.mp4", [0], where="line 3")


def test_the_whole_disk_may_be_the_root():
    builder = ManifestBuilder("train.csv", "/")
    builder.add("/far/a.mp4", [0], where="line 1")
    assert builder.build().path(0) == "/far/a.mp4"


def test_root_does_not_move_with_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    builder = ManifestBuilder("train.csv", "videos")
    builder.add("a.mp4", [0], where="line 1")
    manifest = builder.build()
    monkeypatch.chdir("/")
    assert manifest.path(0) == str(tmp_path / "videos" / "a.mp4")


@pytest.mark.parametrize(("path", "count"), [("", 0), ("a\0b", 3), ("a/" * 2049, 4098)])
def test_what_is_no_path(path, count):
    with pytest.raises(ManifestError, match=rf"line 1: the path .* has {count:,} characters; 1 to 4,096 without NUL"):
        build([(path, [0])])


@pytest.mark.parametrize(
    ("rows", "arguments", "match"),
    [
        ([], {}, r"list\.csv lists no videos\. At least one row"),
        ([("a", [-1])], {}, r"line 1: label -1 is not from 0 to 2147483646"),
        ([("a", [2**31])], {}, r"line 1: label 2147483648 is not from 0"),
        ([("a", [2])], {"classes": ["x", "y"]}, r"label 2 is not from 0 to 1; there are 2 classes"),
        ([("a", [1, 5])], {}, r"2 labels \(1, 5\), one is required\. Pass `multi_label=True`"),
        ([("a", [0]), ("b", [])], {}, r"line 2: no label, but the rows before have one\. Give all videos a label"),
        ([("a", []), ("b", [0])], {}, r"line 2: a label, but the rows before have none"),
        ([("a", [0])], {"classes": ["x", "y", "x"]}, r"`classes` has 'x' more than once"),
        ([("a", [0])], {"frame_rate": 0}, r"`frame_rate` must be positive \(frames per second\), got 0"),
        ([("a", [0])], {"frame_rate": float("nan")}, r"`frame_rate` must be positive .*, got nan"),
    ],
)
def test_rows_that_are_refused(rows, arguments, match):
    with pytest.raises(ManifestError, match=match):
        build(rows, **arguments)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"origin": None}, r"`origin` must be a path \(str or os\.PathLike\), got None"),
        ({"root": b"/data"}, r"`root` must be a path \(str or os\.PathLike\), got b'/data'"),
        ({"root": 3}, r"`root` must be a path"),
        ({"classes": "run"}, r"`classes` must be a sequence of names, got 'run'"),
        ({"classes": [1]}, r"`classes` must be a sequence of names, got \[1\]"),
        ({"frame_rate": "24"}, r"`frame_rate` must be a number, got '24'"),
        ({"frame_rate": True}, r"`frame_rate` must be a number, got True"),
    ],
)
def test_wrong_kinds(arguments, match):
    with pytest.raises(TypeError, match=match):
        ManifestBuilder(**{"origin": "list.csv", **arguments})


@pytest.mark.parametrize("root", ["", "a\0b", "\ud800"])
def test_what_cannot_be_a_root(root):
    with pytest.raises(ValueError, match=r"`root` is '.*', which is not a path"):
        ManifestBuilder("list.csv", root)


@pytest.mark.parametrize(("start", "end"), [(1.0, 1.0), (2.0, 1.0), (0.0, float("nan"))])
def test_a_clip_has_an_extent(start, end):
    with pytest.raises(ValueError, match=rf"`end` must come after `start`, got {start} to {end} s"):
        build([("a", [2])]).labels_between(0, start, end)


TIMES = st.tuples(st.integers(0, 9), st.integers(1, 9)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(0, 9)), max_size=6), TIMES, TIMES)
def test_a_stretch_has_the_labels_whose_spans_share_a_moment_with_it(actions, stretch, clip):
    """Spans count from the beginning of the video, as stretches do; clips see nothing outside of theirs."""
    builder = ManifestBuilder("list.csv", "/data", multi_label=True)
    labels, spans = [label for label, _, _ in actions], [(first, end) for _, first, end in actions]
    builder.add("a", labels, spans=spans, stretch=stretch, where="row 1")
    builder.add("a", labels, spans=spans, where="row 2")
    manifest = builder.build()

    def seen(moments):
        return tuple(sorted({label for label, first, end in actions if moments & set(range(first, end))}))

    within = set(range(*stretch))
    assert manifest.labels(0) == seen(within)
    assert manifest.labels_between(0, *clip) == seen(within & set(range(*clip)))
    assert manifest.labels_between(1, *clip) == seen(set(range(*clip)))
    assert manifest.labels(1) == tuple(sorted(set(labels)))


def test_a_label_without_a_span_is_that_of_the_whole_video_or_stretch():
    assert build([("a", [2])]).labels_between(0, 100.0, 101.0) == (2,)
    builder = ManifestBuilder("list.csv", "/data")
    builder.add("a", [2], stretch=(1, 2), where="row 1")
    assert builder.build().labels(0) == builder.build().labels_between(0, 1.9, 3) == (2,)


@given(st.lists(st.none() | TIMES, min_size=1, max_size=9))
def test_stretches_come_out_as_they_go_in_and_stay_when_videos_are_renamed(stretches):
    builder = ManifestBuilder("list.csv", "/data")
    for row, stretch in enumerate(stretches):
        builder.add("a", [row], stretch=stretch, where="row")
    manifest = builder.build()
    assert [manifest.stretch(row) for row in range(len(stretches))] == stretches
    copied = pickle.loads(pickle.dumps(manifest))
    assert [copied.stretch(row) for row in range(len(stretches))] == stretches
    names = [f"{row}.mp4" if row % 2 == 0 else None for row in range(len(stretches))]
    other = renamed(manifest, names, "other.csv", "/other")
    assert [other.stretch(row) for row in range(len(other))] == stretches[::2]
    assert rows_of(other)[-1] == (f"/other/{2 * len(other) - 2}.mp4", (2 * len(other) - 2,))


def test_stretches_that_are_refused():
    for stretch in ((2, 1), (1, 1), (-1, 1), (float("nan"), 1), (0, float("nan"))):
        with pytest.raises(ManifestError, match=r"line 7: a stretch from .* s\. Give a start from 0, and an end"):
            ManifestBuilder("list.csv", "/data").add("a", [0], stretch=stretch, where="line 7")


def test_spans_are_for_all_labels_or_for_none():
    builder = ManifestBuilder("list.csv", "/data", multi_label=True)
    builder.add("a", [1], where="line 1")
    with pytest.raises(ManifestError, match="line 2: 1 labels with 1 spans"):
        builder.add("b", [1], spans=[(0.0, 1.0)], where="line 2")


@pytest.fixture
def disk(tmp_path):
    for name in ("run/a.mp4", "run/b c.mp4", "swim/a.mp4"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def test_existing_only_leaves_out_and_counts(disk, caplog):
    builder = ManifestBuilder("list.csv", disk, existing_only=True)
    names = ["run/a.mp4", "run/gone.mp4", "swim/a.mp4", "gone/a.mp4", "run/b c.mp4"]
    for label, name in enumerate(names):
        builder.add(name, [label], where=f"line {label + 1}")
    manifest = builder.build()
    assert rows_of(manifest) == [(str(disk / names[label]), (label,)) for label in (0, 2, 4)]
    assert manifest.missing == 2
    assert "5 classes, 2 missing" in repr(manifest)
    assert caplog.messages == ["2 of the 5 videos listed in list.csv are not on disk and are left out."]


def test_existing_only_lists_each_folder_once(disk, monkeypatch):
    listed = []
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda folder: listed.append(folder) or listdir(folder))
    monkeypatch.setattr(os, "stat", None)
    builder = ManifestBuilder("list.csv", disk, existing_only=True)
    for _ in range(3):
        for name in ("run/a.mp4", "swim/a.mp4", "gone/a.mp4"):
            builder.add(name, [0], where="line")
    monkeypatch.undo()
    assert len(builder.build()) == 6
    assert sorted(listed) == [str(disk / name) for name in ("gone", "run", "swim")]


def test_nothing_exists(disk):
    builder = ManifestBuilder("list.csv", disk / "wrong", existing_only=True)
    builder.add("run/a.mp4", [0], where="line 1")
    with pytest.raises(ManifestError, match=r"None of the 1 videos listed in list\.csv lies in .*wrong\. Give "):
        builder.build()
