"""The official files of datasets: read as they are distributed, and refused by name if they are not."""

import json

import pytest

from lightning_multigrid.sources import HMDB51, UCF101, Charades, Kinetics, ManifestError, SomethingSomething
from tests.helpers.annotations import rows_of, write_files

TRAIN_LABELS = ("abseiling", "air drumming", "massaging person's head", "testifying")
KINETICS = {
    "train.csv": (
        "label,youtube_id,time_start,time_end,split,is_cc\n"
        "testifying,---QUuC4vJs,84,94,train,0\n"
        '"air drumming",_dbcJuKJQNs,40,50,train,0\n'
        "abseiling,-3B32lodo2M,59,69,train,1\n"
        '"massaging person\'s head",aaaaaaaaaaa,1000,1010,train,0\n'
    ),
    # Nobody abseils in it.
    "val.csv": 'label,youtube_id,time_start,time_end,split,is_cc\n"air drumming",ccccccccccc,40,50,val,0\n',
    # Kinetics-700.
    "validate.csv": "label,youtube_id,time_start,time_end,split\ntestifying,---QUuC4vJs,84.0,94.0,validate\n",
    "test.csv": "youtube_id,time_start,time_end,split\neeeeeeeeeee,84,94,test\n",
}
LABELS = {
    "Approaching something with your camera": "0",
    "Putting something on a surface": "2",
    "Holding something": "1",
}
ENTRIES = {
    "train": [
        {"id": "78687", "label": "holding potato", "template": "Holding [something]", "placeholders": ["potato"]},
        {"id": "42326", "label": "putting pen", "template": "Putting [something] on a surface", "placeholders": []},
    ],
    "test": [{"id": "1420"}],
}
SOMETHING = {f"{split}.json": json.dumps(entries) for split, entries in ENTRIES.items()}
SOMETHING["labels.json"] = json.dumps(LABELS)
HEADER = "id,subject,scene,quality,relevance,verified,script,objects,descriptions,actions,length\n"
CHARADES = {
    "Charades_v1_classes.txt": "".join(f"c{label:03d} Doing number {label}\n" for label in range(157)),
    "Charades_v1_train.csv": HEADER
    + '46GP8,HR43,Kitchen,6,7,Yes,"A person, tired, said ""good night"" and left.",food;window,"One.;Two, three.",'
    "c092 11.90 21.20;c147 0.00 12.60,24.83\n"
    "N11GT,0KZ7,Stairs,6,7,Yes,On the stairs.,stairs,Someone walks.,,18.33\n",
}
UCF = {
    "classInd.txt": "1 ApplyEyeMakeup\r\n2 ApplyLipstick\r\n3 Archery\r\n",
    "trainlist01.txt": "ApplyEyeMakeup/v_1.avi 1\r\nArchery/v_2.avi 3\r\n\r\n",
    "testlist01.txt": "ApplyLipstick/v_3.avi\n",
}
HMDB = {
    "brush_hair_test_split1.txt": "April_09.avi 1 \n#20_hair!(odd)+[x]&_0.avi 2 \n",
    "cartwheel_test_split1.txt": "(Rad)Schlag_die_Bank!.avi 1 \nunused.avi 0 \n\n",
    "cartwheel_test_split2.txt": "unused.avi 1 \n",
    "readme.txt": "not a split",
}


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        (
            "train.csv",
            [
                ("---QUuC4vJs_000084_000094.mp4", (3,)),
                ("_dbcJuKJQNs_000040_000050.mp4", (1,)),
                ("-3B32lodo2M_000059_000069.mp4", (0,)),
                ("aaaaaaaaaaa_001000_001010.mp4", (2,)),
            ],
        ),
        ("val.csv", [("ccccccccccc_000040_000050.mp4", (1,))]),
        ("validate.csv", [("---QUuC4vJs_000084_000094.mp4", (3,))]),
        ("test.csv", [("eeeeeeeeeee_000084_000094.mp4", ())]),
    ],
)
def test_kinetics_splits_have_the_ids_of_the_training_split(tmp_path, name, rows):
    manifest = Kinetics(write_files(tmp_path, KINETICS) / name, "/k400/split").read()
    assert rows_of(manifest) == rows
    assert manifest.root == "/k400/split"
    assert manifest.classes == (() if name == "test.csv" else TRAIN_LABELS)


def test_kinetics_with_other_classes(tmp_path):
    write_files(tmp_path, {"k400_val.csv": KINETICS["val.csv"]})
    with pytest.raises(ManifestError, match=r"k400_train\.csv can't be read: No such file or directory"):
        Kinetics(tmp_path / "k400_val.csv", "/k400/val").read()
    classes = ("running", "air drumming")
    assert rows_of(Kinetics(tmp_path / "k400_val.csv", "/k400/val").read(classes))[0][1] == (1,)
    with pytest.raises(ManifestError, match=r"line 2: 'air drumming' is not among the 1 classes of train.csv"):
        Kinetics(tmp_path / "k400_val.csv", "/k400/val", classes=classes[:1]).read()


def test_videos_that_are_not_on_disk_are_left_out_and_all_classes_count(tmp_path, caplog):
    write_files(tmp_path, KINETICS | {"videos/-3B32lodo2M_000059_000069.mp4": ""})
    manifest = Kinetics(tmp_path / "train.csv", tmp_path / "videos", existing_only=True).read()
    assert rows_of(manifest) == [("-3B32lodo2M_000059_000069.mp4", (0,))]
    assert (manifest.missing, manifest.num_classes) == (3, 4)
    assert "3 of the 4 videos" in caplog.text


@pytest.mark.parametrize("prefix", ["", "something-something-v2-"])
def test_something_something(tmp_path, prefix):
    write_files(tmp_path, {prefix + name: content for name, content in SOMETHING.items()})
    manifest = SomethingSomething(tmp_path / f"{prefix}train.json", "/videos").read()
    assert rows_of(manifest) == [("78687.webm", (1,)), ("42326.webm", (2,))]
    assert manifest.classes == tuple(sorted(LABELS, key=LABELS.get))
    assert rows_of(SomethingSomething(tmp_path / f"{prefix}test.json", "/videos").read()) == [("1420.webm", ())]
    (tmp_path / f"{prefix}labels.json").rename(tmp_path / "other")
    frames = SomethingSomething(tmp_path / f"{prefix}train.json", "/f", labels_file=tmp_path / "other", frame_rate=30)
    assert rows_of(frames.read()) == [("78687", (1,)), ("42326", (2,))]
    assert frames.read().images_per_second == 30


def test_charades(tmp_path):
    manifest = Charades(write_files(tmp_path, CHARADES) / "Charades_v1_train.csv", "/Charades_v1").read()
    assert rows_of(manifest) == [("46GP8.mp4", (92, 147)), ("N11GT.mp4", ())]
    assert (manifest.multi_label, manifest.num_classes, manifest.images_per_second) == (True, 157, None)
    assert manifest.classes[8] == "Doing number 8"
    assert manifest.labels_between(0, 0.0, 2.7) == (147,)
    assert manifest.labels_between(0, 12.6, 13.0) == (92,)
    (tmp_path / "Charades_v1_classes.txt").rename(tmp_path / "other")
    frames = Charades(
        tmp_path / "Charades_v1_train.csv", "/Charades_v1_rgb", classes_file=tmp_path / "other", frame_rate=24
    ).read()
    assert (frames.path(0), frames.images_per_second) == ("/Charades_v1_rgb/46GP8", 24)


def test_ucf101(tmp_path):
    write_files(tmp_path, UCF)
    manifest = UCF101(tmp_path / "trainlist01.txt", "/UCF-101").read()
    assert rows_of(manifest) == [("ApplyEyeMakeup/v_1.avi", (0,)), ("Archery/v_2.avi", (2,))]
    assert manifest.classes == ("ApplyEyeMakeup", "ApplyLipstick", "Archery")
    assert rows_of(UCF101(tmp_path / "testlist01.txt", "/UCF-101").read()) == [("ApplyLipstick/v_3.avi", (1,))]


@pytest.mark.parametrize(
    ("split", "subset", "rows"),
    [
        (1, "train", [("brush_hair/April_09.avi", (0,)), ("cartwheel/(Rad)Schlag_die_Bank!.avi", (1,))]),
        (1, "test", [("brush_hair/#20_hair!(odd)+[x]&_0.avi", (0,))]),
        (2, "train", [("cartwheel/unused.avi", (0,))]),
    ],
)
def test_hmdb51(tmp_path, split, subset, rows):
    manifest = HMDB51(write_files(tmp_path, HMDB), "/hmdb51", split=split, subset=subset).read()
    assert rows_of(manifest) == rows


def test_hmdb51_has_its_classes_in_the_order_of_their_names(tmp_path):
    """As have other tools; as names of files, `climb_stairs_test…` comes before `climb_test…`."""
    files = {f"{name}_test_split1.txt": "a.avi 1\n" for name in ("climb_stairs", "climb", "kick")}
    assert HMDB51(write_files(tmp_path, files), "/hmdb51").read().classes == ("climb", "climb_stairs", "kick")


KINDS = {
    "kinetics": (KINETICS, lambda folder: Kinetics(folder / "train.csv", "/videos")),
    "something": (SOMETHING, lambda folder: SomethingSomething(folder / "train.json", "/videos")),
    "charades": (CHARADES, lambda folder: Charades(folder / "Charades_v1_train.csv", "/videos")),
    "ucf": (UCF, lambda folder: UCF101(folder / "trainlist01.txt", "/videos")),
    "hmdb": (HMDB, lambda folder: HMDB51(folder, "/videos")),
}


def row(actions, video="46GP8"):
    return {"Charades_v1_train.csv": HEADER + f"{video},HR43,Kitchen,6,7,Yes,Script.,food,Text.,{actions},24.83\n"}


@pytest.mark.parametrize(
    ("kind", "files", "match"),
    [
        ("kinetics", {"train.csv": "a.mp4 1\n"}, r"train\.csv has no column split, time_end, time_start, youtube_id"),
        ("kinetics", {"train.csv": KINETICS["train.csv"] + "x,a,1,2\n"}, r"line 6: as many fields as in the first"),
        ("kinetics", {"train.csv": KINETICS["train.csv"] + "x,a,1,2,train,0,1\n"}, r"line 6: as many fields"),
        ("kinetics", {"train.csv": KINETICS["train.csv"] + "abseiling,a,one,2,train,0\n"}, r"line 6: .*'one'; two tim"),
        ("kinetics", {"train.csv": KINETICS["train.csv"] + "abseiling,../../x,1,2,train,0\n"}, r"line 6: .*out of the"),
        ("kinetics", {"train.csv": KINETICS["train.csv"] + '"' + "x\n" * 70_000}, r"train\.csv, line .* quotes: each"),
        ("something", {"train.json": "["}, r"train\.json is not JSON: Expecting value: line 1 column 2"),
        ("something", {"train.json": "[]"}, r"train\.json lists no videos"),
        ("something", {"train.json": "{}"}, r"train\.json holds no list of videos\. Give the official train"),
        ("something", {"train.json": '[{"id": "1", "template": "Eating"}]'}, r"entry 1: 'Eating' is not a label of"),
        (
            "something",
            {"train.json": "[1]"},
            r"train\.json, entry 1: '1' is not a video with an `id` .* Give the officia",
        ),
        ("something", {"train.json": '[{"id": "1"}, {"id": null}]'}, r"entry 2: .* is not a video with an `id`"),
        ("something", {"train.json": '[{"id": "1", "template": 3}]'}, r"entry 1: .* is not a video with an `id`"),
        ("something", {"train.json": '[{"id": "\\ud800"}]'}, r"entry 1: '\\ud800\.webm' is not the path of a file"),
        ("something", {"labels.json": '{"Holding something": "1"}'}, r"labels\.json does not hold labels with the ids"),
        ("charades", row("c092 11.90"), r"line 2: 'c092 11\.90' is not like `c092 11\.90 21\.20`"),
        ("charades", row("c092 nan 21.20"), r"line 2: 'c092 nan 21\.20' is not like"),
        ("charades", row("c157 0.00 1.00"), r"line 2: label 157 is not from 0 to 156"),
        ("charades", row("", "../46GP8"), r"line 2: the path '\.\./46GP8\.mp4' leads out of the root"),
        (
            "charades",
            {"Charades_v1_classes.txt": "c000 A\nc002 B\n"},
            r"classes\.txt: 'c002 B' must begin with the number 1",
        ),
        ("ucf", {"trainlist01.txt": "Eating/a.avi 1\n"}, r"line 1: 'Eating/a\.avi 1' has no folder that is a class of"),
        ("ucf", {"classInd.txt": "1 A\n2 A\n"}, r"`classes` must be a sequence of different names"),
        ("hmdb", {"cartwheel_test_split1.txt": "a.avi 3\n"}, r"cartwheel_test_split1\.txt, line 1: 'a\.avi 3' is not"),
        ("hmdb", {"cartwheel_test_split1.txt": "a.avi\n"}, r"line 1: 'a\.avi' is not `video\.avi` and 0, 1 or 2"),
    ],
)
def test_files_that_are_not_official(tmp_path, kind, files, match):
    content, source = KINDS[kind]
    with pytest.raises(ValueError, match=match):
        source(write_files(tmp_path, content | files)).read()


def test_hmdb51_without_files_or_with_another_subset(tmp_path):
    with pytest.raises(ManifestError, match=r"holds no <class>_test_split3\.txt\. Give the folder testTrainMulti"):
        HMDB51(write_files(tmp_path, HMDB), "/hmdb51", split=3).read()
    with pytest.raises(ValueError, match=r"`subset` must be 'train' or 'test', got 'val'"):
        HMDB51(tmp_path, "/hmdb51", subset="val").read()
