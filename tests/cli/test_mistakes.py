"""A mistake in a config or on the command line is said without jsonargparse's dumps, with the name that was meant."""

import re
from pathlib import Path

import pytest
import yaml

from lightning_multigrid.cli.main import main
from lightning_multigrid.cli.mistakes import refuse_other_texts

ROOT = Path(__file__).parents[2]
SOURCES = "lightning_multigrid.sources"


def said(capsys, words):
    with pytest.raises(SystemExit, match="2"):
        main(words)
    return capsys.readouterr().err


def write_config(tmp_path, *, data=(), callback="MultigridCallback", **arguments):
    values = {
        "model": {"class_path": "lightning_multigrid.VideoClassifier"},
        "data": {"class_path": "lightning_multigrid.VideoDataModule", "init_args": dict(data)},
        "trainer": {"callbacks": [{"class_path": f"lightning_multigrid.{callback}", "init_args": arguments}]},
    }
    (path := tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    return f"--config={path}"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"data": {"batchsize": 1}}, "batch_size"),
        (
            {"data": {"train": {"class_path": "lightning_multigrid.sources.VideoList", "init_args": {"rot": "x"}}}},
            "root",
        ),
        ({"precise_bn_batch": 10}, "precise_bn_batches"),
        ({"callback": "MultigridCallbak"}, "MultigridCallback"),
        ({"data": {"nothing": 1}}, None),
    ],
)
def test_a_mistake_in_a_config(tmp_path, given, meant, capsys):
    """The rest is what jsonargparse says."""
    told = said(capsys, ["plan", write_config(tmp_path, **given)])
    assert told.startswith('error: Parser key "')
    assert told.partition("\nDid you mean ")[2] == (f"`{meant}`?\n" if meant else "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "data: {train: vidéos}".encode("latin-1"),
            " is not text in UTF-8: it has another byte at 17. Save it as UTF-8.",
        ),
        (b"trainer:\n  max_epochs: 3\n model: {}\n", r" is not YAML: .*line 3, column 2"),
        (
            b"trainer: {max_epochs: 3}\nmodel: {}\ntrainer: {precision: 16-mixed}\n",
            " has `trainer` twice, in lines 1 and 3, and only the last would count. Put both under one key.",
        ),
        (b"trainer: {max_epochs: 3, max_epochs: 4}\n", " has `max_epochs` twice, in lines 1 and 1"),
        (b"data:\n- a: &x {b: 1}\n- *x\n- c: *x\n  d: 1\n  c: 2\n", " has `c` twice, in lines 4 and 6"),
    ],
)
def test_a_config_that_a_reader_of_yaml_would_not_take_as_it_stands(tmp_path, text, message, capsys):
    (path := tmp_path / "config.yaml").write_bytes(text)
    assert re.match(f"error: {re.escape(str(path))}{message}", said(capsys, ["plan", "--config", str(path)]))


def test_a_config_of_aliases_is_read_in_no_time_and_may_merge_twice(tmp_path, capsys):
    path = tmp_path / "config.yaml"
    layers = "".join(f"a{n}: &a{n} {{x: *a{n - 1}, y: *a{n - 1}}}\n" for n in range(1, 60))
    path.write_text(f"a0: &a0 {{}}\n{layers}b:\n  <<: *a1\n  <<: *a2\n")
    refuse_other_texts(str(path))
    refuse_other_texts(path.read_text())  # a text in the place of a file is jsonargparse's
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("--data.batchsize=4", "\nDid you mean `batch_size`?\n"),
        ("--data.batch_size=four", "Expected a <class 'int'>. Got value: four\n"),
        ("--model.schedule=cosin", "Got value: cosin\n"),
        ("--trainer.max_epoch=3", "unrecognized arguments: --trainer.max_epoch=3\nDid you mean `max_epochs`?\n"),
    ],
)
def test_a_mistake_on_the_command_line(tmp_path, word, meant, capsys):
    told = said(capsys, ["fit", write_config(tmp_path), word])
    assert meant in told
    assert ("Did you mean" in told) == ("Did you mean" in meant)


def test_options_of_the_config_and_of_commands_without_one(tmp_path, capsys):
    path = tmp_path / "config.yaml"
    for text, meant in {"trainer: {max_epoch: 3}": "max_epochs", "trainr: {max_epochs: 3}": "trainer"}.items():
        path.write_text(text)
        for command in ("plan", "fit"):
            assert said(capsys, [command, f"--config={path}"]).endswith(f"\nDid you mean `{meant}`?\n")
    assert "\nDid you mean `frame_rate`?\n" in said(capsys, ["init", "videos", "--framerate=3"])


@pytest.mark.parametrize("given", [3, None])
def test_a_trainer_that_is_none(given, tmp_path, capsys):
    config, path = yaml.safe_load((ROOT / "examples" / "quickstart.yaml").read_text()), tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({**config, "trainer": given}))
    with pytest.raises(SystemExit, match="1"):
        main(["plan", f"--config={path}"])
    told = "error: `trainer` must be the arguments of a Trainer, such as `{max_epochs: 10}`, got "
    assert capsys.readouterr().err.endswith(f"{told}{given}.\n")
