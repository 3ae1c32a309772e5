"""Charades' own files and PySlowFast's lists of frames: what is seen when."""

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightning_multigrid.sources.charades import Charades, FrameList
from lightning_multigrid.sources.text import ManifestError
from tests.helpers.annotations import read_or_refused
from tests.helpers.mutations import fuzzed, mutate

CLASSES = "".join(f"c{label:03d} Doing number {label}\n" for label in range(157))
HEADER = "id,subject,scene,quality,relevance,verified,script,objects,descriptions,actions,length\n"
ROWS = (
    '46GP8,HR43,Kitchen,6,7,Yes,"A person, tired, said ""good night"" and left.",food;window,"One.;Two, three.",'
    "c092 11.90 21.20;c147 0.00 12.60,24.83\n"
    "N11GT,0KZ7,Stairs,6,7,Yes,On the stairs.,stairs,Someone walks.,,18.33\n"
    "0IH69,AAAA,Hall,6,7,No,Twice.,door,Opens and opens.,c008 1.00 2.00;c008 5.00 99.00,20.00\n"
)


def write(folder: Path, rows: str = ROWS, classes: str = CLASSES, header: str = HEADER) -> Path:
    (folder / "Charades_v1_classes.txt").write_text(classes)
    (folder / "Charades_v1_train.csv").write_text(header + rows)
    return folder / "Charades_v1_train.csv"


def test_charades(tmp_path):
    manifest = Charades(write(tmp_path), "/Charades_v1_480").read()

    assert [manifest.path(index) for index in range(3)] == [
        "/Charades_v1_480/46GP8.mp4",
        "/Charades_v1_480/N11GT.mp4",
        "/Charades_v1_480/0IH69.mp4",
    ]
    assert [manifest.labels(index) for index in range(3)] == [(92, 147), (), (8,)]
    assert manifest.multi_label
    assert manifest.num_classes == 157
    assert manifest.classes[8] == "Doing number 8"
    assert manifest.frame_rate is None


def test_charades_actions_between(tmp_path):
    manifest = Charades(write(tmp_path), "/Charades_v1").read()

    assert manifest.labels_between(0, 0.0, 2.7) == (147,)
    assert manifest.labels_between(0, 11.0, 12.0) == (92, 147)
    assert manifest.labels_between(0, 12.6, 13.0) == (92,)
    assert manifest.labels_between(0, 21.2, 24.0) == ()
    assert manifest.labels_between(1, 0.0, 18.0) == ()
    assert manifest.labels_between(2, 2.0, 5.0) == ()
    assert manifest.labels_between(2, 1.5, 19.0) == (8,)


def test_charades_as_frames(tmp_path):
    manifest = Charades(write(tmp_path), "/Charades_v1_rgb", frame_rate=24).read()
    assert manifest.path(0) == "/Charades_v1_rgb/46GP8"
    assert manifest.frame_rate == 24.0


def test_charades_without_the_column_objects(tmp_path):
    """As the dataset's README describes it."""
    header = HEADER.replace("objects,", "")
    path = write(tmp_path, "46GP8,HR43,Kitchen,6,7,Yes,Script.,Description.,c092 11.90 21.20,24.83\n", header=header)
    assert Charades(path, "/Charades_v1").read().labels(0) == (92,)


def test_charades_videos_not_on_disk(tmp_path):
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "0IH69.mp4").touch()
    manifest = Charades(write(tmp_path), tmp_path / "videos", existing_only=True).read()
    assert len(manifest) == 1
    assert manifest.missing == 2
    assert manifest.labels_between(0, 6.0, 7.0) == (8,)


def row(actions: str, video: str = "46GP8") -> str:
    return f"{video},HR43,Kitchen,6,7,Yes,Script.,food,Description.,{actions},24.83\n"


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"rows": ""}, r"Charades_v1_train\.csv lists no videos"),
        ({"rows": row("c092 11.90")}, r"line 2: 'c092 11\.90' is not like `c092 11\.90 21\.20`"),
        ({"rows": row("c92 11.90 21.20")}, r"line 2: 'c92 11\.90 21\.20' is not like"),
        ({"rows": row("c092 nan 21.20")}, r"line 2: 'c092 nan 21\.20' is not like"),
        ({"rows": row("c092 -1 21.20")}, r"line 2: 'c092 -1 21\.20' is not like"),
        ({"rows": row("c157 0.00 1.00")}, r"line 2: label 157 is not from 0 to 156; there are 157 classes"),
        ({"rows": row("", "../46GP8")}, r"line 2: the path '\.\./46GP8\.mp4' leads out of the root"),
        ({"rows": "46GP8,HR43\n"}, r"line 2: 2 fields; 11 are required, as in the first line"),
        ({"rows": row("").replace("Script", "Unquoted, script")}, r"line 2: 12 fields; 11 are required"),
        ({"header": "id,subject\n", "rows": "a,b\n"}, r"line 1: the columns are 'id,subject'; actions is required"),
        ({"classes": "c000 A\nc002 B\n"}, r"Charades_v1_classes\.txt: 'c002 B', where `c001 name` is required"),
        ({"classes": ""}, r"Charades_v1_classes\.txt is empty, `c000 name` is required"),
    ],
)
def test_charades_broken(tmp_path, arguments, match):
    with pytest.raises(ManifestError, match=match):
        Charades(write(tmp_path, **arguments), "/Charades_v1").read()


def test_charades_without_classes(tmp_path):
    path = write(tmp_path)
    (tmp_path / "Charades_v1_classes.txt").rename(tmp_path / "classes")
    with pytest.raises(ManifestError, match=r"Charades_v1_classes\.txt does not exist"):
        Charades(path, "/Charades_v1").read()
    assert Charades(path, "/Charades_v1", classes_file=tmp_path / "classes").read().num_classes == 157


FRAMES_HEADER = "original_vido_id video_id frame_id path labels\n"
FRAMES = (
    'YSKX3 0 0 YSKX3/YSKX3-000001.jpg ""\n'
    'YSKX3 0 1 YSKX3/YSKX3-000002.jpg "1,5"\n'
    'YSKX3 0 2 YSKX3/YSKX3-000003.jpg "5"\n'
    'YSKX3 0 3 YSKX3/YSKX3-000004.jpg ""\n'
    'YSKX3 0 4 YSKX3/YSKX3-000005.jpg "5"\n'
    'N11GT 1 0 N11GT/N11GT-000001.jpg "156"\n'
    'N11GT 1 1 N11GT/N11GT-000002.jpg "156"\n'
)


@pytest.fixture
def frame_list(tmp_path):
    def write_list(rows: str, header: str = FRAMES_HEADER) -> Path:
        (tmp_path / "train.csv").write_text(header + rows)
        return tmp_path / "train.csv"

    return write_list


def test_frame_list(frame_list):
    manifest = FrameList(frame_list(FRAMES), "/Charades_v1_rgb").read()

    assert [manifest.path(index) for index in range(len(manifest))] == [
        "/Charades_v1_rgb/YSKX3",
        "/Charades_v1_rgb/N11GT",
    ]
    assert [manifest.labels(index) for index in range(len(manifest))] == [(1, 5), (156,)]
    assert manifest.frame_rate == 24.0
    assert manifest.multi_label
    # The frame alone, and its neighbours.
    seen = [manifest.labels_between(0, frame / 24, (frame + 1) / 24) for frame in range(5)]
    assert seen == [(), (1, 5), (5,), (), (5,)]


LABELS = st.sets(st.integers(0, 3), max_size=3)


@given(st.lists(st.lists(LABELS, min_size=1, max_size=12), min_size=1, max_size=3), st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_clip_has_the_labels_of_its_frames(frame_list, videos, data):
    """The union over all frames from the first to the last sampled one, as PySlowFast takes it."""
    lines = [
        f'v{video} {video} {frame + 7} v{video}/{frame + 1}.jpg "{",".join(map(str, sorted(labels)))}"\n'
        for video, frames in enumerate(videos)
        for frame, labels in enumerate(frames)
    ]
    manifest = FrameList(frame_list("".join(lines)), "/videos", frame_rate=30).read()

    for video, frames in enumerate(videos):
        first = data.draw(st.integers(0, len(frames) - 1))
        last = data.draw(st.integers(first, len(frames) - 1))
        union = set().union(*frames[first : last + 1])
        assert manifest.labels_between(video, first / 30, (last + 1) / 30) == tuple(sorted(union))
        assert manifest.labels(video) == tuple(sorted(set().union(*frames)))


def test_frame_list_without_labels(frame_list):
    """Those of Something-Something."""
    rows = '78687 0 0 78687/78687_000001.jpg ""\n78687 0 1 78687/78687_000002.jpg ""\n'
    manifest = FrameList(frame_list(rows), "/frames", frame_rate=30).read()
    assert len(manifest) == 1
    assert not manifest.labelled


@pytest.mark.parametrize("labels", ["5", '"5"', '""5""'], ids=["bare", "quoted", "quoted by a spreadsheet"])
def test_quotes_around_labels_do_not_matter(frame_list, labels):
    assert FrameList(frame_list(f"a 0 0 a/1.jpg {labels}\n"), "/frames").read().labels(0) == (5,)


@pytest.mark.parametrize(
    ("rows", "header", "match"),
    [
        ("", FRAMES_HEADER, r"train\.csv lists no videos"),
        (FRAMES, "", r"line 1: 'YSKX3 0 0 .*' is not the header `original_vido_id video_id frame_id path labels`"),
        (
            "a 0 0 a/1.jpg\n",
            FRAMES_HEADER,
            r"line 2: 'a 0 0 a/1\.jpg.*' is not `original_vido_id .*`\. Repair the line",
        ),
        ("a 0 x a/1.jpg 1\n", FRAMES_HEADER, r"line 2: 'a 0 x a/1\.jpg 1.*' is not `original_vido_id"),
        ('a 0 0 a/1.jpg "x"\n', FRAMES_HEADER, r"line 2: 'x' are not labels like \"1,5\"\. Repair the line"),
        ("a 0 0 ../1.jpg 1\n", FRAMES_HEADER, r"video 'a': the path '\.\.' leads out of the root"),
        ("a 0 0 1.jpg 1\n", FRAMES_HEADER, r"video 'a': the path '' has 0 characters"),
        (
            "a 0 0 a/1.jpg 1\na 0 2 a/3.jpg 1\n",
            FRAMES_HEADER,
            r"line 3: frame 2, 'a/3\.jpg', does not follow 0, 'a/1\.jpg'",
        ),
        ("a 0 0 a/2.jpg 1\na 0 1 a/1.jpg 1\n", FRAMES_HEADER, r"line 3: frame 1, 'a/1\.jpg', does not follow 0"),
        (
            "a 0 0 a/1.jpg 1\na 0 1 b/2.jpg 1\n",
            FRAMES_HEADER,
            r"line 3: frame 1, 'b/2\.jpg', does not follow 0.* one folder",
        ),
        (
            "a 0 0 a/1.jpg 1\nb 0 0 b/1.jpg 1\na 0 1 a/2.jpg 1\n",
            FRAMES_HEADER,
            r"video 'a': its frames are in several places, one is required\. Sort the list",
        ),
    ],
)
def test_frame_list_broken(frame_list, rows, header, match):
    with pytest.raises(ManifestError, match=match):
        FrameList(frame_list(rows, header), "/frames").read()


def test_frame_list_within_the_classes(frame_list):
    with pytest.raises(ManifestError, match=r"video 'N11GT': label 156 is not from 0 to 99; there are 100 classes"):
        FrameList(frame_list(FRAMES), "/frames", classes=[f"class {label}" for label in range(100)]).read()


@fuzzed()
def test_mutated_charades_is_read_or_refused(tmp_path, numbers):
    for seed in numbers:
        rng = random.Random(seed)
        path = write(tmp_path)
        broken = path if rng.random() < 0.8 else tmp_path / "Charades_v1_classes.txt"
        broken.write_bytes(mutate(broken.read_bytes(), rng))
        read_or_refused(Charades(path, "/Charades_v1").read)


@fuzzed()
def test_mutated_frame_lists_are_read_or_refused(tmp_path, numbers):
    path = tmp_path / "train.csv"
    for seed in numbers:
        path.write_bytes(mutate((FRAMES_HEADER + FRAMES).encode(), random.Random(seed)))
        read_or_refused(FrameList(path, "/frames").read)
