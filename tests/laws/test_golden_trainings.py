"""Losses of six trainings, kept for each version of torch: whatever moves one of them is meant, or a fault.

If it is meant, what the pages show is of older code: train the tasks again, or date the numbers.
"""

import json

import pytest

from tests.helpers.golden import FILE, PLANS, STEPS, losses
from tests.helpers.sampling import sampled

RENEW = "if that is meant, run `python -m tests.helpers.golden`, and the changelog says why"
pytestmark = [pytest.mark.usefixtures("_unrehearsed"), pytest.mark.smallest]


@pytest.mark.parametrize("name", sampled(PLANS, "default on cosine", "paper", "AdamW", "DDP"))
def test_a_training_has_the_losses_that_were_kept(name, tmp_path):
    if not FILE.exists():
        pytest.skip(f"{FILE.name} is not kept: `python -m tests.helpers.golden` writes it")
    kept, found = json.loads(FILE.read_text())[name], losses(name, tmp_path / "losses")
    assert len(kept) == len(found) == STEPS
    moved = [number for number in range(STEPS) if found[number] != pytest.approx(kept[number], rel=0, abs=1.5e-6)]
    assert not moved, f"the plan '{name}' moved at {moved[0]} of {STEPS} losses, {found} for {kept}: {RENEW}"
