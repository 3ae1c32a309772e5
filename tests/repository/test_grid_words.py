"""The pages' table of the words of GRID is that of the runs which are stored."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUNS = {
    "baseline, 16 epochs": "default/baseline",
    "multigrid 1.5x without the short cycle": "short_cycle_off/multigrid",
    "baseline, 11 epochs": "short_cycle_off/shortened",
    "multigrid 1.5x, short cycle of 32, 40 and 48 pixels": "short_cycle_from_32_of_48/multigrid",
    "multigrid 1.5x, the default: 24, 34 and 48 pixels": "default/multigrid",
    "baseline, 8 epochs": "default/shortened",
}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("page", ["docs/pays.md", "benchmarks/tasks/README.md"])
def test_the_table_shows_the_runs(page: str, name: str) -> None:
    files = sorted((ROOT / "benchmarks/results/grid_words").glob(f"{RUNS[name]}-*.json"))
    runs = [json.loads(file.read_text()) for file in files]  # a seed each
    top1 = ", ".join(f"{100 * run['validations'][-1][-1]['val/top1']:.1f}" for run in runs)
    cpu = ", ".join(f"{run['cpu']:.0f}" for run in runs)
    shown = [top1, f"{runs[0]['steps']:,}", cpu]
    [row] = [line for line in (ROOT / page).read_text().splitlines() if line.startswith(f"| {name} |")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert [cell for cell in cells[1:] if cell and cell[0].isdigit()] == shown
