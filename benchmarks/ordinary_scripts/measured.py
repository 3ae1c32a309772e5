"""What `run.py` learns of a script while it runs: reads of its dataset, its steps, and its accuracy in the end."""

import json
import os
import time

from lightning import Callback

READS = "ORDINARY_SCRIPTS_READS"
RESULT = "ORDINARY_SCRIPTS_RESULT"
STEP = "@step"
"""Begins the line that is printed before each step, so that what is printed between two steps has its place."""


def count_read() -> None:
    """Counts one read of a dataset, from whatever process it is."""
    if READS in os.environ:
        with open(os.environ[READS], "ab", buffering=0) as file:
            file.write(b".")  # one write at the end of a file is whole


class Measured(Callback):
    def __init__(self) -> None:
        self.steps, self.samples, self.began = 0, 0, time.perf_counter()

    def on_train_batch_start(self, trainer, module, batch, batch_idx) -> None:
        print(STEP, self.steps, flush=True)
        self.steps += 1

    def on_train_end(self, trainer, module) -> None:
        print(STEP, "end", flush=True)

    def teardown(self, trainer, module, stage) -> None:
        if stage == "fit" and RESULT in os.environ:
            accuracy = float(trainer.callback_metrics["val_acc"])
            seconds = time.perf_counter() - self.began
            with open(os.environ[RESULT], "w") as file:
                json.dump({"steps": self.steps, "accuracy": accuracy, "seconds_of_fit": seconds}, file)
