"""The notebook runs from top to bottom: with few videos in this process, and in a slow test as it is, in its own."""

import os
import re
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the notebook's own machinery


@pytest.fixture
def outputs(tmp_path, monkeypatch):
    """Runs the notebook in a process of its own, and returns what it shows."""
    monkeypatch.setenv("LIGHTNING_MULTIGRID_CACHE", str(tmp_path))
    paths = [str(EXAMPLES.parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    here = tmp_path / "examples"  # as in the repository, which it must not write to
    here.mkdir()
    shutil.copytree(EXAMPLES.parent / "docs" / "figures", tmp_path / "docs" / "figures")

    def run():
        notebook = nbformat.read(EXAMPLES / "tour.ipynb", as_version=4)
        NotebookClient(notebook, timeout=1200, resources={"metadata": {"path": str(here)}}).execute()
        return [output for cell in notebook.cells for output in cell.get("outputs", [])]

    return run


def printed(outputs):
    return "".join(output.get("text", "") for output in outputs)


def check(outputs, animations=1):
    """All pictures and tables are there, and no red box. Returns the accuracies and steps of both trainings."""
    shown = [output.get("data", {}) for output in outputs]
    assert sum("image/png" in data for data in shown) == 1
    assert sum("image/gif" in data for data in shown) == animations
    told = "".join(output["text"] for output in outputs if output.get("name") == "stderr")
    assert re.fullmatch(r"(Each of [\d,]+ videos is decoded once, .*)?", told, re.DOTALL)  # and no more
    # Of the plan: 239 epochs of 240,000 videos in mini-batches of 8 x 4.
    assert "steps instead of 1792500" in printed(outputs)
    assert "Multigrid schedule for a baseline of 8 x 8 x 40" in printed(outputs)
    both, times = [data["text/html"] for data in shown if "text/html" in data and "<table>" in data["text/html"]]
    assert "<th>steps</th><th>ms a step</th>" in times
    steps = [int(number) for number in re.findall(r"(?:baseline|multigrid)</td><td>(\d+)<", both)]
    return [float(number) for number in re.findall(r"<td>([\d.]+)%", both)], steps


SMALL = "EPOCHS, VIDEOS, WORKERS = 1, 4, 0"


@pytest.fixture
def run_here(tmp_path, monkeypatch, capsys):
    """Runs the cells in this process, which has imported torch; returns what a notebook would show."""
    monkeypatch.setenv("LIGHTNING_MULTIGRID_CACHE", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(EXAMPLES)
    displayed = []
    monkeypatch.setattr("IPython.display.display", displayed.append)

    def run():
        variables = {}
        with warnings.catch_warnings():
            for cell in nbformat.read("tour.ipynb", as_version=4).cells:
                if cell.cell_type == "code":
                    exec(SMALL if "parameters" in cell.metadata.get("tags", []) else cell.source, variables)
        said = capsys.readouterr()
        streams = [{"name": "stdout", "text": said.out}, *([{"name": "stderr", "text": said.err}] if said.err else [])]
        kinds = {"png": "image/png", "gif": "image/gif"}
        figures = [(kinds.get(getattr(figure, "format", ""), "text/html"), figure.data) for figure in displayed]
        return [*streams, *({"data": dict([figure])} for figure in figures)]

    return run


@pytest.mark.smallest
def test_the_tour_runs_and_shows_its_figures(run_here):
    stored = nbformat.read(EXAMPLES / "tour.ipynb", as_version=4)
    kept = [output for cell in stored.cells for output in cell.get("outputs", [])]
    shown = run_here()
    accuracies, steps = check(shown)
    # What the repository shows is of this code.
    plan, _, drawn = printed(shown).partition("Drawn to")
    assert printed(kept).startswith(plan)
    assert drawn.startswith(" plan.png.\n")
    assert min(check(kept, animations=0)[0]) > 60  # the animation would be most of the file
    assert len(accuracies) == 2
    assert steps == [8, steps[1]]
    assert steps[1] < steps[0]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_both_trainings_of_the_tour_learn(outputs):
    accuracies, steps = check(outputs())
    assert min(accuracies) > 60  # chance is 6.2
    assert steps[0] > 2.5 * steps[1]
