"""Charades' own files: what is seen when."""

import pytest

from lightning_multigrid.sources.charades import Charades
from lightning_multigrid.sources.text import ManifestError
from tests.helpers.annotations import read_mutated, rows_of
from tests.helpers.mutations import fuzzed

CLASSES = "".join(f"c{label:03d} Doing number {label}\n" for label in range(157))
HEADER = "id,subject,scene,quality,relevance,verified,script,objects,descriptions,actions,length\n"
ROWS = (
    '46GP8,HR43,Kitchen,6,7,Yes,"A person, tired, said ""good night"" and left.",food;window,"One.;Two, three.",'
    "c092 11.90 21.20;c147 0.00 12.60,24.83\n"
    "N11GT,0KZ7,Stairs,6,7,Yes,On the stairs.,stairs,Someone walks.,,18.33\n"
    "0IH69,AAAA,Hall,6,7,No,Twice.,door,Opens and opens.,c008 1.00 2.00;c008 5.00 99.00,20.00\n"
)


def write(folder, rows=ROWS, classes=CLASSES, header=HEADER):
    (folder / "Charades_v1_classes.txt").write_text(classes)
    (folder / "Charades_v1_train.csv").write_text(header + rows)
    return folder / "Charades_v1_train.csv"


def test_charades(tmp_path):
    manifest = Charades(write(tmp_path), "/Charades_v1_480").read()
    assert rows_of(manifest) == [("46GP8.mp4", (92, 147)), ("N11GT.mp4", ()), ("0IH69.mp4", (8,))]
    assert manifest.root == "/Charades_v1_480"
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


def row(actions, video="46GP8"):
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


@fuzzed()
def test_mutated_files_are_read_or_refused(tmp_path, numbers):
    files = {"Charades_v1_classes.txt": CLASSES, "Charades_v1_train.csv": HEADER + ROWS}
    for seed in numbers:
        read_mutated(tmp_path, files, "Charades_v1_train.csv", Charades(write(tmp_path), "/Charades_v1").read, seed)
