"""The comparison of readers runs, and the documentation shows what it counted."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "compare_readers.py"
RESULT = ROOT / "benchmarks" / "results" / "readers.json"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import compare_readers

    return compare_readers


@pytest.mark.slow  # the script itself, in processes that import; its verdicts are below
@pytest.mark.timeout(300)
def test_ours_is_right_and_others_that_are_not_installed_are_named(tmp_path):
    json_file = tmp_path / "readers.json"
    args = ["--files", "3", "--readers", "ours", "decord", "--json", str(json_file)]
    (tmp_path / "decord.py").write_text("raise ImportError")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = [sys.executable, str(SCRIPT), *args]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "not installed: decord (ImportError)" in done.stdout
    counts = json.loads(json_file.read_text())["counts"]
    assert list(counts) == ["ours"]
    assert sum((Counter(row) for row in counts["ours"].values()), Counter())["wrong"] == 0


def test_a_neighbour_a_grey_picture_and_a_crash_are_not_right(script, tmp_path):
    case = next(case for case in script.cases() if case.name == "h264-gop.mp4")
    asked = script.ask(case.write(tmp_path), "ordinary", case.matrix)
    read = script.ours
    # In this process: a fork of one that has computed with several threads may hang in its first such operation.
    assert script.verdicts(read, asked) == ["right"] * 8
    assert script.verdicts(lambda path, indices: read(path, indices) * 0.95, asked) == ["right"] * 8  # other colours
    assert script.verdicts(lambda path, indices: read(path, [index ^ 1 for index in indices]), asked) == ["wrong"] * 8
    assert script.verdicts(lambda path, indices: read(path, indices) * 0 + 128, asked) == ["wrong"] * 8
    assert script.in_child(lambda path, indices: script.os._exit(1), asked) == ["error"] * 8  # it computes nothing


def test_the_results_show_the_table(script):
    report = json.loads(RESULT.read_text())
    assert script.table(report["counts"], report["kinds"]) in (RESULT.parent / "README.md").read_text()
