"""Trainings on 1, 2 and 4 ranks with 0, 1 and 3 workers, killed and continued: the same clips, grids, draws and LRs."""

import json
import random
from itertools import chain

import pytest
from torch.multiprocessing import ProcessExitedException

from tests.helpers.launchers import by_forks, by_torchrun
from tests.helpers.sampling import sampled

pytestmark = pytest.mark.usefixtures("_unrehearsed")
CLIPS = 4  # of a global mini-batch of the baseline
RANKS, WORKERS = (1, 2, 4), (0, 1, 3)


def drawn_cases(number):
    """Where a training begins and goes on, in ranks and workers; the step at which it is killed, and which rank."""
    draw = random.Random(0)
    for _ in range(number):
        begins, goes_on = ((draw.choice(RANKS), draw.choice(WORKERS)) for _ in range(2))
        yield begins, goes_on, draw.randrange(1, 36), draw.choice(["all", *range(begins[0])])


def updates(folder, world):
    """What all ranks together have written of each update: its place, grid, draw and LR; its clips and their draws."""
    files = [(folder / f"{rank}.jsonl").read_text().splitlines(keepends=True) for rank in range(world)]
    for lines in zip(*files, strict=False):  # a rank that is killed may have written one line less
        if all(line.endswith("\n") for line in lines):
            places, clips = zip(*map(json.loads, lines), strict=True)
            assert all(place == places[0] for place in places)
            yield f"{places[0]} {[*chain(*clips)]}\n"


def train(launch, folder, world, workers, **options):
    folder.mkdir()
    launch(folder, world, workers=workers, batch=CLIPS // world, **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("launches") / "whole"
    train(by_forks, folder, 1, 0)
    return [*updates(folder, 1)]


def check(launch, folder, whole, begins, goes_on, step, rank):
    keep = str(folder / "kept")
    with pytest.raises((AssertionError, ProcessExitedException)):
        train(launch, folder / "killed", *begins, keep=keep, die={"rank": rank, "how": "kill", "step": step})
    assert (folder / "killed" / "died").exists()
    train(launch, folder / "rest", *goes_on, keep=keep)
    before, after = [*updates(folder / "killed", begins[0])], [*updates(folder / "rest", goes_on[0])]
    assert step - 1 <= len(before) <= step
    assert len(whole) - step <= len(after)
    # As bytes; what was done after the last checkpoint is done again, alike.
    assert "".join(before).encode() == "".join(whole[: len(before)]).encode()
    assert "".join(after).encode() == "".join(whole[-len(after) :]).encode()


@pytest.mark.parametrize(
    "case",
    sampled([(((4, 1), (1, 3), 8, "all"),), (((1, 0), (2, 1), 21, "all"),)], (((1, 0), (2, 1), 21, "all"),)),
    ids=str,
)
def test_a_training_that_is_killed_has_the_sequence_of_one_that_is_not(case, tmp_path, whole):
    check(by_forks, tmp_path, whole, *case)


@pytest.mark.slow
@pytest.mark.parametrize("case", [*drawn_cases(40)], ids=str)
def test_it_has_by_torchrun(case, tmp_path, whole):
    check(by_torchrun, tmp_path, whole, *case)
