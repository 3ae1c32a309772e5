"""Results that the pages show are of code that trains what today's trains, or of a version that the page names."""

from pathlib import Path

import pytest
from fingerprint import NAME, _training, fingerprint

from lightning_multigrid import LongCycle, MultigridCallback, ShortCycle
from tests.helpers.sampling import sampled

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
pytestmark = pytest.mark.filterwarnings("ignore")


def test_shown_results_are_of_code_that_trains_the_same():
    """If this fails, what the pages show is of older code: run `compare` again, and write its fingerprint beside it."""
    today = fingerprint()
    written = {file.parent.name: file.read_text().strip() for file in RESULTS.rglob(NAME)}
    by_the_command = "quickstart", "own_videos_60", "own_videos_400", "own_videos_2000", "lips_single", "grid_words"
    by_the_script = [
        *(f"easy_{epochs}" for epochs in (5, 7, 10, 14, 20)),
        *(f"cnn_{epochs}" for epochs in (10, 14, 20, 28, 40)),
        *(f"transformer_{epochs}" for epochs in (10, 15, 21, 30, 42, 60)),
        *(f"lips_{epochs}" for epochs in (16, 22, 32, 45)),
        *("lips", "lips_people", "fine_tuning"),
    ]
    assert written == dict.fromkeys((*by_the_command, *by_the_script), today)


@pytest.fixture(scope="module")
def plain():
    return _training(MultigridCallback())


CHANGED = [
    {"lr_scaling": "sqrt"},
    {"seed": 1},
    {"sub_batch": 4},
    {"epoch_factor": 1.25},
    {"long_cycle": LongCycle(((0.5, 1), (1, 1)))},
    {"short_cycle": ShortCycle((1,))},
]


@pytest.mark.parametrize("changed", sampled(CHANGED, {"sub_batch": 4}, {"short_cycle": ShortCycle((1,))}), ids=str)
def test_it_changes_with_what_decides_a_training(changed, plain):
    assert _training(MultigridCallback(**changed)) != plain
