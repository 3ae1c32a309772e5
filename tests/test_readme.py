"""What the README shows is run."""

import contextlib
import doctest
import io
import re
from pathlib import Path

import pytest
import yaml

from lightning_multigrid.cli import main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.mark.filterwarnings("ignore:.*there is no last checkpoint available")
def test_python_blocks_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # checkpoints
    sessions = [block for block in blocks("python") if block.startswith(">>>")]
    scripts = [block for block in blocks("python") if not block.startswith(">>>")]
    assert sessions
    assert scripts
    for session in sessions:
        test = doctest.DocTestParser().get_doctest(session, {}, "README", "README.md", 0)
        assert doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test).failed == 0
    for script in scripts:
        exec(compile(script, "README.md", "exec"), {"__name__": "__main__"})


def test_configs_make_a_plan(tmp_path):
    for block in blocks("yaml"):
        (tmp_path / "mine.yaml").write_text(block)
        assert yaml.safe_load(block)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            main(["plan", "--config", str(tmp_path / "mine.yaml"), "--clips=1000"])
        assert "Multigrid schedule for a baseline of 8 x 16 x 112" in printed.getvalue()


def test_files_and_commands_that_it_names_exist():
    for path in re.findall(r"`?((?:examples|tests)/[\w./-]+)", README):
        assert (ROOT / path.rstrip(".")).exists(), path
    assert 'python -m pip install ".[test]" && pytest' in README
    assert "python -m pip install . && lightning-multigrid fit --config examples/quickstart.yaml" in README
    assert 'python -m pip install -q ".[test]" && pytest' in (ROOT / ".ci" / "run").read_text()
