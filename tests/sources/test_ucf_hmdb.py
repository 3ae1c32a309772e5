"""UCF101 and HMDB51: the official files of their splits, and broken ones."""

import pytest

from lightning_multigrid.sources.text import ManifestError
from lightning_multigrid.sources.ucf_hmdb import HMDB51, UCF101
from tests.helpers.annotations import read_mutated, rows_of, write_files
from tests.helpers.mutations import fuzzed

UCF101_FILES = {
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
    manifest = UCF101(write_files(tmp_path, UCF101_FILES) / f"{name}list01.txt", "/UCF-101").read()
    assert rows_of(manifest) == rows
    assert manifest.classes == ("ApplyEyeMakeup", "ApplyLipstick", "Archery")


def test_ucf101_classes_elsewhere(tmp_path):
    write_files(tmp_path, {"classes": UCF101_FILES["classInd.txt"], "lists/trainlist02.txt": "Archery/a.avi 3\n"})
    manifest = UCF101(tmp_path / "lists/trainlist02.txt", "/UCF-101", classes_file=tmp_path / "classes").read()
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
        UCF101(write_files(tmp_path, {**UCF101_FILES, **files}) / "trainlist01.txt", "/UCF-101").read()


HMDB51_FILES = {
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
    manifest = HMDB51(write_files(tmp_path, HMDB51_FILES), "/hmdb51", split=split, subset=subset).read()
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
        HMDB51(write_files(tmp_path, {"run_test_split1.txt": content}), "/hmdb51", **arguments).read()


@fuzzed()
def test_mutated_ucf101_is_read_or_refused(tmp_path, numbers):
    read = UCF101(tmp_path / "trainlist01.txt", "/videos").read
    for seed in numbers:
        read_mutated(tmp_path, UCF101_FILES, "trainlist01.txt", read, seed)


@fuzzed()
def test_mutated_hmdb51_is_read_or_refused(tmp_path, numbers):
    for seed in numbers:
        read_mutated(tmp_path, HMDB51_FILES, "brush_hair_test_split1.txt", HMDB51(tmp_path, "/videos").read, seed)
