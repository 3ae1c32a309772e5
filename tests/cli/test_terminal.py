"""What the commands print."""

from lightning_multigrid.cli.terminal import say


def test_nothing_that_is_said_controls_the_terminal(capsys):
    say("a\x1b[2J.mp4 \x9b31m \u202e gone\nnext line: été 漢 😀")
    assert capsys.readouterr().out == "a\\x1b[2J.mp4 \\x9b31m \\u202e gone\nnext line: été 漢 😀\n"
