"""Lines that end between words, as wide as the terminal."""

import os

from lightning_multigrid.cli.main import main
from lightning_multigrid.cli.terminal import say, wrapped


def test_lines_end_between_words_but_for_tables_code_and_long_words():
    table = "phase  steps\n    0     10"
    assert wrapped(table, columns=4) == table
    assert wrapped("one two three\n\n four\n", columns=7) == "one two\nthree\n\n four\n"
    assert wrapped("a /path/without-an/end b", columns=6) == "a\n/path/without-an/end\nb"


def test_a_plan_has_lines_as_wide_as_the_terminal(capfd, monkeypatch):
    plan = ["plan", "--like", "kinetics-i3d-1gpu", "--step_time=0.5"]
    main(plan)
    narrow = capfd.readouterr().out
    assert 60 < max(map(len, narrow.splitlines())) <= 80  # no terminal
    monkeypatch.setattr(os, "get_terminal_size", lambda descriptor: os.terminal_size((120, 50)))
    main(plan)
    wide = capfd.readouterr().out
    assert 100 < max(map(len, wide.splitlines())) <= 120
    assert wide.split() == narrow.split()


def test_an_output_that_is_no_file_has_80_columns(capsys):
    say("word " * 30 + "end")
    assert capsys.readouterr().out == wrapped("word " * 30 + "end") + "\n"


def test_nothing_that_is_said_controls_the_terminal(capsys):
    say("a\x1b[2J.mp4 \x9b31m \u202e gone\nnext line: été 漢 😀")
    assert capsys.readouterr().out == "a\\x1b[2J.mp4 \\x9b31m \\u202e gone\nnext line: été 漢 😀\n"
