"""What the commands print."""

import io

from lightning_multigrid.cli.terminal import say


def test_nothing_that_is_said_controls_the_terminal(capsys):
    say("a\x1b[2J.mp4 \x9b31m \u202e gone\nnext line: été 漢 😀")
    assert capsys.readouterr().out == "a\\x1b[2J.mp4 \\x9b31m \\u202e gone\nnext line: été 漢 😀\n"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_breaks_no_word_and_keeps_tables_and_commands(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    rows = "phase  stage       epochs  passes\n    1      1     0 - 23.5    73.2"
    command = "    lightning-multigrid fit --config multigrid.yaml"
    to = Terminal()
    say(f"{rows}\nThe config is for 128 devices x 4 clips, at the LR 0.8.\n{command}", to)
    written = to.getvalue()
    assert rows in written
    assert command in written
    assert "The config is for 128 devices\nx 4 clips, at the LR 0.8.\n" in written
