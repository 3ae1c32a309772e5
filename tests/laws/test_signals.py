"""SIGINT and SIGTERM to the whole process group of a training, whose loaders have workers, at any moment of it."""

import json
import logging
import multiprocessing
import os
import random
import signal
import sys
import time
from itertools import product

import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback

from lightning_multigrid import MultigridCallback, NewestCheckpoint
from tests.helpers.processes import start_method
from tests.helpers.sampling import sampled
from tests.helpers.tiny import Module, fit, loader

pytestmark = pytest.mark.usefixtures("_unrehearsed")

SIGNALS = [signal.SIGINT, signal.SIGTERM]
MOMENTS = 40  # mini-batches, of the training or a validation, before which the signal comes


class Slow(Module):
    """Computes long enough for a signal to come anywhere in a step."""

    def training_step(self, batch, batch_idx):
        time.sleep(0.02)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        time.sleep(0.02)
        super().validation_step(batch, batch_idx)


def program(folder, pipe, ckpt_path):
    os.setpgid(0, 0)
    error = os.open(folder / "stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(error, 2)  # of the workers, too
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)  # pytest has put a file of its own in its place
    logging.getLogger().addHandler(logging.StreamHandler())
    data = {"train": loader(num_workers=2), "val": loader(shuffle=False, number=40, num_workers=2)}
    arguments = {"max_epochs": 3, "enable_checkpointing": True, "num_sanity_val_steps": 0, "ckpt_path": ckpt_path}
    module, tell = Slow(), lambda *_: pipe.send(None)
    tells = LambdaCallback(on_train_batch_end=tell, on_validation_batch_end=tell)
    fit(module, MultigridCallback(), tells, NewestCheckpoint(folder, minutes=60), **data, **arguments)
    (folder / "seen.json").write_text(json.dumps(module.seen))


def run(folder, number=None, draw=0, ckpt_path=None):
    """Runs the program, and sends its group a signal at the moment of this draw; returns what it says as errors."""
    folder.mkdir(exist_ok=True)
    ours, its = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context(start_method()).Process(target=program, args=(folder, its, ckpt_path))
    process.start()
    its.close()
    try:
        if number is not None:
            drawn = random.Random(draw)
            for _ in range(drawn.randint(1, MOMENTS)):
                ours.recv()
            time.sleep(drawn.uniform(0, 0.05))
            os.killpg(process.pid, number)
        process.join(60)
        assert process.exitcode is not None, "it hangs"
    finally:
        if process.exitcode is None:
            os.killpg(process.pid, signal.SIGKILL)
        ours.close()
    return (folder / "stderr").read_text()


@pytest.mark.filterwarnings("ignore:Checkpoint directory")
@pytest.mark.parametrize(
    ("number", "draw"), sampled([*product(SIGNALS, range(20))], (signal.SIGTERM, 1), (signal.SIGINT, 18))
)
def test_a_signal_to_the_group_leaves_the_newest_checkpoint_and_no_false_word(number, draw, tmp_path):
    said = run(tmp_path / "stopped", number, draw)
    assert not (tmp_path / "stopped" / "seen.json").exists()  # it was stopped
    assert "DataLoader worker" not in said, said
    # A thread of Python's own in a worker prints one if the main process leaves in the middle of a transfer.
    assert "Traceback" not in said or "resource_sharer.py" in said, said
    assert "`ckpt_path='last'` continues from" in said
    assert torch.load(tmp_path / "stopped" / "last.ckpt", weights_only=True)["global_step"] > 0
    if draw == 0:
        run(tmp_path / "whole")
        run(tmp_path / "stopped", ckpt_path="last")
        whole, rest = (json.loads((tmp_path / name / "seen.json").read_text()) for name in ("whole", "stopped"))
        assert 0 < len(rest) < len(whole)
        assert rest == whole[-len(rest) :]
