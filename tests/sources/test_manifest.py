"""The packed manifest and its builder: what goes in comes out, nothing leaves the root, and workers share it."""

import math
import os
import pickle
from multiprocessing.reduction import ForkingPickler

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_multigrid.sources.builder import ManifestBuilder
from lightning_multigrid.sources.manifest import class_sizes, shared_videos
from lightning_multigrid.sources.text import ManifestError


def build(rows, root="/data", **arguments):
    builder = ManifestBuilder("list.csv", root, **arguments)
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


def test_a_spawned_worker_gets_it_as_shared_memory():
    """It is sent as multiprocessing sends a dataset to a process that it spawns; starting one takes seconds."""
    received = pickle.loads(ForkingPickler.dumps(build([("a.mp4", [1]), ("b.mp4", [0])])))
    assert rows_of(received) == [("/data/a.mp4", (1,)), ("/data/b.mp4", (0,))]
    assert all(column.is_shared() for column in received.rows)


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


@pytest.mark.parametrize("path", ["", "a\0b", "videos/https://host/a.mp4", "://a.mp4"])
def test_what_is_no_path(path):
    with pytest.raises(ManifestError, match=r"line 1: '.*' is not the path of a file\. Correct an empty field"):
        build([(path, [0])], allow_outside_root=True)


HOST = "https://host/videos"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("a.mp4", f"{HOST}/a.mp4"),
        ("./b/../#100% a?.mp4", f"{HOST}/%23100%25%20a%3F.mp4"),
        (f"{HOST}/a%20b.mp4", f"{HOST}/a%20b.mp4"),
        (f"{HOST}/b/a.mp4?signed=x/../y", f"{HOST}/b/a.mp4?signed=x/../y"),
    ],
)
@pytest.mark.parametrize("root", [HOST, f"{HOST}/"])
def test_urls_below_the_root(given, kept, root):
    manifest = build([(given, [0])], root=root)
    assert (manifest.path(0), manifest.paths()) == (kept, [kept])


def test_names_in_stores_are_kept_as_they_are(monkeypatch):
    monkeypatch.setattr("lightning_multigrid.files.urls.find_spec", lambda name: True)
    assert build([("#100% a?.mp4", [0])], root="s3://bucket").path(0) == "s3://bucket/#100% a?.mp4"


CLIMBING = [f"{HOST}/../a.mp4", f"{HOST}/b/%2e%2E/%2e./a.mp4", "https://other/a.mp4", "http://host/videos/a.mp4"]
CLIMBING += [f"{HOST}//etc/passwd", f"{HOST}/https://other/a.mp4", "https://host/videos2/a.mp4", f"{HOST}/"]


@pytest.mark.parametrize("url", CLIMBING)
@pytest.mark.parametrize("root", [HOST, "/data", None])
def test_other_urls_need_to_be_allowed(url, root):
    with pytest.raises(ManifestError, match=r"line 1: the URL '.*' leads out of the root '.*'\. Give `VideoList` a UR"):
        build([(url, [0])], root=root)
    assert build([(url, [0])], root=root, allow_outside_root=True).path(0) == url


@pytest.mark.parametrize("setting", [{"frame_rate": 5.0}, {"existing_only": True}])
def test_urls_are_of_video_files_and_are_not_looked_for(setting):
    name = next(iter(setting))
    with pytest.raises(ManifestError, match=f"`{name}` is for files on a disk, and `root` is '{HOST}'. Leave it out"):
        build([("a.mp4", [0])], root=HOST, **setting)
    with pytest.raises(ManifestError, match="leads out of the root .* without `frame_rate` and `existing_only`"):
        build([(f"{HOST}/a.mp4", [0])], allow_outside_root=True, **setting)


OTHERS = ["file:///etc/passwd", "FILE:///etc/passwd", "gs://bucket/a.mp4", "ftp://host/a.mp4", "memory://a.mp4"]
OTHERS += ["simplecache+https://host/a.mp4", "HTTPS://host/a.mp4"]


@pytest.mark.parametrize("url", OTHERS)
def test_other_protocols_are_never_read(url):
    with pytest.raises(ManifestError, match=r"line 1: '.*' is at .*://; https://, http://, s3://, hf:// are read. Mou"):
        build([(url, [0])], allow_outside_root=True)
    with pytest.raises(ManifestError, match=r"`root` '.*' is at .*://; https://, http://, s3://, hf:// are read. Moun"):
        build([("a.mp4", [0])], root=url)


def test_what_a_root_at_a_url_needs(monkeypatch):
    with pytest.raises(ManifestError, match=r"has a `\?` or a `#`, after which no path can stand\. Leave it out"):
        build([("a.mp4", [0])], root="https://host/videos?token=x")
    with pytest.raises(ManifestError, match="holds a user or a password, which logs would show. Put them into fsspec"):
        build([("a.mp4", [0])], root="https://me:secret@host/videos")
    monkeypatch.setattr("lightning_multigrid.files.urls.find_spec", lambda name: None)
    with pytest.raises(ManifestError, match="'s3://bucket' needs a package that is not installed. Run `pip install s3"):
        build([("a.mp4", [0])], root="s3://bucket")


def test_a_list_at_a_url_names_no_files_of_this_machine():
    builder = ManifestBuilder(f"{HOST}/list.csv")
    builder.add("a.mp4", where="line 1")
    with pytest.raises(ManifestError, match=f"line 2: the path '/etc/passwd' leads out of the root '{HOST}'"):
        builder.add("/etc/passwd", where="line 2")
    assert builder.build().path(0) == f"{HOST}/a.mp4"


OUTSIDE = ["..", "../a.mp4", "a/../../a.mp4", "./../a.mp4", "/a.mp4", "/data/../a.mp4", "/database/a.mp4"]
OUTSIDE += ["/data", "//data/a.mp4"]


@pytest.mark.parametrize("path", OUTSIDE)
def test_paths_outside_the_root_need_to_be_allowed(path):
    with pytest.raises(ManifestError, match=r"line 1: the path '.*' leads out of the root '/data'\. Give a root that"):
        build([(path, [0])])
    manifest = build([(path, [0])], allow_outside_root=True)
    assert os.path.normpath(manifest.path(0)) == os.path.normpath(os.path.join("/data", path))


def test_without_a_root_absolute_paths_stand_but_dots_lead_nowhere():
    builder = ManifestBuilder("/lists/train.csv")
    builder.add("/far/a.mp4", [0], where="line 1")
    builder.add("b.mp4", [0], where="line 2")
    assert [path for path, _ in rows_of(builder.build())] == ["/far/a.mp4", "/lists/b.mp4"]
    with pytest.raises(ManifestError, match=r"line 3: .*leads out of the root '/lists'"):
        builder.add("../far/a.mp4", [0], where="line 3")


def test_root_does_not_move_with_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    builder = ManifestBuilder("train.csv", "videos")
    builder.add("a.mp4", [0], where="line 1")
    manifest = builder.build()
    monkeypatch.chdir("/")
    assert manifest.path(0) == str(tmp_path / "videos" / "a.mp4")


@pytest.mark.parametrize(
    ("rows", "arguments", "match"),
    [
        ([], {}, r"list\.csv lists no videos\. Give it a row"),
        ([("a", [-1])], {}, r"line 1: label -1 is not from 0 to inf"),
        ([("a", [2])], {"classes": ["x", "y"]}, r"label 2 is not from 0 to 1\. Number classes from 0"),
        ([("a", [1, 5])], {}, r"2 labels \(1, 5\), one is required\. Pass `multi_label=True`"),
        ([("a", [0]), ("b", [])], {}, r"line 2: some rows have a label, and some have none"),
        ([("a", []), ("b", [0])], {}, r"line 2: some rows have a label, and some have none"),
        ([("a", [0])], {"classes": ["x", "y", "x"]}, r"`classes` must be a sequence of different names, got"),
        ([("a", [0])], {"classes": "run"}, r"`classes` must be a sequence of different names, got 'run'"),
        ([("a", [0])], {"frame_rate": 0}, r"`frame_rate` must be above 0 \(frames per second\), or None, got 0"),
        ([("a", [0])], {"frame_rate": float("nan")}, r"`frame_rate` must be above 0 .*, got nan"),
    ],
)
def test_rows_that_are_refused(rows, arguments, match):
    with pytest.raises(ValueError, match=match):
        build(rows, **arguments)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(0, 9)), max_size=6), st.data())
def test_a_clip_has_the_labels_whose_spans_share_a_moment_with_it(actions, data):
    start = data.draw(st.integers(0, 9))
    end = data.draw(st.integers(start + 1, 10))
    builder = ManifestBuilder("list.csv", "/data", multi_label=True)
    labels, spans = [label for label, _, _ in actions], [(first, last) for _, first, last in actions]
    builder.add("a", labels, spans=spans, where="row 1")
    builder.add("a", labels, where="row 2")
    builder.add("a", labels, spans=spans, stretch=(start, end), where="row 3")
    manifest = builder.build()
    seen = {label for label, first, last in actions if set(range(start, end)) & set(range(first, last))}
    assert manifest.labels_between(0, start, end) == tuple(sorted(seen))
    assert manifest.labels_between(1, start, end) == tuple(sorted(set(labels)))
    # A stretch has what is seen in it; clips see nothing outside of theirs.
    assert manifest.labels(2) == manifest.labels_between(2, 0, 99) == tuple(sorted(seen))
    assert [manifest.stretch(row) for row in (1, 2)] == [(0, float("inf")), (start, end)]


@pytest.mark.parametrize("stretch", [(2, 1), (1, 1), (-1, 1), (float("nan"), 1), (0, float("nan"))])
def test_stretches_that_are_refused(stretch):
    with pytest.raises(ManifestError, match=r"line 7: a stretch from .* s\. Give a start from 0, and an end"):
        ManifestBuilder("list.csv", "/data").add("a", [0], stretch=stretch, where="line 7")


def test_spans_are_for_all_labels_or_for_none():
    with pytest.raises(ManifestError, match="line 2: 2 labels with 1 spans"):
        ManifestBuilder("list.csv", multi_label=True).add("b", [1, 2], spans=[(0.0, 1.0)], where="line 2")


@pytest.fixture
def disk(tmp_path):
    for name in ("run/a.mp4", "run/b c.mp4", "swim/a.mp4"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def test_existing_only_lists_each_folder_once(disk, monkeypatch):
    listed, listdir = [], os.listdir
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


# --- How large classes are, and which videos two splits share ---


def labelled(rows, **arguments):
    builder = ManifestBuilder("list.csv", "/data", **arguments)
    for path, label, *stretch in rows:
        builder.add(path, [label], where="", stretch=tuple(stretch) or (0.0, math.inf))
    return builder.build()


@pytest.mark.parametrize(
    ("labels", "classes", "number", "said"),
    [
        ([0, 1, 2] * 8, (), 3, "3, with 8 videos each"),
        ([0, 0, 2, 2, 2, 3, 3, 3], (), 4, "4, with 2 to 3 videos each, median 3; 1 without a video, such as 1"),
        ([0, 0, 1], ("a", "b", "jump up", "d"), 4, "median 1.5; 2 without a video, such as 'jump up'"),
        ([0, 900_000_000], (), 3, "900,000,001, with 1 videos each; 899,999,999 without a video"),
        ([0] * 5000 + [1] * 1000, (), 2, "2, with 1,000 to 5,000 videos each, median 3,000"),
        ([0, 1], ("run", "fly"), 3, "1 without a video, such as 2"),  # of the user's own number of classes
    ],
)
def test_sizes_of_classes(labels, classes, number, said):
    manifest = labelled([(f"{number}.mp4", label) for number, label in enumerate(labels)], classes=classes)
    assert said in class_sizes(manifest, number)


def test_a_video_is_shared_if_both_show_a_part_of_the_same_file():
    train = labelled([("a.mp4", 0), ("b.mp4", 0, 0.0, 5.0), ("b.mp4", 1, 9.0, math.inf), ("c.mp4", 0)])
    other = labelled(
        [("b.mp4", 0, 5.0, 9.0), ("b.mp4", 1, 8.0, 9.5), ("./c.mp4", 3, 1.0, 2.0), ("d.mp4", 0), ("a.mp4", 0)]
    )
    assert shared_videos(train, other) == ["/data/b.mp4", "/data/c.mp4", "/data/a.mp4"]
    assert shared_videos(train, labelled([("d.mp4", 0)])) == []


def test_paths_are_those_of_the_rows():
    manifest = labelled([("été.mp4", 0), ("b/c.mp4", 0)])
    assert manifest.paths() == [manifest.path(row) for row in range(2)]
