"""The messages of jsonargparse and argparse that `explain` reads: each test fails when the host says it otherwise."""

import pytest
from jsonargparse import ArgumentError, ArgumentParser
from lightning.pytorch.callbacks import Callback

from lightning_multigrid.cli.commands import run
from lightning_multigrid.cli.explain import explained


def parser():
    made = ArgumentParser(exit_on_error=False)
    made.add_argument("--speed", type=int)
    made.add_subclass_arguments(Callback, "callback", required=False)
    return made


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sped=3"], "There is no option `--sped`. Did you mean `speed`?"),
        (["--sped", "3"], "There is no option `--sped`. Did you mean `speed`?"),
        (["--xyz=3"], "There is no option `--xyz`."),
        (
            ["--callback=Timer", "--callback.init_args.intervall=step"],
            "lightning.pytorch.callbacks.Timer has no argument `intervall`. Did you mean `interval`?",
        ),
    ],
)
def test_a_name_that_comes_close(words, said):
    made = parser()
    with pytest.raises(ArgumentError) as raised, explained(["fit"], [made]):
        made.parse_args(words)
    assert str(raised.value) == said


def test_a_command_that_comes_close():
    made, commands = ArgumentParser(exit_on_error=False), ["fit", "predict"]
    under = made.add_subcommands()
    for name in commands:
        under.add_subcommand(name, ArgumentParser(exit_on_error=False))
    said = "no command `predct`. Commands are fit, predict. Did you mean `predict`"
    with pytest.raises(ArgumentError, match=said), explained(commands, [made]):
        made.parse_args(["predct"])


@pytest.mark.parametrize("words", [["fit"], ["plan"], ["predict", "videos"], ["validate", "--data.train=videos"]])
def test_a_command_without_a_config(words):
    with pytest.raises(ArgumentError, match=r"give `--config CONFIG`\. `lightning-multigrid init FOLDER` writes one"):
        run(words)


def test_other_errors_stay_as_they_are():
    made = parser()
    with pytest.raises(ArgumentError, match="speed"), explained(["fit"], [made]):
        made.parse_args(["--speed=fast"])
