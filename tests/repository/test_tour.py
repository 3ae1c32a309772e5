"""The notebook runs from top to bottom."""

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the notebook's own machinery
def test_the_tour_runs_and_shows_its_figures(tmp_path, monkeypatch):
    monkeypatch.setenv("LIGHTNING_MULTIGRID_CACHE", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.read(ROOT / "examples" / "tour.ipynb", as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()

    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 4
    printed = "".join(output.get("text", "") for output in outputs)
    assert "steps instead of 1792500" in printed  # of the plan: 239 epochs of 240,000 videos in mini-batches of 8 x 4
    assert "Time per shape of mini-batch" in printed
