"""What a logger is given of a step is of that step, however rarely it is asked for."""

import csv

import pytest
from lightning.pytorch.loggers import CSVLogger

from lightning_multigrid import MultigridCallback
from tests.tiny import Module, fit


@pytest.mark.parametrize("every", [1, 10, 25])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_values_of_the_logged_steps(every, accumulate, tmp_path):
    module = Module()
    host = fit(
        module,
        MultigridCallback(),
        logger=CSVLogger(tmp_path),
        log_every_n_steps=every,
        accumulate_grad_batches=accumulate,
    )
    with open(tmp_path / "lightning_logs" / "version_0" / "metrics.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["multigrid/clips"]]
    # The last micro-batch of each optimizer step.
    last = [
        index
        for index, (epoch, batch, *_) in enumerate(module.seen)
        if (batch + 1) % accumulate == 0 or index + 1 == len(module.seen) or module.seen[index + 1][0] != epoch
    ]
    assert len(rows) >= host.max_epochs
    assert len(rows) <= len(last)
    for row in rows:
        logged = tuple(int(float(row[f"multigrid/{name}"])) for name in ("clips", "frames", "size"))
        assert logged == module.shapes[last[int(row["step"])]]
