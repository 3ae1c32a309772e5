"""Values that a logger gets for a step belong to that step, however rarely it logs."""

import csv
from itertools import product

import pytest
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from lightning_multigrid import MultigridCallback
from tests.helpers.sampling import sampled
from tests.helpers.tiny import Module, fit

pytestmark = pytest.mark.usefixtures("_unrehearsed")


def fit_logged(folder, module, **arguments):
    """The Trainer, and the rows of the file that a logger writes."""
    host = fit(module, MultigridCallback(), logger=CSVLogger(folder), **arguments)
    with open(folder / "lightning_logs" / "version_0" / "metrics.csv") as file:
        return host, [row for row in csv.DictReader(file) if row.get("multigrid/clips")]


@pytest.mark.parametrize(("every", "accumulate"), sampled(list(product((1, 10, 50), (1, 2))), (10, 2), (50, 1)))
def test_values_of_the_logged_steps_of_every_epoch(every, accumulate, tmp_path):
    """Also where the script's 50 steps are more than an epoch has."""
    module = Module()
    host, rows = fit_logged(tmp_path, module, log_every_n_steps=every, accumulate_grad_batches=accumulate)
    assert {int(row["epoch"]) for row in rows} == {*range(host.max_epochs)}
    # The last micro-batch of each optimizer step.
    last = [
        index
        for index, (epoch, batch, *_) in enumerate(module.seen)
        if (batch + 1) % accumulate == 0 or index + 1 == len(module.seen) or module.seen[index + 1][0] != epoch
    ]
    assert len(rows) <= len(last)
    for row in rows:
        logged = tuple(int(float(row[f"multigrid/{name}"])) for name in ("clips", "frames", "size"))
        assert logged == module.shapes[last[int(row["step"])]]


@pytest.mark.parametrize("accumulate", sampled([1, 5], 5))
@pytest.mark.parametrize("monitor", ["multigrid/phase", "multigrid/clips_per_second"])
def test_callbacks_may_watch_them_at_the_end_of_every_epoch(accumulate, monitor, tmp_path):
    epochs = []

    class Watching(EarlyStopping):
        def on_train_epoch_end(self, trainer, pl_module):
            epochs.append(float(trainer.callback_metrics[monitor]))
            super().on_train_epoch_end(trainer, pl_module)

    callback, module = MultigridCallback(), Module()
    watching = Watching(monitor, mode="max", patience=100, check_on_train_epoch_end=True)
    saver = ModelCheckpoint(tmp_path, monitor=monitor, mode="max", filename="best")
    host = fit(module, callback, watching, saver, accumulate_grad_batches=accumulate, enable_checkpointing=True)
    assert len(epochs) == host.current_epoch
    assert (tmp_path / "best.ckpt").exists()
    if monitor == "multigrid/phase":
        sampler = callback.run.plan
        assert epochs == [sampler.epoch(epoch)[-1].phase + 1 for epoch in range(host.current_epoch)]


def test_a_script_that_logs_no_steps_goes_on_to_log_none(tmp_path):
    host, rows = fit_logged(tmp_path, Module(), log_every_n_steps=0)
    assert (host.log_every_n_steps, rows) == (0, [])
