"""The README of the recipes, which is a page, names each of them, and says what the paper says."""

import re

import pytest

from lightning_multigrid.cli.main import main
from tests.helpers.paper_rows import TABLES, iterations, planned
from tests.helpers.recipe_sources import FOLDER

ROWS = [row for rows in TABLES.values() for row in rows]


@pytest.mark.parametrize("row", [row for row in ROWS if row.iterations], ids=lambda row: row.recipe)
def test_iterations_are_those_that_the_paper_states(row):
    assert iterations(row.recipe) == pytest.approx(1000 * row.iterations, rel=0.025)


def test_the_published_numbers_are_those_of_the_recipes():
    """Two copies, made from the paper at different times."""
    table = (FOLDER / "README.md").read_text()
    for row in (row for row in ROWS if row.published):
        (published,) = re.findall(rf"^\|[^|]*\| `{re.escape(row.recipe)}` \| (.*) \|$", table, re.MULTILINE)
        numbers = re.findall(r"(\d\d\.\d)(?: \+- [\d.]+)? % (?:top|mAP)", published)
        assert ", ".join(numbers) == row.published, row.recipe
        if row.faster.endswith("x"):
            assert f"{row.faster} faster" in published, row.recipe


def test_a_shortened_baseline_keeps_the_proportions_of_its_stages():
    for row in (row for row in ROWS if re.search(r"_baseline_\d", row.recipe)):
        short, whole = (
            planned(name).schedule.baseline for name in (row.recipe, re.sub(r"_baseline_.*", "_baseline", row.recipe))
        )
        shares = [[float(m) / float(b.epochs) for m in b.milestones] for b in (short, whole)]
        assert shares[0] == pytest.approx(shares[1], abs=0.01)


def test_iterations_are_those_of_the_command_plan(capsys):
    """Of a cosine, whose stages the callback infers."""
    recipe = "slowfast_cosine_multigrid"
    main(["plan", "--config", str(FOLDER / f"{recipe}.yaml"), "--clips=240000", "--devices=128"])
    assert f"{iterations(recipe)} steps instead of 112091" in capsys.readouterr().out
