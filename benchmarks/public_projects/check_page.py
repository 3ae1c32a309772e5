"""What the README and `docs/refused.md` say of public projects is what was found, by the scripts as they are now.

python -m pytest -n 0 benchmarks/public_projects/check_page.py
"""

import json
from pathlib import Path

import pytest

from lightning_multigrid import LongCycle, MultigridCallback

ROOT = Path(__file__).parents[2]
REPORT = json.loads(Path(__file__).with_name("results.json").read_text())


def projects(report):
    """The table of the README."""
    columns = ["project", "what it trains", "with the callback", "why, and what to write"]
    rows = [
        [
            f"[{of['project']}](https://github.com/{of['project']}/tree/{of['commit']})",
            of["kind"],
            _outcome(of),
            _way(of),
        ]
        for of in report["projects"].values()
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [columns, ["---"] * len(columns), *rows])


def projects_sentence(report):
    found = [_outcome(of) for of in report["projects"].values()]
    names = len({of["project"] for of in report["projects"].values()})
    counts = {outcome: found.count(outcome) for outcome in ("works", "with arguments", "with a change", "refused")}
    return (
        f"Of {len(found)} scripts of {names} projects, {counts['works']} work with the line alone, "
        f"{counts['with arguments']} with arguments, {counts['with a change']} with a change of the script, and "
        f"{counts['refused']} are refused; no script trains otherwise than planned."
    )


def _outcome(of):
    if of["outcome"] != "works" or "alone" not in of:
        return str(of["outcome"])
    return "with a change" if of["changes"] else "with arguments"


def _way(of):
    if of["outcome"] != "works" or "alone" not in of:
        return str(of["why"]) if of["outcome"] != "works" else ""
    ways = " and ".join(filter(None, (of["given"] and f"`{of['given']}`", of["changes"])))
    return f"{of['why']}: {ways}"


def test_the_page_has_what_was_found():
    page = (ROOT / "docs" / "refused.md").read_text()
    assert projects(REPORT) in Path(__file__).with_name("README.md").read_text()
    assert projects_sentence(REPORT) in " ".join(page.split())


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
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    from project_scripts import SCRIPTS

    assert {*SCRIPTS} >= {*REPORT["projects"]}
    for name, found in REPORT["projects"].items():
        way = SCRIPTS[name]
        assert (way.repository, way.commit, way.kind) == (found["project"], found["commit"], found["kind"])
        assert (way.why, way.given, way.changes) == (found["why"], found["given"], found["changes"])
