"""The table of recipes beside their sources: it is what the recipes are, and differences are those that they name."""

import pytest

from tests.helpers.recipe_sources import COLUMNS, FOLDER, MARKS, PAGE, SOURCES, ours, table

# What a recipe says of a difference.
NAMED = {"drop path": "no drop path", "short sides": "crops of random area", "decay": "cosine that ends at 0"}


def test_the_page_is_made_from_the_recipes():
    """If not: `python -m tests.helpers.recipe_sources`."""
    assert PAGE.read_text().partition(MARKS[0])[2].partition(MARKS[1])[0] == table()


@pytest.mark.parametrize("recipe", SOURCES)
def test_a_recipe_trains_what_its_source_does_but_for_what_it_names(recipe):
    theirs = SOURCES[recipe][1]
    mine, other = (dict(zip(COLUMNS, values, strict=True)) for values in (ours(recipe), theirs))
    # The tail of an epoch, which the published code drops, is less than 0.3 % of it.
    counts = [int(values["iterations"].replace(",", "")) for values in (mine, other)]
    assert counts[0] == pytest.approx(counts[1], rel=0.003)
    same = ["clips", "optimizer, LR", "warm-up"]
    assert [mine[column] for column in same] == [other[column] for column in same]
    comments = (FOLDER / f"{recipe}.yaml").read_text().partition("config:")[0].replace("\n#", " ")
    for column, words in NAMED.items():
        assert (mine[column] == other[column]) == (words not in comments), (recipe, column)
