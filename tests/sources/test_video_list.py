"""Lists of `path label` in every form that people have, folders per class, and what is no manifest at all."""

import csv
import os
import random
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from torchvision.datasets.folder import make_dataset

from lightning_multigrid.sources import ManifestError, VideoList, holds_frames, save_list
from lightning_multigrid.sources.builder import ManifestBuilder
from lightning_multigrid.video.datamodule import VideoDataModule
from tests.helpers.annotations import read_or_refused, rows_of
from tests.helpers.mutations import fuzzed, mutate


@pytest.fixture
def read(tmp_path):
    def read_content(content, **arguments):
        (path := tmp_path / "list.csv").write_bytes(content.encode() if isinstance(content, str) else content)
        return VideoList(path, **arguments).read()

    return read_content


TWO = [("a/b.mp4", (3,)), ("c.mp4", (0,))]


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_what_cannot_be_a_path(path, read):
    with pytest.raises(ValueError, match="`source` is '.*', which is not a path"):
        VideoList(path).read()
    with pytest.raises(ValueError, match="`root` is '.*', which is not a path"):
        read("a/b.mp4 3", root=path)


FORMS = {
    "space": ("a/b.mp4 3\nc.mp4 0\n", TWO),
    "comma": ("a/b.mp4,3\nc.mp4,0\n", TWO),
    "tab": ("a/b.mp4\t3\nc.mp4\t0\n", TWO),
    "comma and space": ("a/b.mp4, 3\nc.mp4, 0\n", TWO),
    "tab and spaces": ("a/b.mp4 \t 3\nc.mp4\t0\t\n".replace("\t\n", "\n"), TWO),
    "Windows": ("a/b.mp4,3\r\nc.mp4,0\r\n", TWO),
    "byte order mark": (b"\xef\xbb\xbfa/b.mp4 3\nc.mp4 0\n", TWO),
    "blank lines": ("\n\na/b.mp4 3\n  \n\nc.mp4 0\n\n", TWO),
    "header": ("path,label\na/b.mp4,3\nc.mp4,0\n", TWO),
    "more columns": ("id,path,seconds,label,split\n1,a/b.mp4,10,3,val\n2,c.mp4,9,0,val", TWO),
    "quoted path": ('"a b, c.mp4" 3\n', [("a b, c.mp4", (3,))]),
    "quote in quotes": ('"the ""end"".mp4" 3\n', [('the "end".mp4', (3,))]),
    "quote within": ('the"end".mp4 3\n', [('the"end".mp4', (3,))]),
    "space in path, comma": ("a b c.mp4,3\nd,0\n", [("a b c.mp4", (3,)), ("d", (0,))]),
    "both in path, tab": ("a, b.mp4\t3\nc 1.mp4\t0", [("a, b.mp4", (3,)), ("c 1.mp4", (0,))]),
    "starts with #": ("#20_Rhythm.avi 3\n", [("#20_Rhythm.avi", (3,))]),
    "utf-8": ("été/漢字 🎬.mp4\t3\n", [("été/漢字 🎬.mp4", (3,))]),
    "no labels": ("a/b.mp4\nc.mp4\n", [("a/b.mp4", ()), ("c.mp4", ())]),
    "no labels, header": ("path\na/b.mp4\nc.mp4\n", [("a/b.mp4", ()), ("c.mp4", ())]),
    "empty labels": ("a/b.mp4,\nc.mp4,\n", [("a/b.mp4", ()), ("c.mp4", ())]),
}


@pytest.mark.parametrize(("content", "rows"), FORMS.values(), ids=FORMS)
def test_forms_of_lists(read, content, rows):
    manifest = read(content)
    assert rows_of(manifest) == rows
    assert not manifest.multi_label
    assert manifest.labelled == bool(rows[0][1])


MANY = [("a.mp4", (1, 5)), ("b.mp4", (3,)), ("c.mp4", ())]


@pytest.mark.parametrize(
    "content",
    [
        'a.mp4 "1,5"\nb.mp4 "3"\nc.mp4 ""\n',
        'a.mp4,"1,5"\nb.mp4,3\nc.mp4,""\n',
        "a.mp4,1;5\nb.mp4,3\nc.mp4,\n",
        "a.mp4\t1;5\nb.mp4\t3\nc.mp4\n",
        'a.mp4,"5; 1"\nb.mp4,3\nc.mp4,\n',
        'path label\na.mp4 "1, 5"\nb.mp4 3\nc.mp4 ""\n',
    ],
)
def test_several_labels(read, content):
    manifest = read(content, multi_label=True)
    assert rows_of(manifest) == MANY
    assert manifest.multi_label


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=30)
PATHS = TEXT.filter(
    lambda path: path == os.path.normpath(path.strip(" \t")) and path.split("/")[0] not in ("", ".", "..")
)


@given(st.lists(st.tuples(PATHS, st.integers(0, 10**6)), min_size=1, max_size=8), st.sampled_from(" ,\t"))
@example([("a 1", 5)], ",")
@example([("1,5", 2), ('"', 3)], " ")
@example([("path", 0), ("\r\n", 1)], "\t")
def test_reads_what_a_spreadsheet_writes(tmp_path_factory, rows, separator):
    path = tmp_path_factory.mktemp("list") / "list.csv"
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=separator, quoting=csv.QUOTE_ALL).writerows(rows)
    manifest = VideoList(path).read()
    root = str(path.parent)
    expected = [(f"{root}/{name}", label) for name, label in rows]
    assert [(manifest.path(index), manifest.label(index)) for index in range(len(manifest))] == expected


NO_LISTS = {
    "empty": ("", r"list\.csv lists no videos\. Give it a row, `path label`"),
    "header only": ("path,label\n\n", "lists no videos"),
    "name": (
        "a.mp4 1\nb.mp4 run\n",
        r"line 2: the label 'run' is not of the kind of '1' in line 1: .* all numbers .* or all names",
    ),
    "other header": ("clip_id,kind\na.mp4,1\n", r"line 1: the label 'kind' .* name the columns \(`path,label`"),
    "number among names": ("a.mp4 run\nb.mp4 2\n", r"line 2: the label '2' is not of the kind of 'run' in line 1"),
    "two columns": ("path,label,Label\na.mp4,1,2\n", r"line 1: two columns are named `label`\. Rename the one"),
    "no value of pandas": ("path,label\na.mp4,nan\n", r"line 2: the label 'nan' is not a number from 0"),
    "two names": ("a.mp4,run;jump\n", r"line 1: the label 'run;jump' is several names, .* Pass `multi_label=True`"),
    "name on two lines": ('a.mp4,"high\njump"\n', r"line 2: the label 'high\\njump' is not a number"),
    "space, header, no quotes": ("path label\nmy video.mp4\n", r"line 2: the label 'video\.mp4' is not a number"),
    "negative": ("a.mp4 1\n\nb.mp4 -1\n", r"line 3: the label '-1' is not a number from 0"),
    "float": ("a.mp4 1.0\n", r"line 1: the label '1\.0' is not a number"),
    "digit of another script": ("a.mp4 ٣\n", r"line 1: the label '٣' is not a number"),
    "large number": ("a.mp4 4294967296", r"line 1: the label '4294967296' is not a number"),
    "two labels": ("a.mp4 1;5\n", r"line 1: 2 labels \(1, 5\), one is required\. Pass `multi_label=True`"),
    "space, no quotes": ("my video.mp4\n", r"the label 'video\.mp4' is not a number .* double quotes"),
    "comma, no quotes": ("a,b.mp4 3\n", r"the label 'b\.mp4 3' is not a number .* double quotes"),
    "three fields": ("my video.mp4 3\n", r"3 fields \('my, video\.mp4, 3'\), as it was split at ' '; `path label` or"),
    "no column of paths": ("id,name,label\n1,a.mp4,jump\n", r"3 fields .* a header needs a column path, file_name, "),
    "stretch, no header": ("a.mp4,3,0.5,2\n", r"line 1: 4 fields .* for stretches `path,label,start,end`"),
    "long row": ("path,label\na.mp4,1,2\n", r"line 2: 3 fields .*, as it was split at ','; 2 are named"),
    "short row": ("id,path,label\n1,a.mp4,2\n2,b.mp4\n", r"line 3: some rows have a label, and some have none"),
    "other times": (
        "path,label,startTime,stop\na.mp4,0,1,2\n",
        r"line 1: `starttime` may say where a stretch begins or ends, .* Rename `starttime` and `stop`",
    ),
    "other end": ("path,label,start,stop\na.mp4,0,1,2\n", r"line 1: stretches need two columns, `start` and `end`"),
    "no time": ("path,label,start,end\na.mp4,0,soon,\n", r"line 2: the start or end 'soon' is not a number of seconds"),
    "open quote": ('"a.mp4 1\nb.mp4 2\n', r"line 2: unexpected end of data\. Check the double quotes"),
    "closed quote": ('a.mp4 1\n"b"c 2\n', r"line 2: ' ' expected after '\"'\. Check the double quotes"),
    "no path": (',3\n"",4\n', r"line 1: '' is not the path of a file"),
    "UTF-16": ("a.mp4,jump\n".encode("utf-16"), r"list\.csv is not text in UTF-8, .* in UTF-16: .* Save it as UTF-8"),
    "a video": (b"\0\0\0 ftypisom", r"list\.csv is not text in UTF-8"),
    "huge field": ('"' + "a\n" * 70_000 + '" 1', r"line \d+: field larger than field limit"),
    "parent": ("a.mp4 1\n../b.mp4 2\n", r"line 2: the path '\.\./b\.mp4' leads out of the root"),
    "Kinetics": (
        "label,youtube_id,time_start,time_end,split\nrun,a,0,1,train\n",
        r"line 1: 5 fields .* read official annotation files with `Kinetics`",
    ),
    "JSON": ('[{"id":"1", "template": "Holding"}]', r"line 1: "),
}

NAMED = [("b.mp4", (2,)), ("a.mp4", (0,)), ("c.mp4", (0,)), ("d.mp4", (1,))]  # run, brush hair, jump
NAMES = {
    "no header": "b.mp4,run\na.mp4,brush hair\nc.mp4,brush hair\nd.mp4,jump\n",
    "space": 'b.mp4 run\na.mp4 "brush hair"\nc.mp4 "brush hair"\nd.mp4 jump\n',
    "semicolon": "path;label\nb.mp4;run\na.mp4;brush hair\nc.mp4;brush hair\nd.mp4;jump\n",
    "pipe": "b.mp4|run\na.mp4|brush hair\nc.mp4|brush hair\nd.mp4|jump\n",
    "Hugging Face's": "file_name,label\nb.mp4,run\na.mp4,brush hair\nc.mp4,brush hair\nd.mp4,jump\n",
    "a spreadsheet's": (
        '\ufeffNo.,Class,Video,Note\r\n1,run,b.mp4,\r\n2,brush hair,a.mp4,"so, so"\r\n'
        '3,brush hair,c.mp4,"a ""good"" one"\r\n4,"jump",d.mp4,'
    ),
    "capitals and quotes": (
        '"PATH", "Label"\n"b.mp4", "run"\n"a.mp4", "brush hair"\n"c.mp4", "brush hair"\n"d.mp4", "jump"'
    ),
    "the first of several columns": (
        "video,path,action,label\nx,b.mp4,y,run\nx,a.mp4,y,brush hair\nx,c.mp4,y,brush hair\nx,d.mp4,y,jump"
    ),
}


@pytest.mark.parametrize("content", NAMES.values(), ids=NAMES)
def test_labels_may_be_the_names_of_classes(read, content):
    manifest = read(content)
    assert manifest.classes == ("brush hair", "jump", "run")
    assert rows_of(manifest) == NAMED


@pytest.mark.parametrize(("name", "reads"), [("list.json", r"\(path\)"), ("list.jsonl", r"\(path, lines=True\)")])
def test_json_is_no_list(tmp_path, name, reads):
    (tmp_path / name).write_text('{"path": "a.mp4", "label": 0}')
    with pytest.raises(ManifestError, match=rf"{name} is JSON, and a list is a CSV .*: `pandas\.read_json{reads}\.to"):
        VideoList(tmp_path / name).read()


def test_another_split_has_the_classes_of_training_and_no_other(read):
    manifest = read("a.mp4,run\n")
    assert (manifest.classes, rows_of(manifest)) == (("run",), [("a.mp4", (0,))])
    (path := Path(manifest.origin)).write_text("a.mp4,run\nb.mp4,brush hair\n")
    other = VideoList(path).read(["brush hair", "jump", "run"])
    assert (other.num_classes, rows_of(other)) == (3, [("a.mp4", (2,)), ("b.mp4", (0,))])
    with pytest.raises(ManifestError, match=r"line 2: 'brush hair' is not among the 2 classes, such as 'jump'\. Corr"):
        VideoList(path).read(["jump", "run"])


def test_classes_may_be_a_file(read, tmp_path):
    (tmp_path / "classes.txt").write_text("\ufeffrun\r\njump; high\r\n\r\nbrush hair\r\n", encoding="utf-8")
    manifest = read("a.mp4,brush hair\nb.mp4,jump; high\n", classes=tmp_path / "classes.txt")
    assert manifest.classes == ("run", "jump; high", "brush hair")
    assert [label for _, label in rows_of(manifest)] == [(2,), (1,)]
    assert read("a.mp4 2\n", classes=str(tmp_path / "classes.txt")).classes == manifest.classes
    with pytest.raises(ManifestError, match=r"line 1: 'fly' is not among the 3 classes"):
        read("a.mp4,fly\n", classes=tmp_path / "classes.txt")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("run\njump\nrun\n", r"classes\.txt names the class 'run' twice\. Leave one of its lines out"),
        ("\n\n", r"classes\.txt names no class\. Write one on each line"),
        (None, r"classes\.txt can't be read"),
    ],
)
def test_what_is_no_file_of_classes(read, tmp_path, content, match):
    if content is not None:
        (tmp_path / "classes.txt").write_text(content)
    with pytest.raises(ManifestError, match=match):
        read("a.mp4,run\n", classes=tmp_path / "classes.txt")


def test_several_names(read):
    manifest = read("path,label\na.mp4,run;jump\nb.mp4,fly\nc.mp4,\n", multi_label=True)
    assert manifest.classes == ("fly", "jump", "run")
    assert [labels for _, labels in rows_of(manifest)] == [(1, 2), (0,), ()]
    with pytest.raises(ManifestError, match="line 1: the label 'run, jump' may be several names, .* Part names by `;`"):
        read('a.mp4 "run, jump"\nb.mp4 fly\n', multi_label=True)
    with pytest.raises(ManifestError, match="line 1: the label 'run;;jump' is not a number from 0"):
        read("a.mp4,run;;jump\n", multi_label=True)


def test_names_of_folders_of_frames_need_a_header(read):
    assert read("path,label\nv 1,run\n", frame_rate=30).classes == ("run",)
    with pytest.raises(ManifestError, match=r"line 1: the label 'run' is not .* let the first row name the columns"):
        read("v 1,run\n", frame_rate=30)


def test_a_video_folder_of_hugging_face_has_its_list_in_it(tmp_path):
    touch(tmp_path, "a.mp4", "run/b.mp4", "run/other.mp4")
    (tmp_path / "metadata.csv").write_text("file_name,text")  # without labels, it leaves the folder as it is
    (tmp_path / "a.mp4").rename(tmp_path / "run" / "a.mp4")
    assert VideoList(tmp_path).read().classes == ("run",)
    (tmp_path / "metadata.csv").write_text("file_name,label\nrun/b.mp4,run\nrun/a.mp4,jump\n")
    manifest = VideoList(tmp_path).read()
    assert (manifest.root, manifest.classes) == (str(tmp_path), ("jump", "run"))
    assert rows_of(manifest) == [("run/b.mp4", (1,)), ("run/a.mp4", (0,))]
    (tmp_path / "metadata.csv").rename(tmp_path / "metadata.jsonl")
    with pytest.raises(ManifestError, match=r"metadata\.jsonl is JSON"):
        VideoList(tmp_path).read()


def test_a_video_is_no_list(tmp_path):
    (tmp_path / "a.MP4").write_bytes(b"\0\0\0 ftypisom")
    with pytest.raises(ManifestError, match=r"a\.MP4 is a video\. Give the folder that it is in, or a list"):
        VideoList(tmp_path / "a.MP4").read()


@pytest.mark.parametrize(("content", "match"), NO_LISTS.values(), ids=NO_LISTS)
def test_what_is_no_list(read, content, match):
    with pytest.raises(ManifestError, match=match) as error:
        read(content)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 600


def test_labels_within_the_classes(read):
    assert read("a 1", classes=["x", "y"]).classes == ("x", "y")
    with pytest.raises(ManifestError, match=r"line 2: label 2 is not from 0 to 1\. Number classes"):
        read("a 1\nb 2", classes=["x", "y"])


def test_absolute_paths_need_no_root_and_lie_in_a_given_one(read):
    content = "/videos/a.mp4 1\n"
    assert read(content).path(0) == "/videos/a.mp4"
    assert read(content, root="/videos").path(0) == "/videos/a.mp4"
    assert read(content, root="/else", allow_outside_root=True).path(0) == "/videos/a.mp4"
    with pytest.raises(ManifestError, match=r"line 1: the path '/videos/a\.mp4' leads out of the root '/else'"):
        read(content, root="/else")


def test_relative_paths_start_from_the_list_or_from_the_root(read, tmp_path):
    assert read("a.mp4 1\n").path(0) == str(tmp_path / "a.mp4")
    assert read("a.mp4 1\n", root="/videos").path(0) == "/videos/a.mp4"


def test_a_list_in_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "-list").write_text("a.mp4 1\n")
    monkeypatch.chdir(tmp_path)
    assert VideoList("-list").read().path(0) == str(tmp_path / "a.mp4")


def test_a_list_is_read_without_a_look_at_the_videos(read, monkeypatch):
    """Hundreds of thousands of files on a network disk."""
    looked = []
    for name in ("stat", "lstat"):
        real = getattr(os, name)
        looks = lambda path, real=real, **options: looked.append(str(path)) or real(path, **options)  # noqa: E731
        monkeypatch.setattr(os, name, looks)
    monkeypatch.setattr(os, "scandir", None)
    read("a.mp4 1\nb/c.mp4 2\n")
    assert looked
    assert not [path for path in looked if path.endswith(".mp4")]


def test_folders_of_frames(read):
    manifest = read("abc 1\ndef/ 0\n", frame_rate=30)
    assert rows_of(manifest) == [("abc", (1,)), ("def", (0,))]
    assert manifest.images_per_second == 30.0


def test_existing_only(read, tmp_path, caplog):
    (tmp_path / "b.mp4").touch()
    manifest = read("a.mp4 1\nb.mp4 2\n", existing_only=True)
    assert rows_of(manifest) == [("b.mp4", (2,))]
    assert manifest.missing == 1
    assert "1 of the 2 videos listed in" in caplog.text


@pytest.mark.parametrize("source", [None, 3, b"list.csv", ["list.csv"]])
def test_a_source_is_a_path(source):
    with pytest.raises(TypeError, match="`source` must be a path"):
        VideoList(source).read()


def test_what_cannot_be_read(tmp_path):
    with pytest.raises(ManifestError, match=r"gone\.csv can't be read: No such file or directory \(looked for in "):
        VideoList(tmp_path / "gone.csv").read()
    with pytest.raises(ManifestError, match=r"can't be read: File name too long"):
        VideoList(tmp_path / ("x" * 300)).read()
    (tmp_path / "videos" / "run").mkdir(parents=True)
    (tmp_path / "videos" / "run").chmod(0)
    if not os.access(tmp_path / "videos" / "run", os.R_OK):
        with pytest.raises(ManifestError, match=r"run can't be listed: Permission denied"):
            VideoList(tmp_path / "videos").read()


def touch(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def test_videos_in_a_folder_alone_have_no_labels(tmp_path):
    manifest = VideoList(touch(tmp_path, "b.mp4", "a b.gif", "notes.txt", ".c.mp4")).read()
    assert rows_of(manifest) == [("a b.gif", ()), ("b.mp4", ())]
    assert not manifest.labelled


def test_a_folder_per_class(tmp_path):
    files = ["swim/b.mp4", "swim/a.MP4", "run/more/x y.webm", "run/c.avi", "-jump/d.mkv"]
    others = ["run/notes.txt", "run/.e.mp4", ".git/a.mp4", "README.md", ".b.mp4", "plot.png"]
    manifest = VideoList(touch(tmp_path, *files, *others)).read()
    assert manifest.classes == ("-jump", "run", "swim")
    jump, *runs, first, second = sorted(files)
    assert rows_of(manifest) == [(jump, (0,)), *((run, (1,)) for run in runs), (first, (2,)), (second, (2,))]
    assert manifest.root == str(tmp_path)


def test_a_folder_per_class_is_torchvisions(tmp_path):
    names = [f"{c}/{part}v{i}.mp4" for c in ("b c", "a", "Z") for part in ("", "x/", "x/y/") for i in range(3)]
    manifest = VideoList(touch(tmp_path, *names)).read()
    ids = {name: label for label, name in enumerate(manifest.classes)}
    expected = make_dataset(str(tmp_path), ids, extensions=(".mp4",))
    assert list(ids) == ["Z", "a", "b c"]
    assert sorted((manifest.path(index), manifest.label(index)) for index in range(len(manifest))) == sorted(expected)


def test_classes_of_the_training_split(tmp_path):
    manifest = VideoList(touch(tmp_path, "run/a.mp4", "swim/a.mp4")).read(["jump", "run", "swim", "walk"])
    assert rows_of(manifest) == [("run/a.mp4", (1,)), ("swim/a.mp4", (2,))]
    assert manifest.num_classes == 4
    with pytest.raises(ManifestError, match=r"has a folder 'swim', which is not among the 2 `classes`\. Give the"):
        VideoList(tmp_path).read(["jump", "run"])


@pytest.mark.parametrize("number", [1, 11, 101])
def test_folders_named_by_all_labels_have_them_as_in_a_list(tmp_path, number):
    folders = VideoList(touch(tmp_path, *(f"{label}/a.mp4" for label in range(number)))).read()
    (tmp_path / "list.csv").write_text("".join(f"{label}/a.mp4,{label}\n" for label in range(number)))
    listed = VideoList(tmp_path / "list.csv").read(folders.classes)
    assert folders.classes == tuple(map(str, range(number)))
    assert rows_of(folders) == rows_of(listed) == [(f"{label}/a.mp4", (label,)) for label in range(number)]


@pytest.mark.parametrize("names", [["1", "2", "3"], ["000", "2", "run"], ["001", "002"]])
def test_numbers_that_may_be_other_classes_of_training_are_refused(tmp_path, names):
    folders = VideoList(touch(tmp_path, *(f"{name}/a.mp4" for name in names))).read()
    assert folders.classes == tuple(sorted(names))
    (tmp_path / "list.csv").write_text("path,label\na.mp4,0\na.mp4,2\n")
    match = r"line 3: the label 2 may be the class '0*2' of training or its class 2, counted from 0\. Give"
    with pytest.raises(ManifestError, match=match):
        VideoList(tmp_path / "list.csv").read(folders.classes)
    (tmp_path / "list.csv").write_text("path,label\na.mp4,0\na.mp4,1\n")
    own = VideoList(tmp_path / "list.csv", classes=folders.classes).read(folders.classes)
    assert [label for _, label in rows_of(own)] == [(0,), (1,)]


def test_folders_of_frames_per_class(tmp_path):
    touch(tmp_path, "run/v1/0001.jpg", "run/v1/2.jpg", "run/v2/part/1.PNG", "swim/v3/1.jpeg", "swim/v3/a.mp4", "b.mp4")
    manifest = VideoList(tmp_path, frame_rate=24).read()
    assert rows_of(manifest) == [("run/v1", (0,)), ("run/v2/part", (0,)), ("swim/v3", (1,))]
    alone = VideoList(tmp_path / "run" / "v1", frame_rate=24).read()
    assert ([alone.path(row) for row in range(len(alone))], alone.labels(0)) == ([str(tmp_path / "run" / "v1")], ())


def test_what_a_folder_leaves_out_is_named(tmp_path, caplog):
    names = ["run/a.vob", "run/b.M2V", "run/c.divx", "run/d.mxf", "swim/e.nut", "swim/f.f4v", "swim/g.3g2", "swim/h.dv"]
    others = ["run/a.ogm", "swim/b.OGM", "swim/README", "run/@eaDir/thumb.mp4", "lost+found/x", "walk/.hidden"]
    manifest = VideoList(touch(tmp_path, *names, *others)).read()
    assert rows_of(manifest) == [(name, (int(name[0] == "s"),)) for name in names]
    assert manifest.classes == ("run", "swim")
    told = " ".join(caplog.messages)
    assert "not videos by their suffix are left out: ['.ogm', 'none']." in told
    assert "has empty folders, which are left out: 'walk'." in told


@pytest.mark.parametrize("content", ["", '{"name": "an app", "version": 5}', "[]"])
def test_a_manifest_of_another_program_is_none(tmp_path, content):
    touch(tmp_path, "run/a.mp4", "swim/b.mp4")
    (tmp_path / "manifest.json").write_text(content)
    assert VideoList(tmp_path).read().classes == ("run", "swim")


@pytest.mark.parametrize(
    ("names", "source", "expected"),
    [
        (["run/v1/1.jpg", "swim/v2/1.png"], ".", True),
        (["v1/1.jpg"], ".", True),
        (["1.jpg"], ".", True),
        (["run/v1/1.jpg", "swim/a.mp4"], ".", False),  # such as a picture beside each video
        (["run/a.txt"], ".", False),
        (["list.csv", "v1/1.jpg"], "list.csv", True),
        (["list.csv", "v1"], "list.csv", False),
    ],
)
def test_whether_videos_are_folders_of_frames_is_seen(tmp_path, names, source, expected):
    touch(tmp_path, *names)
    if (tmp_path / "list.csv").exists():
        (tmp_path / "list.csv").write_text("path,label\nv1,run\n")
    assert holds_frames(tmp_path / source) is expected


@pytest.mark.parametrize(
    ("names", "arguments", "match"),
    [
        ([], {}, r"holds no videos\. Add some"),
        ([], {"frame_rate": 24}, r"holds no folders of images\. Add some"),
        (["run/v/1.jpg"], {}, r"run holds folders of images, and no videos\. Give a `VideoList` with `frame_rate`"),
        (["1.jpg"], {}, r"holds folders of images, and no videos\. Give a `VideoList` with `frame_rate`, the images"),
        (["a.mp4"], {"frame_rate": 24}, r"holds videos, and no folders of images\. Leave `frame_rate` out"),
        (["run/a.mp4", "swim/a.txt"], {}, r"swim holds no videos\. Add some, or remove the folder"),
        (["run/a.mp4"], {"frame_rate": 24}, r"run holds videos, and no folders of images\. Leave `frame_rate` out"),
        (["train/run/a.mp4", "val/run/b.mp4"], {}, r"holds splits; .* Give one split, such as .*train\."),
        (
            ["run/a.mp4", "b.MP4", "c.mp4"],
            {},
            r"holds videos, such as 'b\.MP4', beside folders, such as 'run'\. .* required\. Move the 2 into a folder",
        ),
        (["day2/.a.mp4", "b.mp4"], {}, r"holds videos, such as 'b\.mp4', beside folders, such as 'day2'"),
        (["run/a.mp4"], {"root": "/data"}, r"`root` is for lists, and .* is a folder\. Leave `root` out"),
    ],
)
def test_what_is_no_folder_per_class(tmp_path, names, arguments, match):
    with pytest.raises(ManifestError, match=match):
        VideoList(touch(tmp_path, *names), **arguments).read()


@pytest.mark.timeout(20)
def test_links_are_followed_but_to_no_folder_twice_and_to_none_above(tmp_path):
    touch(tmp_path, "far/v/d.mp4", "source/run/a.mp4", "source/run/x/b.mp4")
    source = tmp_path / "source"
    (source / "run" / "x" / "up").symlink_to("..")
    (source / "run" / "c.mp4").symlink_to("a.mp4")
    (source / "run" / "dead.mp4").symlink_to("gone.mp4")  # counted by whoever reads it
    (source / "far").symlink_to(tmp_path / "far")
    (source / "run" / "all").symlink_to(tmp_path)  # its videos are of other classes
    (tmp_path / "far" / "others").symlink_to(source)
    rows = [("far/v/d.mp4", 0), ("run/a.mp4", 1), ("run/c.mp4", 1), ("run/dead.mp4", 1), ("run/x/b.mp4", 1)]
    assert rows_of(VideoList(source).read()) == [(path, (label,)) for path, label in rows]


SAMPLES = [
    b"path,label\na.mp4,3\nb/c d.mp4,0\n",
    b"a.mp4 3\nb/c.mp4 0\n-d.mp4 12\n",
    b'a.mp4\t"1,5"\n"b ""c"".mp4"\t2\n\nd.mp4\t\n',
    b"\xef\xbb\xbfa.mp4 3\r\nb.mp4 1\r\n",
    b"a.mp4\nb.mp4\nc.mp4\n",
    b"file_name,label\r\na.mp4,run\r\nb.mp4,brush hair\r\n",
    b"file_name,label,start,end,prepared\nvideos/a.mp4,1,0.5,2,yes\nvideos/b.mp4,0,,,yes\n",
    b"file_name,label,start,end,spans,prepared\nvideos/a.mp4,1;0,,,0.5 1;0 2,yes\nvideos/b.mp4,,,,,yes\n",
]


@pytest.mark.parametrize("header", ["filename", "video", "FilePath", "clip;start;end"])
def test_a_header_without_labels_is_no_video(read, tmp_path, header):
    assert read(f"{header}\na.mp4\nb.mp4\n").paths() == [str(tmp_path / name) for name in ("a.mp4", "b.mp4")]


@pytest.mark.parametrize("separator", [";", ",", "\t"])
@pytest.mark.parametrize(
    "header", ["Path,Label,Recording day", "Recording day,Label,File_Name", '"path","label","by, whom"']
)
def test_a_header_tells_the_separator(read, tmp_path, header, separator):
    """As Excel writes it: a name of a column may hold another separator."""
    names = [name.strip('"').lower() for name in re.findall(r'"[^"]*"|[^,]+', header)]
    fields = {"path": "a b.mp4", "file_name": "a b.mp4", "label": "run", "recording day": "1, 2", "by, whom": "me"}
    rows = [[f'"{name}"' for name in names], [f'"{fields[name]}"' for name in names]]
    found = read("".join(separator.join(row) + "\n" for row in rows))
    assert (found.paths(), found.classes) == ([str(tmp_path / "a b.mp4")], ("run",))


@pytest.mark.parametrize("name", ["split", "Subset", "fold"])
def test_a_list_of_several_splits_is_refused(read, name):
    with pytest.raises(ManifestError, match=rf"line 4: `{name.lower()}` is 'test', and '1' in a row before"):
        read(f"path,label,{name}\na.mp4,0,1\nb.mp4,1,1\nc.mp4,1,test\n")
    assert len(read(f"path,label,{name}\na.mp4,0,train\nb.mp4,1,train\n")) == 2


def test_names_of_several_labels_may_hold_a_comma(read):
    """As AudioSet's do: a semicolon is between them, or `classes` has the name."""
    names = ("Male speech, man speaking", "Music", "Rain")
    rows = f'a,"{names[0]};Music"\nb,"{names[0]}"\nc,"Rain,Music"\n'
    found = read(f"path,label\n{rows}", classes=names, multi_label=True)
    assert [found.labels(row) for row in range(3)] == [(0, 1), (0,), (1, 2)]


def test_a_pipe_is_no_list(tmp_path):
    """It could be read once only, and a training reads its list several times."""
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(ManifestError, match=r"pipe.csv can't be read: not an ordinary file"):
        VideoList(tmp_path / "pipe.csv").read()


@fuzzed(50_000)
def test_mutated_lists_are_read_or_refused(tmp_path, numbers):
    (tmp_path / "classes.txt").write_text("run\njump\n")
    for seed in numbers:
        rng, sample = random.Random(seed), random.Random(seed).choice(SAMPLES)
        (path := tmp_path / "list.csv").write_bytes(mutate(sample, rng))
        # A given root, so that absolute paths are judged, too; a prepared list has its own.
        root = None if b"prepared" in sample and b"prepared" in path.read_bytes() else path.parent
        arguments = {"root": root, "multi_label": rng.random() < 0.5}
        read_or_refused(lambda path=path, arguments=arguments: VideoList(path, **arguments).read())


def test_names_of_files_that_are_no_utf_8_are_read_as_they_are(tmp_path):
    name = os.fsdecode("été 1.mp4".encode("latin-1"))
    (tmp_path / "list.csv").write_bytes(f'"{name}" 1\n'.encode("utf-8", "surrogateescape"))
    (tmp_path / name).touch()
    assert VideoList(tmp_path / "list.csv", existing_only=True).read().path(0) == str(tmp_path / name)


def test_a_row_may_be_a_stretch_of_its_video(read):
    manifest = read("path,label,start,end\na.mp4,0,1.5,3\na.mp4,1,,\na.mp4,2,4,\n")
    assert [manifest.stretch(row) for row in range(3)] == [(1.5, 3), (0, float("inf")), (4, float("inf"))]
    assert [manifest.label(row) for row in range(3)] == [0, 1, 2]


PREPARED = ["a.mp4", "run/b c.mp4", "run/line\nbreak.mp4", "-dash.mp4", 'run/"été", 漢.mp4', "\udcff.mp4", "...mp4"]


def prepared(folder, *, multi_label=False, spans=False, classes=("run; fast", "10")):
    """A manifest, and what it is when it is prepared into the folder."""
    builder = ManifestBuilder(folder / "list.csv", classes=classes, multi_label=multi_label)
    for row, path in enumerate(PREPARED):
        labels = [row % 2, 1, 0][: row % 4] if multi_label else [row % 2]
        stretch = (row / 3, row + 1) if spans else (0, float("inf"))
        of_labels = [(row / 7, row + 0.5)] * len(labels) if spans else []
        builder.add(path, labels, where="", spans=of_labels, stretch=stretch)
    manifest = builder.build()
    save_list(manifest, folder, [f"videos/{path}" for path in PREPARED])
    return manifest


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("spans", [False, True])
@pytest.mark.parametrize("classes", [(), ("run; fast", "10")])
def test_the_list_of_prepared_videos_says_what_the_manifest_said(tmp_path, multi_label, spans, classes):
    (tmp_path / "here").mkdir()
    given = prepared(tmp_path / "here", multi_label=multi_label, spans=spans and multi_label, classes=classes)
    (tmp_path / "here").rename(moved := tmp_path / "moved")
    for source in (moved, moved / "metadata.csv"):
        found = VideoList(source).read()
        assert found.paths() == [f"{moved}/videos/{path}" for path in PREPARED]
        assert (found.classes, found.multi_label, found.prepared) == (classes, multi_label, True)
        for row in range(len(given)):
            assert (found.spans(row), found.stretch(row)) == (given.spans(row), given.stretch(row))


def test_what_is_not_prepared_is_left_out_of_the_list(tmp_path):
    save_list(prepared(tmp_path), tmp_path, [None, "videos/b.mp4", *[None] * 5])
    assert rows_of(VideoList(tmp_path).read()) == [("videos/b.mp4", (1,))]


@pytest.mark.parametrize("name", ["high\njump", " run", ""])
def test_a_class_that_fits_no_line_of_a_file_of_classes(read, name):
    with pytest.raises(ManifestError, match=r"The class '.*' fits no line of a file of classes\. Rename it"):
        read("a.mp4 0\n", classes=("swim", name))


def test_the_data_module_takes_a_prepared_folder_beside_a_list(tmp_path):
    prepared(tmp_path)
    (tmp_path / "list.csv").write_text("path,label\nb.mp4,run; fast\n")
    read = VideoDataModule(train=str(tmp_path), val=str(tmp_path / "list.csv")).manifests()
    assert (read["train"].classes, read["val"].label(0)) == (("run; fast", "10"), 0)


def test_a_prepared_list_without_classes_takes_those_of_training(tmp_path):
    prepared(tmp_path, classes=())
    assert VideoList(tmp_path).read(("x", "y")).classes == ("x", "y")
    with pytest.raises(ManifestError, match="label 1 is not from 0 to 0"):
        VideoList(tmp_path).read(("x",))


@pytest.mark.parametrize(("name", "value"), [("root", "x"), ("classes", ("10", "run; fast")), ("frame_rate", 5.0)])
def test_arguments_that_say_otherwise_than_what_is_prepared_are_refused(tmp_path, name, value):
    prepared(tmp_path)
    with pytest.raises(ManifestError, match=r"is what `prepare` wrote, with its own .* and the arguments say"):
        VideoList(tmp_path / "metadata.csv", **{name: value}).read()
    assert len(VideoList(tmp_path, classes=("run; fast", "10"), multi_label=True).read()) == len(PREPARED)


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("videos/a.mp4", "/etc/passwd", r"line 2: the path '/etc/passwd' leads out of the root"),
        ("videos/a.mp4", "../a.mp4", r"line 2: the path '\.\./a\.mp4' leads out of the root"),
        ("a.mp4,0", "a.mp4,2", "line 2: label 2 is not from 0 to 1"),
        ("a.mp4,0", "a.mp4,0;1", r"line 2: 2 labels \(0, 1\), one is required"),
    ],
)
def test_prepared_lists_that_lie(tmp_path, old, new, match):
    prepared(tmp_path)
    metadata = tmp_path / "metadata.csv"
    metadata.write_bytes(metadata.read_bytes().replace(old.encode(), new.encode()))
    with pytest.raises(ManifestError, match=match):
        VideoList(tmp_path).read()


@pytest.mark.parametrize("spans", ["soon", "1", "1 2 3", "1 2;", "1,2"])
def test_what_are_no_spans(read, spans):
    with pytest.raises(ManifestError, match=r"line 3: the spans '.*' are not the start and the end of each label"):
        read(f'path,label,spans\na.mp4,3;1,1.5 3;0 12.25\nb.mp4,3,"{spans}"\n')
    found = read("path,label,spans\na.mp4,3;1,1.5 3;0 12.25\nb.mp4,3,\n")
    assert found.spans(0) == ([3, 1], [(1.5, 3), (0, 12.25)])
    assert (found.labels_between(0, 0, 1), found.labels_between(1, 90, 91)) == ((1,), (3,))


def test_what_an_older_version_prepared_is_refused(tmp_path):
    touch(tmp_path, "manifest.json", "report.csv", "videos/run/a.mp4")
    for source in (tmp_path, tmp_path / "manifest.json", "https://host/prepared/manifest.json"):
        with pytest.raises(ManifestError, match=r"was prepared by an older version, .* Run `lightning-multigrid"):
            VideoList(source).read()


def test_hugging_face_reads_a_prepared_folder(tmp_path, monkeypatch):
    """Names, labels and times, as the independent reader of such folders sees them."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    prepared(tmp_path, multi_label=True, spans=True)
    names = ["a.mp4", "run/b c.mp4", "-dash.mp4"]
    rows = [f"videos/{path}" if path in names else None for path in PREPARED]
    save_list(manifest := VideoList(tmp_path).read(), tmp_path, rows)
    touch(tmp_path, *filter(None, rows))
    data = datasets.load_dataset("videofolder", data_dir=str(tmp_path), cache_dir=str(tmp_path / "cache"))["train"]
    found = {row["video"]["path"]: row for row in data.cast_column("video", datasets.Video(decode=False))}
    assert sorted(found) == sorted(f"{tmp_path}/{row}" for row in rows if row)
    for row, path in enumerate(manifest.paths()):
        if path in found:
            labels, _ = manifest.spans(row)
            assert str(found[path]["label"] or "") == ";".join(map(str, labels))
            assert (found[path]["start"] or 0, found[path]["end"]) == manifest.stretch(row)
