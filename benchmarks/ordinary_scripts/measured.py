"""What `run.py` learns of a script while it runs: reads of its dataset, its steps, and its accuracy in the end."""

import json
import os

from lightning import Callback
from torch._dynamo import utils  # no public function says how long `torch.compile` took
from torchvision.transforms import v2

from lightning_multigrid import VideoClips

READS = "ORDINARY_SCRIPTS_READS"
RESULT = "ORDINARY_SCRIPTS_RESULT"
STEP = "@step"
"""Begins the line that is printed before each step, so that what is printed between two steps has its place."""


def count_read() -> None:
    """Counts one read of a dataset, from whatever process it is."""
    if READS in os.environ:
        with open(os.environ[READS], "ab", buffering=0) as file:
            file.write(b".")  # one write at the end of a file is whole


class CountedClips(VideoClips):
    """`VideoClips`, whose reads are counted."""

    def read_clip(self, request):
        count_read()
        return super().read_clip(request)


def recommended(stride=2, mean=(0, 0, 0), std=(1, 1, 1)):
    """What docs/faster.md recommends for a script: its training and validation clips from planes."""
    clips = {"frames": 16, "size": 112, "stride": stride, "flip": False, "transform": v2.Normalize(mean, std)}
    train = CountedClips("prepared/train", **clips)
    return train, CountedClips("prepared/val", train=False, classes=train.classes, **clips)


class Measured(Callback):
    def __init__(self) -> None:
        self.steps = 0

    def on_train_batch_start(self, trainer, module, batch, batch_idx) -> None:
        print(STEP, self.steps, flush=True)
        self.steps += 1

    def on_train_end(self, trainer, module) -> None:
        print(STEP, "end", flush=True)

    def teardown(self, trainer, module, stage) -> None:
        if stage == "fit" and RESULT in os.environ:
            accuracy = float(trainer.callback_metrics["val_acc"])
            compiling = sum(utils.compilation_time_metrics.get("_compile.compile_inner", ()))
            figures = {"steps": self.steps, "accuracy": accuracy, "compiling": compiling}
            with open(os.environ[RESULT], "w") as file:
                json.dump(figures, file)
