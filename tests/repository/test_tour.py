"""The notebook runs from top to bottom: with few videos in the ordinary tests, as it is in a slow one."""

import os
import re
import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the notebook's own machinery


@pytest.fixture
def outputs(tmp_path, monkeypatch):
    """Runs the notebook, with other parameters if some are given, and returns what it shows."""
    monkeypatch.setenv("LIGHTNING_MULTIGRID_CACHE", str(tmp_path))
    paths = [str(EXAMPLES.parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    here = tmp_path / "examples"  # as in the repository, which it must not write to
    for folder in (here, tmp_path / "benchmarks"):
        folder.mkdir()
    shutil.copy(EXAMPLES.parent / "benchmarks" / "animation.py", tmp_path / "benchmarks")

    def run(parameters=None):
        notebook = nbformat.read(EXAMPLES / "tour.ipynb", as_version=4)
        (cell,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
        cell.source = parameters or cell.source
        NotebookClient(notebook, timeout=1200, resources={"metadata": {"path": str(here)}}).execute()
        return [output for cell in notebook.cells for output in cell.get("outputs", [])]

    return run


def printed(outputs):
    return "".join(output.get("text", "") for output in outputs)


def check(outputs):
    """All pictures and tables are there, and no red box. Returns the accuracies and steps of both trainings."""
    shown = [output.get("data", {}) for output in outputs]
    assert sum("image/png" in data for data in shown) == 2
    assert sum("image/gif" in data for data in shown) == 1
    assert [output["text"] for output in outputs if output.get("name") == "stderr"] == []
    assert "steps instead of 1792500" in printed(
        outputs
    )  # of the plan: 239 epochs of 240,000 videos in mini-batches of 8 x 4
    assert "Multigrid schedule for a baseline of 8 x 8 x 40" in printed(outputs)
    both, times = [data["text/html"] for data in shown if "text/html" in data and "<table>" in data["text/html"]]
    assert "by its FLOPs" in times
    steps = [int(number) for number in re.findall(r"(?:baseline|multigrid)</td><td>(\d+)<", both)]
    return [float(number) for number in re.findall(r"<td>([\d.]+)%", both)], steps


def test_the_tour_runs_and_shows_its_figures(outputs):
    shown = outputs("EPOCHS, VIDEOS, WORKERS = 2, 8, 0")
    accuracies, steps = check(shown)
    # What the repository shows is of this code.
    stored = nbformat.read(EXAMPLES / "tour.ipynb", as_version=4)
    kept = [output for cell in stored.cells for output in cell.get("outputs", [])]
    plan, _, drawn = printed(shown).partition("Drawn to")
    assert printed(kept).startswith(plan)
    assert drawn.startswith(" plan.png.\n")
    assert min(check(kept)[0]) > 60
    assert len(accuracies) == 2
    assert steps == [2 * 16, steps[1]]
    assert steps[1] < steps[0]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_both_trainings_of_the_tour_learn(outputs):
    accuracies, steps = check(outputs())
    assert min(accuracies) > 60  # chance is 6.2
    assert steps[0] > 2.5 * steps[1]
