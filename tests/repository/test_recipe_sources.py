"""Recipes train what their sources do, but for what is named."""

import pytest

from tests.helpers.recipe_sources import COLUMNS, FOLDER, SOURCES, ours

# What a recipe says of a difference.
NAMED = {"drop path": "no drop path", "short sides": "crops of random area", "decay": "cosine that ends at 0"}
# What the README of the recipes, or the recipe in other words, says of one.
DECAY = "slowfast_8gpu_baseline", "ssv2_baseline", "charades_baseline"
ALSO = {("weight decay", recipe) for recipe in DECAY} | {("test", "ssv2_baseline"), ("test", "vit_kinetics_baseline")}


@pytest.mark.parametrize("recipe", SOURCES)
def test_a_recipe_trains_what_its_source_does_but_for_what_it_names(recipe):
    theirs = SOURCES[recipe][1]
    mine, other = (dict(zip(COLUMNS, values, strict=True)) for values in (ours(recipe), theirs))
    # The tail of an epoch, which the published code drops, is less than 0.3 % of it.
    counts = [int(values["iterations"].replace(",", "")) for values in (mine, other)]
    assert counts[0] == pytest.approx(counts[1], rel=0.003)
    for column in COLUMNS:
        if column not in NAMED and column != "iterations":
            assert (mine[column] == other[column]) == ((column, recipe) not in ALSO), column
    comments = (FOLDER / f"{recipe}.yaml").read_text().partition("config:")[0].replace("\n#", " ")
    for column, words in NAMED.items():
        assert (mine[column] == other[column]) == (words not in comments), (recipe, column)
