"""Kinetics: files as CVDF distributes them, and broken ones."""

import pytest

from lightning_multigrid.sources.kinetics import Kinetics
from lightning_multigrid.sources.text import ManifestError
from tests.helpers.annotations import read_mutated, rows_of, write_files
from tests.helpers.mutations import fuzzed

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
    return write_files(tmp_path, KINETICS)


def test_kinetics_train(kinetics):
    manifest = Kinetics(kinetics / "train.csv", "/k400/train").read()
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
    manifest = Kinetics(kinetics / name, "/k400/val").read()
    assert rows_of(manifest) == rows
    assert manifest.classes == ("abseiling", "air drumming", "massaging person's head", "testifying")


def test_kinetics_without_the_training_split(kinetics):
    (kinetics / "train.csv").unlink()
    with pytest.raises(ManifestError, match=r"the split 'val', .*train\.csv does not exist\. Put .* give `classes`"):
        Kinetics(kinetics / "val.csv", "/k400/val").read()
    classes = ["air drumming", "testifying"]
    assert rows_of(Kinetics(kinetics / "val.csv", "/k400/val", classes=classes).read())[0][1] == (0,)
    assert Kinetics(kinetics / "test.csv", "/k400/test").read().classes == ()
    with pytest.raises(ManifestError, match=r"line 3: 'testifying' is not among the 1 classes of train.csv"):
        Kinetics(kinetics / "val.csv", "/k400/val", classes=classes[:1]).read()


@pytest.mark.parametrize("name", ["kinetics-400_{}.csv", "{}_list.csv"])
def test_kinetics_finds_the_training_split_by_name(tmp_path, name):
    write_files(tmp_path, {name.format(split): KINETICS[f"{split}.csv"] for split in ("val", "train")})
    assert Kinetics(tmp_path / name.format("val"), "/k400/val").read().num_classes == 4


def test_kinetics_replacements_stand_for_their_ids(kinetics):
    replacements = write_files(
        kinetics / "k400",
        {
            "replacement/replacement_for_corrupted_k400/_dbcJuKJQNs_000040_000050.mp4": "",
            "replacement/replacement_for_corrupted_k400/bbbbbbbbbbb.mp4": "",
            "train/---QUuC4vJs_000084_000094.mp4": "",
            "train/_dbcJuKJQNs_000040_000050.mp4": "",
        },
    )
    arguments = {"replacements": replacements / "replacement" / "replacement_for_corrupted_k400"}
    manifest = Kinetics(kinetics / "train.csv", kinetics / "k400" / "train", **arguments).read()
    assert rows_of(manifest) == [
        ("train/---QUuC4vJs_000084_000094.mp4", (3,)),
        ("replacement/replacement_for_corrupted_k400/_dbcJuKJQNs_000040_000050.mp4", (1,)),
        ("train/-3B32lodo2M_000059_000069.mp4", (0,)),
        ("train/aaaaaaaaaaa_000000_000010.mp4", (2,)),
        ("replacement/replacement_for_corrupted_k400/bbbbbbbbbbb.mp4", (3,)),
    ]
    found = Kinetics(kinetics / "train.csv", kinetics / "k400" / "train", existing_only=True, **arguments).read()
    assert [labels for _, labels in rows_of(found)] == [(3,), (1,), (3,)]
    assert found.missing == 2


def test_kinetics_replacements_need_their_folder(kinetics):
    with pytest.raises(ManifestError, match=r"gone can't be listed: No such file or directory\. Give the path of an"):
        Kinetics(kinetics / "train.csv", "/k400/train", replacements=kinetics / "gone").read()


def test_kinetics_in_a_folder_per_label(kinetics):
    manifest = Kinetics(kinetics / "validate.csv", "/k700-2020/val", class_folders=True).read()
    assert rows_of(manifest) == [
        ("testifying/---QUuC4vJs_000084_000094.mp4", (3,)),
        ("air drumming/--nQbRBEz2s_000104_000114.mp4", (1,)),
    ]


def test_kinetics_dead_links(kinetics, caplog):
    write_files(kinetics, {"videos/-3B32lodo2M_000059_000069.mp4": ""})
    manifest = Kinetics(kinetics / "train.csv", kinetics / "videos", existing_only=True).read()
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
    write_files(tmp_path, {"train.csv": content})
    with pytest.raises(ManifestError, match=match):
        Kinetics(tmp_path / "train.csv", "/videos").read()


@pytest.mark.parametrize(("name", "folders"), [("train.csv", False), ("val.csv", True)])
@fuzzed()
def test_mutated_files_are_read_or_refused(tmp_path, name, folders, numbers):
    for seed in numbers:
        read_mutated(tmp_path, KINETICS, name, Kinetics(tmp_path / name, "/videos", class_folders=folders).read, seed)
