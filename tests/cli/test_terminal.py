"""Lines that end between words, as wide as the terminal."""

from lightning_multigrid.cli.main import main
from lightning_multigrid.cli.terminal import say, wrapped


def test_lines_end_between_words_but_for_tables_code_and_long_words():
    table = "phase  steps\n    0     10"
    assert wrapped(table, columns=4) == table
    assert wrapped("one two three\n\n four\n", columns=7) == "one two\nthree\n\n four\n"
    assert wrapped("a /path/without-an/end b", columns=6) == "a\n/path/without-an/end\nb"


def test_a_plan_has_lines_as_wide_as_the_terminal(capsys, monkeypatch):
    plan = ["plan", "--like", "kinetics-i3d-1gpu", "--step_time=0.5"]
    monkeypatch.setenv("COLUMNS", "80")
    main(plan)
    narrow = capsys.readouterr().out
    assert 60 < max(map(len, narrow.splitlines())) <= 80
    monkeypatch.setenv("COLUMNS", "120")
    main(plan)
    wide = capsys.readouterr().out
    assert 100 < max(map(len, wide.splitlines())) <= 120
    assert wide.split() == narrow.split()


def test_nothing_that_is_said_controls_the_terminal(capsys):
    say("a\x1b[2J.mp4 \x9b31m \u202e gone\nnext line: été 漢 😀")
    assert capsys.readouterr().out == "a\\x1b[2J.mp4 \\x9b31m \\u202e gone\nnext line: été 漢 😀\n"
