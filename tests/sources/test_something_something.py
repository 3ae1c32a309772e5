"""Something-Something V2: the official files under their old and new names, and broken ones."""

import json

import pytest

from lightning_multigrid.sources.something_something import SomethingSomething
from lightning_multigrid.sources.text import ManifestError
from tests.helpers.annotations import read_mutated, rows_of, write_files
from tests.helpers.mutations import fuzzed

LABELS = {
    "Approaching something with your camera": "0",
    "Putting something on a surface": "2",
    "Holding something": "1",
}


def entry(number, label, template, *placeholders):
    return {"id": number, "label": label, "template": template, "placeholders": [*placeholders]}


ENTRIES = {
    "train": [
        entry("78687", "holding potato next to vicks vaporub bottle", "Holding [something]", "potato"),
        entry("42326", "putting pen", "Putting [something] on a surface", "pen"),
    ],
    "validation": [entry("1", "approaching", "Approaching [something] with your camera")],
    "test": [{"id": "1420"}, {"id": "3"}],
}
TRAIN = {"train.json": json.dumps(ENTRIES["train"]), "labels.json": json.dumps(LABELS)}


@pytest.fixture(params=["", "something-something-v2-"], ids=["new names", "old names"])
def something(tmp_path, request):
    files = {f"{request.param}{split}.json": json.dumps(entries) for split, entries in ENTRIES.items()}
    files[f"{request.param}labels.json"] = json.dumps(LABELS)
    files["test-answers.csv"] = "1420;Putting something on a surface\n3;Holding something\n"
    write_files(tmp_path, files)
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
    manifest = SomethingSomething(something(split), "/20bn-something-something-v2").read()
    assert rows_of(manifest) == rows
    assert manifest.classes == tuple(sorted(LABELS, key=LABELS.get))


def test_something_something_test_answers(something):
    answers = something("test").parent / "test-answers.csv"
    manifest = SomethingSomething(something("test"), "/videos", answers_file=answers).read()
    assert rows_of(manifest) == [("1420.webm", (2,)), ("3.webm", (1,))]


def test_something_something_as_frames(something):
    manifest = SomethingSomething(something("train"), "/frames", frame_rate=30).read()
    assert [path for path, _ in rows_of(manifest)] == ["78687", "42326"]
    assert manifest.frame_rate == 30.0


def test_something_something_labels_elsewhere(tmp_path):
    write_files(tmp_path, {"a/train.json": json.dumps(ENTRIES["train"]), "b/l.json": json.dumps(LABELS)})
    manifest = SomethingSomething(tmp_path / "a/train.json", "/videos", labels_file=tmp_path / "b/l.json").read()
    assert manifest.labels(0) == (1,)


@pytest.mark.parametrize(
    ("files", "match"),
    [
        ({"train.json": "["}, r"train\.json is not JSON: Expecting value: line 1 column 2 .* Download the file again"),
        ({"train.json": ""}, r"train\.json is not JSON"),
        ({"train.json": "[" * 100_000}, r"train\.json is not JSON: .*recursion"),
        ({"train.json": "[]"}, r"train\.json lists no videos"),
        ({"train.json": json.dumps(LABELS)}, r"train\.json holds no list of videos\. Give the official train"),
        ({"train.json": "[1]"}, r"entry 1: a number as `id` and text as `template` are needed"),
        ({"train.json": '[{"id": "../../x", "template": "Holding something"}]'}, r"entry 1: a number as `id`"),
        ({"train.json": '[{"id": true, "template": "Holding something"}]'}, r"entry 1: a number as `id`"),
        ({"train.json": '[{"id": "1", "template": ["Holding something"]}]'}, r"entry 1: .* text as `template`"),
        ({"train.json": '[{"id": "1", "template": "Eating"}]'}, r"'Eating' is not among the 3 labels"),
        ({"train.json": '[{"id": "1", "template": "Holding [something]"}, {"id": "2"}]'}, r"entry 2: no label, but"),
        ({"labels.json": "{}"}, r"'Holding something' is not among the 0 labels"),
        ({"labels.json": '["Holding something"]'}, r"labels\.json does not hold labels with the ids 0, 1, 2 and so on"),
        ({"labels.json": '{"Holding something": "1"}'}, r"labels\.json does not hold labels with the ids 0, 1, 2"),
        ({"labels.json": '{"Holding something": []}'}, r"labels\.json does not hold labels with the ids 0, 1, 2"),
        ({"labels.json": "\udcff"}, r"labels\.json is not JSON: 'utf-8' codec can't decode"),
    ],
)
def test_something_something_broken(tmp_path, files, match):
    for name, content in (TRAIN | files).items():
        (tmp_path / name).write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(ManifestError, match=match):
        SomethingSomething(tmp_path / "train.json", "/videos").read()


@pytest.mark.parametrize(
    ("answers", "match"),
    [
        ("1420;Putting something on a surface\n", r"entry 2: no answer for video '3'\. Give the answers of this split"),
        ("1420,Putting something on a surface\n", r"answers\.csv, line 1: 1 fields, `id;label` is needed"),
        ("1420;Putting\n3;Holding something\n", r"entry 1: 'Putting' is not among the 3 labels"),
    ],
)
def test_something_something_broken_answers(tmp_path, answers, match):
    write_files(tmp_path, {**TRAIN, "test.json": json.dumps(ENTRIES["test"]), "answers.csv": answers})
    with pytest.raises(ManifestError, match=match):
        SomethingSomething(tmp_path / "test.json", "/videos", answers_file=tmp_path / "answers.csv").read()


def test_something_something_labels_missing(tmp_path):
    write_files(tmp_path, {"train.json": json.dumps(ENTRIES["train"])})
    with pytest.raises(ManifestError, match=r"labels\.json does not exist"):
        SomethingSomething(tmp_path / "train.json", "/videos").read()


@fuzzed()
def test_mutated_files_are_read_or_refused(tmp_path, numbers):
    for seed in numbers:
        read_mutated(tmp_path, TRAIN, "train.json", SomethingSomething(tmp_path / "train.json", "/videos").read, seed)
