"""The script that `completion` prints, in a real bash."""

import subprocess

import pytest

from lightning_multigrid.cli.completion import completion_script
from lightning_multigrid.cli.main import main

ASK = """
source {script}
COMP_WORDS=({words} "$0") COMP_CWORD={place}
_lightning_multigrid
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """What bash offers for the last of some words."""
    script = tmp_path_factory.mktemp("completion") / "script.sh"
    with pytest.MonkeyPatch.context() as patch:
        lines = []
        patch.setattr("sys.argv", ["lightning-multigrid"])
        patch.setattr("builtins.print", lambda *words, **_: lines.append(words[0]))
        main(["completion", "bash"])
    script.write_text("".join(lines))

    def offered(*words):
        *before, last = words
        before = ["lightning-multigrid", *before]
        code = ASK.format(script=script, words=" ".join(before), place=len(before))
        done = subprocess.run(["bash", "-uc", code, last], capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return done.stdout.split()

    return offered


def test_commands(ask):
    for command in ("fit", "validate", "test", "predict", "plan", "init", "prepare", "check", "migrate", "completion"):
        assert command in ask("")
    assert ask("p") == ["predict", "plan", "prepare"]
    assert ask("--v") == ["--version"]


def test_options_of_a_command(ask):
    assert ask("plan", "--li") == ["--like"]
    assert ask("plan", "--config", "a.yaml", "--step") == ["--step_time"]
    assert ask("fit", "--trainer.max_ep") == ["--trainer.max_epochs"]
    assert ask("fit", "--data.batch") == ["--data.batch_size"]
    assert ask("prepare", "--keep") == ["--keep_damaged"]
    assert ask("prepare", "--crf") == ["--crf"]  # of `Encoding`
    assert ask("completion", "") == ["bash", "zsh"]


def test_values_are_left_to_the_shell_which_completes_files(ask):
    assert ask("fit", "--config", "") == ask("init", "vid") == ask("nonsense", "--con") == []


def test_bash_completes_files_where_there_is_no_word(tmp_path):
    """The option of `complete`, as a terminal has it."""
    (script := tmp_path / "script.sh").write_text(completion_script({}))
    shown = subprocess.run(["bash", "-c", f"source {script}; complete -p"], capture_output=True, text=True, check=True)
    assert shown.stdout == "complete -o bashdefault -o default -F _lightning_multigrid lightning-multigrid\n"


@pytest.mark.parametrize(("words", "message"), [(["fish"], "['bash', 'zsh']. Got value: fish"), ([], "shell")])
def test_other_shells(capsys, words, message):
    with pytest.raises(SystemExit):
        main(["completion", *words])
    assert message in (said := capsys.readouterr().err)
    assert "There is no command" not in said
