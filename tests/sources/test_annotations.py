"""Kinetics, Something-Something, UCF101 and HMDB51: files in exactly the official layout, and broken ones."""

import json
import os
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from lightning_multigrid.sources.kinetics import read_kinetics
from lightning_multigrid.sources.manifest import Manifest
from lightning_multigrid.sources.something_something import read_something_something
from lightning_multigrid.sources.text import ManifestError
from lightning_multigrid.sources.ucf_hmdb import read_hmdb51, read_ucf101
from tests.helpers.mutations import check_rows, mutate, seeds


def rows_of(manifest: Manifest) -> list[tuple[str, tuple[int, ...]]]:
    """Rows with paths relative to the root."""
    return [
        (os.path.relpath(manifest.path(index), manifest.root), manifest.labels(index)) for index in range(len(manifest))
    ]


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    return folder


KINETICS = {
    "train.csv": (
        "label,youtube_id,time_start,time_end,split,is_cc\n"
        "testifying,---QUuC4vJs,84,94,train,0\n"
        '"air drumming",_dbcJuKJQNs,40,50,train,0\n'
        "abseiling,-3B32lodo2M,59,69,train,1\n"
        '"massaging person\'s head",aaaaaaaaaaa,0,10,train,0\n'
        "testifying,bbbbbbbbbbb,1000,1010,train,0\n"
    ),
    # Nobody abseils in it.
    "val.csv": (
        "label,youtube_id,time_start,time_end,split,is_cc\n"
        '"air drumming",ccccccccccc,40,50,val,0\n'
        "testifying,-ddddddddd-,84,94,val,0\n"
    ),
    # Kinetics-700.
    "validate.csv": (
        "label,youtube_id,time_start,time_end,split\n"
        "testifying,---QUuC4vJs,84,94,validate\n"
        "air drumming,--nQbRBEz2s,104,114,validate\n"
    ),
    "test.csv": "youtube_id,time_start,time_end,split\neeeeeeeeeee,84,94,test\n--fffffffff,7,17,test\n",
}


@pytest.fixture
def kinetics(tmp_path):
    return write(tmp_path, KINETICS)


def test_kinetics_train(kinetics):
    manifest = read_kinetics(kinetics / "train.csv", "/k400/train")

    assert manifest.classes == ("abseiling", "air drumming", "massaging person's head", "testifying")
    assert rows_of(manifest) == [
        ("---QUuC4vJs_000084_000094.mp4", (3,)),
        ("_dbcJuKJQNs_000040_000050.mp4", (1,)),
        ("-3B32lodo2M_000059_000069.mp4", (0,)),
        ("aaaaaaaaaaa_000000_000010.mp4", (2,)),
        ("bbbbbbbbbbb_001000_001010.mp4", (3,)),
    ]
    assert manifest.path(0) == "/k400/train/---QUuC4vJs_000084_000094.mp4"


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("val.csv", [("ccccccccccc_000040_000050.mp4", (1,)), ("-ddddddddd-_000084_000094.mp4", (3,))]),
        ("validate.csv", [("---QUuC4vJs_000084_000094.mp4", (3,)), ("--nQbRBEz2s_000104_000114.mp4", (1,))]),
        ("test.csv", [("eeeeeeeeeee_000084_000094.mp4", ()), ("--fffffffff_000007_000017.mp4", ())]),
    ],
)
def test_kinetics_other_splits_have_the_ids_of_train(kinetics, name, rows):
    manifest = read_kinetics(kinetics / name, "/k400/val")
    assert rows_of(manifest) == rows
    assert manifest.classes == ("abseiling", "air drumming", "massaging person's head", "testifying")


def test_kinetics_without_the_training_split(kinetics):
    (kinetics / "train.csv").unlink()
    with pytest.raises(
        ManifestError, match=r"holds the split 'val', .*train\.csv does not exist\. Put .*, or give `classes`"
    ):
        read_kinetics(kinetics / "val.csv", "/k400/val")

    classes = ["air drumming", "testifying"]
    assert rows_of(read_kinetics(kinetics / "val.csv", "/k400/val", classes=classes))[0][1] == (0,)
    assert read_kinetics(kinetics / "test.csv", "/k400/test").classes == ()
    with pytest.raises(ManifestError, match=r"line 3: the label 'testifying' is not among the 1 classes"):
        read_kinetics(kinetics / "val.csv", "/k400/val", classes=classes[:1])


@pytest.mark.parametrize(
    ("val", "train"), [("kinetics-400_val.csv", "kinetics-400_train.csv"), ("val_list.csv", "train_list.csv")]
)
def test_kinetics_finds_the_training_split_by_name(tmp_path, val, train):
    write(tmp_path, {val: KINETICS["val.csv"], train: KINETICS["train.csv"]})
    assert read_kinetics(tmp_path / val, "/k400/val").num_classes == 4


def test_kinetics_replacements_stand_for_their_ids(kinetics):
    replacements = write(
        kinetics / "k400",
        {
            "replacement/replacement_for_corrupted_k400/_dbcJuKJQNs_000040_000050.mp4": "",
            "replacement/replacement_for_corrupted_k400/bbbbbbbbbbb.mp4": "",
            "train/---QUuC4vJs_000084_000094.mp4": "",
            "train/_dbcJuKJQNs_000040_000050.mp4": "",
        },
    )
    arguments = {"replacements": replacements / "replacement" / "replacement_for_corrupted_k400"}

    manifest = read_kinetics(kinetics / "train.csv", kinetics / "k400" / "train", **arguments)
    assert rows_of(manifest) == [
        ("train/---QUuC4vJs_000084_000094.mp4", (3,)),
        ("replacement/replacement_for_corrupted_k400/_dbcJuKJQNs_000040_000050.mp4", (1,)),
        ("train/-3B32lodo2M_000059_000069.mp4", (0,)),
        ("train/aaaaaaaaaaa_000000_000010.mp4", (2,)),
        ("replacement/replacement_for_corrupted_k400/bbbbbbbbbbb.mp4", (3,)),
    ]

    found = read_kinetics(kinetics / "train.csv", kinetics / "k400" / "train", existing_only=True, **arguments)
    assert [labels for _, labels in rows_of(found)] == [(3,), (1,), (3,)]
    assert found.missing == 2


def test_kinetics_replacements_need_their_folder(kinetics):
    with pytest.raises(ManifestError, match=r"gone can't be listed: No such file or directory\. Give the path of an"):
        read_kinetics(kinetics / "train.csv", "/k400/train", replacements=kinetics / "gone")


def test_kinetics_in_a_folder_per_label(kinetics):
    manifest = read_kinetics(kinetics / "validate.csv", "/k700-2020/val", class_folders=True)
    assert rows_of(manifest) == [
        ("testifying/---QUuC4vJs_000084_000094.mp4", (3,)),
        ("air drumming/--nQbRBEz2s_000104_000114.mp4", (1,)),
    ]


def test_kinetics_dead_links(kinetics, caplog):
    write(kinetics, {"videos/-3B32lodo2M_000059_000069.mp4": ""})
    manifest = read_kinetics(kinetics / "train.csv", kinetics / "videos", existing_only=True)
    assert rows_of(manifest) == [("-3B32lodo2M_000059_000069.mp4", (0,))]
    assert manifest.missing == 4
    # All classes count, not just those that are left.
    assert manifest.num_classes == 4
    assert "4 of the 5 videos" in caplog.text


HEADER = "label,youtube_id,time_start,time_end,split\n"


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("", r"train\.csv lists no videos"),
        (HEADER, r"train\.csv lists no videos"),
        ("a.mp4 1\n", r"line 1: the columns are 'a\.mp4 1'; .*split is required\. Give the official"),
        (
            "label,youtube_id,split\nx,aaaaaaaaaaa,train\n",
            r"the columns are 'label,youtube_id,split'; time_start, time_end is",
        ),
        ("youtube_id,time_start,time_end,split\naaaaaaaaaaa,1,2,train\n", r"the columns are .*; label is required"),
        (HEADER + "x,aaaaaaaaaaa,1,2\n", r"line 2: 4 fields; 5 are required, as in the first line"),
        (HEADER + "x,../../etc/x,1,2,train\n", r"line 2: '\.\./\.\./etc/x,1,2' is not a video; an id of 11 letters"),
        (HEADER + "x,aaaaaaaaaaa,one,2,train\n", r"line 2: 'aaaaaaaaaaa,one,2' is not a video"),
        (HEADER + "x,aaaaaaaaaaa,1,-2,train\n", r"line 2: 'aaaaaaaaaaa,1,-2' is not a video"),
        (
            HEADER + ",aaaaaaaaaaa,1,2,train\nx,aaaaaaaaaaa,1,2,train\n",
            r"line 3: a label, but the rows before have none",
        ),
    ],
)
def test_kinetics_broken(tmp_path, content, match):
    write(tmp_path, {"train.csv": content})
    with pytest.raises(ManifestError, match=match):
        read_kinetics(tmp_path / "train.csv", "/videos")


LABELS = {
    "Approaching something with your camera": "0",
    "Putting something on a surface": "2",
    "Holding something": "1",
}
ENTRIES = {
    "train": [
        {
            "id": "78687",
            "label": "holding potato next to vicks vaporub bottle",
            "template": "Holding [something]",
            "placeholders": ["potato"],
        },
        {
            "id": "42326",
            "label": "putting pen",
            "template": "Putting [something] on a surface",
            "placeholders": ["pen"],
        },
    ],
    "validation": [
        {"id": "1", "label": "approaching", "template": "Approaching [something] with your camera", "placeholders": []}
    ],
    "test": [{"id": "1420"}, {"id": "3"}],
}


@pytest.fixture(params=["", "something-something-v2-"], ids=["new names", "old names"])
def something(tmp_path, request):
    files = {f"{request.param}{split}.json": json.dumps(entries) for split, entries in ENTRIES.items()}
    files[f"{request.param}labels.json"] = json.dumps(LABELS)
    files["test-answers.csv"] = "1420;Putting something on a surface\n3;Holding something\n"
    write(tmp_path, files)
    return lambda split: tmp_path / f"{request.param}{split}.json"


@pytest.mark.parametrize(
    ("split", "rows"),
    [
        ("train", [("78687.webm", (1,)), ("42326.webm", (2,))]),
        ("validation", [("1.webm", (0,))]),
        ("test", [("1420.webm", ()), ("3.webm", ())]),
    ],
)
def test_something_something(something, split, rows):
    manifest = read_something_something(something(split), "/20bn-something-something-v2")
    assert rows_of(manifest) == rows
    assert manifest.classes == (
        "Approaching something with your camera",
        "Holding something",
        "Putting something on a surface",
    )


def test_something_something_test_answers(something):
    answers = something("test").parent / "test-answers.csv"
    manifest = read_something_something(something("test"), "/videos", answers_file=answers)
    assert rows_of(manifest) == [("1420.webm", (2,)), ("3.webm", (1,))]


def test_something_something_as_frames(something):
    manifest = read_something_something(something("train"), "/frames", frame_rate=30)
    assert [path for path, _ in rows_of(manifest)] == ["78687", "42326"]
    assert manifest.frame_rate == 30.0


def test_something_something_labels_elsewhere(tmp_path):
    write(tmp_path, {"a/train.json": json.dumps(ENTRIES["train"]), "b/l.json": json.dumps(LABELS)})
    manifest = read_something_something(tmp_path / "a/train.json", "/videos", labels_file=tmp_path / "b/l.json")
    assert manifest.labels(0) == (1,)


@pytest.mark.parametrize(
    ("files", "match"),
    [
        ({"train.json": "["}, r"train\.json is not JSON: Expecting value: line 1 column 2 .* Download the file again"),
        ({"train.json": ""}, r"train\.json is not JSON"),
        ({"train.json": "[" * 100_000}, r"train\.json is not JSON: .*recursion"),
        ({"train.json": "[]"}, r"train\.json lists no videos"),
        ({"train.json": json.dumps(LABELS)}, r"train\.json does not hold a list of videos\. Give the official train"),
        ({"train.json": "[1]"}, r"entry 1: a number as `id` and a text as `template` are required"),
        ({"train.json": '[{"id": "../../x", "template": "Holding something"}]'}, r"entry 1: a number as `id`"),
        ({"train.json": '[{"id": true, "template": "Holding something"}]'}, r"entry 1: a number as `id`"),
        ({"train.json": '[{"id": "1", "template": ["Holding something"]}]'}, r"entry 1: .* a text as `template`"),
        ({"train.json": '[{"id": "1", "template": "Eating"}]'}, r"the template 'Eating' is not among the 3 labels"),
        ({"train.json": '[{"id": "1", "template": "Holding [something]"}, {"id": "2"}]'}, r"entry 2: no label, but"),
        ({"labels.json": "{}"}, r"the template 'Holding something' is not among the 0 labels"),
        ({"labels.json": '["Holding something"]'}, r"labels\.json does not hold labels with the ids 0, 1, 2 and so on"),
        ({"labels.json": '{"Holding something": "1"}'}, r"labels\.json does not hold labels with the ids 0, 1, 2"),
        ({"labels.json": '{"Holding something": []}'}, r"labels\.json does not hold labels with the ids 0, 1, 2"),
        ({"labels.json": "\udcff"}, r"labels\.json is not JSON: 'utf-8' codec can't decode"),
    ],
)
def test_something_something_broken(tmp_path, files, match):
    for name, content in {
        "train.json": json.dumps(ENTRIES["train"]),
        "labels.json": json.dumps(LABELS),
        **files,
    }.items():
        (tmp_path / name).write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(ManifestError, match=match):
        read_something_something(tmp_path / "train.json", "/videos")


@pytest.mark.parametrize(
    ("answers", "match"),
    [
        ("1420;Putting something on a surface\n", r"entry 2: no answer for video '3'\. Give the answers of this split"),
        ("1420,Putting something on a surface\n", r"answers\.csv, line 1: 1 fields, `id;label` is required"),
        ("1420;Putting\n3;Holding something\n", r"entry 1: the template 'Putting' is not among the 3 labels"),
    ],
)
def test_something_something_broken_answers(tmp_path, answers, match):
    write(
        tmp_path, {"test.json": json.dumps(ENTRIES["test"]), "labels.json": json.dumps(LABELS), "answers.csv": answers}
    )
    with pytest.raises(ManifestError, match=match):
        read_something_something(tmp_path / "test.json", "/videos", answers_file=tmp_path / "answers.csv")


def test_something_something_labels_missing(tmp_path):
    write(tmp_path, {"train.json": json.dumps(ENTRIES["train"])})
    with pytest.raises(ManifestError, match=r"labels\.json does not exist"):
        read_something_something(tmp_path / "train.json", "/videos")


UCF101 = {
    "classInd.txt": "1 ApplyEyeMakeup\r\n2 ApplyLipstick\r\n3 Archery\r\n",
    "trainlist01.txt": "ApplyEyeMakeup/v_ApplyEyeMakeup_g08_c01.avi 1\nArchery/v_Archery_g08_c01.avi 3\n",
    "testlist01.txt": "ApplyLipstick/v_ApplyLipstick_g01_c01.avi\nArchery/v_Archery_g01_c02.avi\n",
}


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("train", [("ApplyEyeMakeup/v_ApplyEyeMakeup_g08_c01.avi", (0,)), ("Archery/v_Archery_g08_c01.avi", (2,))]),
        ("test", [("ApplyLipstick/v_ApplyLipstick_g01_c01.avi", (1,)), ("Archery/v_Archery_g01_c02.avi", (2,))]),
    ],
)
def test_ucf101(tmp_path, name, rows):
    manifest = read_ucf101(write(tmp_path, UCF101) / f"{name}list01.txt", "/UCF-101")
    assert rows_of(manifest) == rows
    assert manifest.classes == ("ApplyEyeMakeup", "ApplyLipstick", "Archery")


def test_ucf101_classes_elsewhere(tmp_path):
    write(tmp_path, {"classes": UCF101["classInd.txt"], "lists/trainlist02.txt": "Archery/a.avi 3\n"})
    manifest = read_ucf101(tmp_path / "lists/trainlist02.txt", "/UCF-101", classes_file=tmp_path / "classes")
    assert rows_of(manifest) == [("Archery/a.avi", (2,))]


@pytest.mark.parametrize(
    ("files", "match"),
    [
        (
            {"trainlist01.txt": "Archery/a.avi 0\n"},
            r"line 1: 'Archery/a\.avi 0.*' is not `Class/video\.avi` .* from 1 to 3",
        ),
        ({"trainlist01.txt": "Archery/a.avi 3\nArchery/b.avi 4\n"}, r"line 2: 'Archery/b\.avi 4"),
        ({"trainlist01.txt": "Archery/a.avi x\n"}, r"line 1: 'Archery/a\.avi x"),
        ({"trainlist01.txt": "Archery/a.avi 1;2\n"}, r"line 1: 'Archery/a\.avi 1;2"),
        ({"trainlist01.txt": "Archery/a.avi 1 2\n"}, r"line 1: 'Archery/a\.avi 1 2"),
        ({"trainlist01.txt": "Eating/a.avi\n"}, r"line 1: 'Eating/a\.avi.*' is not `Class/video\.avi` with a class of"),
        ({"trainlist01.txt": "../a.avi 1\n"}, r"line 1: the path '\.\./a\.avi' leads out of the root"),
        ({"trainlist01.txt": "\n"}, r"trainlist01\.txt lists no videos"),
        ({"classInd.txt": "1 A\n3 B\n"}, r"classInd\.txt: '3 B', where `2 name` is required\. Give the official list"),
        ({"classInd.txt": "1\n"}, r"classInd\.txt: '1', where `1 name` is required"),
        ({"classInd.txt": "1 A\n2 A\n"}, r"`classes` has 'A' more than once"),
    ],
)
def test_ucf101_broken(tmp_path, files, match):
    with pytest.raises(ManifestError, match=match):
        read_ucf101(write(tmp_path, {**UCF101, **files}) / "trainlist01.txt", "/UCF-101")


HMDB51 = {
    "brush_hair_test_split1.txt": "April_09_brush_hair_u_nm_np1_ba_goo_0.avi 1 \n#20_hair!(odd)+[x]&_0.avi 2 \n",
    "brush_hair_test_split2.txt": "April_09_brush_hair_u_nm_np1_ba_goo_0.avi 2 \n",
    "cartwheel_test_split1.txt": "(Rad)Schlag_die_Bank!_cartwheel_f_cm_np1_le_med_0.avi 1 \nunused.avi 0 \n\n",
    "cartwheel_test_split2.txt": "unused.avi 1 \n",
    "readme.txt": "not a split",
}


@pytest.mark.parametrize(
    ("split", "subset", "rows"),
    [
        (
            1,
            "train",
            [
                ("brush_hair/April_09_brush_hair_u_nm_np1_ba_goo_0.avi", (0,)),
                ("cartwheel/(Rad)Schlag_die_Bank!_cartwheel_f_cm_np1_le_med_0.avi", (1,)),
            ],
        ),
        (1, "test", [("brush_hair/#20_hair!(odd)+[x]&_0.avi", (0,))]),
        (2, "train", [("cartwheel/unused.avi", (1,))]),
        (2, "test", [("brush_hair/April_09_brush_hair_u_nm_np1_ba_goo_0.avi", (0,))]),
    ],
)
def test_hmdb51(tmp_path, split, subset, rows):
    manifest = read_hmdb51(write(tmp_path, HMDB51), "/hmdb51", split=split, subset=subset)
    assert rows_of(manifest) == rows
    assert manifest.classes == ("brush_hair", "cartwheel")


@pytest.mark.parametrize(
    ("content", "arguments", "match"),
    [
        ("a.avi 1\n", {"split": 3}, r"holds no <class>_test_split3\.txt\. Give the folder testTrainMulti_7030_splits"),
        ("a.avi 1\n", {"subset": "val"}, r"`subset` must be 'train' or 'test', got 'val'"),
        ("a.avi 3\n", {}, r"run_test_split1\.txt, line 1: 'a\.avi 3.*' is not `video\.avi` and 0, 1 or 2"),
        ("a.avi\n", {}, r"run_test_split1\.txt, line 1: 'a\.avi.*' is not `video\.avi` and 0, 1 or 2"),
        ("../../a.avi 1\n", {}, r"run_test_split1\.txt, line 1: the path .* leads out of the root"),
        ("a.avi 2\n", {}, r"lists no videos"),
    ],
)
def test_hmdb51_broken(tmp_path, content, arguments, match):
    with pytest.raises(ManifestError, match=match):
        read_hmdb51(write(tmp_path, {"run_test_split1.txt": content}), "/hmdb51", **arguments)


READERS = {
    "train.csv": (KINETICS, lambda path: read_kinetics(path, "/videos")),
    "val.csv": (KINETICS, lambda path: read_kinetics(path, "/videos", class_folders=True)),
    "train.json": (
        {"train.json": json.dumps(ENTRIES["train"]), "labels.json": json.dumps(LABELS)},
        lambda path: read_something_something(path, "/videos"),
    ),
    "trainlist01.txt": (UCF101, lambda path: read_ucf101(path, "/videos")),
    "brush_hair_test_split1.txt": (HMDB51, lambda path: read_hmdb51(path.parent, "/videos")),
}


@pytest.mark.parametrize("name", READERS)
@given(seed=seeds())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_mutated_files_are_read_or_refused(tmp_path, name, seed):
    files, read = READERS[name]
    rng = random.Random(seed)
    write(tmp_path, files)
    # Now and then the file beside it.
    broken = name if rng.random() < 0.7 else rng.choice(sorted(files))
    (tmp_path / broken).write_bytes(mutate(files[broken].encode(), rng))
    try:
        manifest = read(tmp_path / name)
    except ManifestError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        check_rows(manifest)
