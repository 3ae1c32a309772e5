"""A mistake in a config or on the command line is said without jsonargparse's dumps, with the name that was meant."""

import re
from pathlib import Path

import pytest
import yaml

from lightning_multigrid.cli.main import main
from lightning_multigrid.cli.mistakes import refuse_other_texts, telling

ROOT = Path(__file__).parents[2]


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
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(values))
    return f"--config={path}"


IN_DATA = "Parser key \"data\":\n  Problem with given class_path 'lightning_multigrid.VideoDataModule':\n"
IN_CALLBACKS = 'Parser key "trainer.callbacks":\n  Problem with given class_path \'lightning_multigrid.Multigrid'


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"data": {"batchsize": 1}}, f"{IN_DATA}    Option 'batchsize' is not accepted\nDid you mean `batch_size`?\n"),
        ({"data": {"nothing": 1}}, f"{IN_DATA}    Option 'nothing' is not accepted\n"),
        (
            {"data": {"train": {"class_path": "lightning_multigrid.sources.VideoList", "init_args": {"rot": "x"}}}},
            f'{IN_DATA}    Parser key "train":\n'
            "      Problem with given class_path 'lightning_multigrid.sources.VideoList':\n"
            "        Option 'rot' is not accepted\nDid you mean `root`?\n",
        ),
        (
            {"precise_bn_batch": 10},
            f"{IN_CALLBACKS}Callback':\n    Option 'precise_bn_batch' is not accepted\n"
            "Did you mean `precise_bn_batches`?\n",
        ),
        (
            {"callback": "MultigridCallbak"},
            f"{IN_CALLBACKS}Callbak':\n    module 'lightning_multigrid' has no attribute 'MultigridCallbak'\n"
            "Did you mean `MultigridCallback`?\n",
        ),
    ],
)
def test_a_mistake_in_a_config(tmp_path, given, message, capsys):
    assert said(capsys, ["plan", write_config(tmp_path, **given)]) == f"error: {message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "data: {train: vidéos}".encode("latin-1"),
            " is no text in UTF-8: it has another byte at 17. Save it as UTF-8.",
        ),
        (b"trainer:\n  max_epochs: 3\n model: {}\n", r" is no YAML: .*line 3, column 2"),
        (
            b"trainer: {max_epochs: 3}\nmodel: {}\ntrainer: {precision: 16-mixed}\n",
            " has `trainer` twice, in lines 1 and 3, and only the last would count. Put what they say under one.",
        ),
        (b"trainer: {max_epochs: 3, max_epochs: 4}\n", " has `max_epochs` twice, in lines 1 and 1"),
        (b"data:\n- a: &x {b: 1}\n- *x\n- c: *x\n  d: 1\n  c: 2\n", " has `c` twice, in lines 4 and 6"),
    ],
)
def test_a_config_that_a_reader_of_yaml_would_not_take_as_it_stands(tmp_path, text, message, capsys):
    path = tmp_path / "config.yaml"
    path.write_bytes(text)
    assert re.match(f"error: {re.escape(str(path))}{message}", said(capsys, ["plan", "--config", str(path)]))


def test_a_config_of_aliases_is_read_in_no_time_and_may_merge_twice(tmp_path, capsys):
    path = tmp_path / "config.yaml"
    layers = "".join(f"a{n}: &a{n} {{x: *a{n - 1}, y: *a{n - 1}}}\n" for n in range(1, 60))
    path.write_text(f"a0: &a0 {{}}\n{layers}b:\n  <<: *a1\n  <<: *a2\n")
    refuse_other_texts(str(path))
    refuse_other_texts(path.read_text())  # a text in the place of a file is jsonargparse's
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("text", "given"), [("", "an empty one"), ("# Later\n- a\n", "`# Later - a`")])
def test_a_config_that_is_no_mapping(tmp_path, text, given, capsys):
    (tmp_path / "config.yaml").write_text(text)
    expected = f"error: A config is a mapping, such as `trainer: {{max_epochs: 10}}`, got {given}. `lightning-multigrid"
    assert said(capsys, ["plan", f"--config={tmp_path / 'config.yaml'}"]).startswith(expected)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data.batchsize=4"], f"{IN_DATA}    Option 'batchsize' is not accepted\nDid you mean `batch_size`?\n"),
        (
            ["--data.batch_size=four"],
            f"{IN_DATA}    Parser key \"batch_size\":\n      Expected a <class 'int'>. Got value: four\n",
        ),
        (
            ["--model.schedule=cosin"],
            "Parser key \"model\":\n  Problem with given class_path 'lightning_multigrid.VideoClassifier':\n"
            '    Parser key "schedule":\n'
            "      Expected a typing.Literal['steps', 'cosine', 'constant']. Got value: cosin\n",
        ),
        (
            ["--trainer.max_epoch=3"],
            "unrecognized arguments: --trainer.max_epoch=3\nDid you mean `trainer.max_epochs`?\n",
        ),
        (
            ["--trainer.max_epochs=many"],
            "Parser key \"trainer.max_epochs\":\n  - Expected a <class 'int'>\n  - Expected a <class 'NoneType'>\n"
            "  Given value: many\n",
        ),
        (
            ["--data=nosuch.Data"],
            'Parser key "data":\n  - Expected a path but nosuch.Data either not accessible or invalid\n'
            "  - Problem with given class_path 'nosuch.Data':\n    No module named 'nosuch'\n",
        ),
    ],
)
def test_a_mistake_on_the_command_line(tmp_path, words, message, capsys):
    assert said(capsys, ["fit", write_config(tmp_path), *words]) == f"error: {message}"


def test_options_of_the_config_and_of_commands_without_one(tmp_path, capsys):
    path = tmp_path / "config.yaml"
    path.write_text("trainer: {max_epoch: 3}")
    for command in ("plan", "fit"):
        assert "\nDid you mean `trainer.max_epochs`?\n" in said(capsys, [command, f"--config={path}"])
    path.write_text("trainr: {max_epochs: 3}")
    assert "\nDid you mean `trainer.max_epochs`?\n" in said(capsys, ["fit", f"--config={path}"])
    path.write_text("trainer_: 3")
    assert "\nDid you mean `trainer`?\n" in said(capsys, ["fit", f"--config={path}"])
    assert "\nDid you mean `frame_rate`?\n" in said(capsys, ["init", "videos", "--framerate=3"])


@pytest.mark.parametrize("given", [3, None])
def test_a_trainer_that_is_none(given, tmp_path, capsys):
    config, path = yaml.safe_load((ROOT / "examples" / "quickstart.yaml").read_text()), tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({**config, "trainer": given}))
    with pytest.raises(SystemExit, match="1"):
        main(["plan", f"--config={path}"])
    told = "error: `trainer` must be the arguments of a Trainer, such as `{max_epochs: 10}`, got "
    assert capsys.readouterr().err.endswith(f"{told}{given}.\n")


@pytest.mark.parametrize(
    "message",
    [
        "Problems parsing config: while parsing a flow node\n\n  in line 3",
        'Parser key "data":\n  Does not validate against any of the Union subtypes\n  In another form: 3',
    ],
)
def test_other_messages_stay_as_they_are(message):
    assert telling(message) == message
