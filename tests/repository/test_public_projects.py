"""What is said of public projects is what was found; `benchmarks/public_projects.py` fetches and runs them."""

import json
import runpy
from pathlib import Path

import pytest

from lightning_multigrid import LongCycle, MultigridCallback

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
REPORT = json.loads((RESULTS / "projects.json").read_text())


def test_the_page_has_what_was_found():
    tables = runpy.run_path(str(RESULTS / "tables.py"))
    page = (ROOT / "docs" / "scripts.md").read_text()
    assert tables["projects"](REPORT) in page
    assert tables["projects_sentence"](REPORT) in " ".join(page.split())


@pytest.mark.parametrize("name", REPORT["projects"])
def test_each_script_works_on_coarser_grids_or_is_refused_by_name(name):
    found = REPORT["projects"][name]
    if found["outcome"] == "works":
        assert len(found["grids"]) >= 3
        assert len({size for _, size in found["grids"]}) >= 3
    else:
        assert found["outcome"] == "refused"
        assert found["message"].partition(":")[0] in ("ValueError", "TypeError", "MisconfigurationException")
        assert found["why"]
    if "alone" in found:
        assert found["alone"]["outcome"] == "refused"
        assert found["given"] or found["changes"]
        MultigridCallback(**eval(f"dict({found['given']})", {"LongCycle": LongCycle}))


def test_the_scripts_are_those_of_the_results(monkeypatch):
    """As they are now: commits, kinds, arguments and changes."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from project_scripts import SCRIPTS

    assert {*SCRIPTS} >= {*REPORT["projects"]}
    for name, found in REPORT["projects"].items():
        way = SCRIPTS[name]
        assert (way.repository, way.commit, way.kind) == (found["project"], found["commit"], found["kind"])
        assert (way.why, way.given, way.changes) == (found["why"], found["given"], found["changes"])
