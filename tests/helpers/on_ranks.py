"""A training script for tests of launchers: `python -m tests.helpers.on_ranks FOLDER OPTIONS`.

The options are the arguments of `main`, as JSON. Each rank writes what it saw to a file of its own.
"""

import json
import multiprocessing
import os
import signal
import sys
import warnings
from itertools import pairwise
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.optim.lr_scheduler import MultiStepLR
from torch.utils.data import DataLoader, TensorDataset

from lightning_multigrid import MultigridCallback
from tests.helpers.tiny import CLASSES, Module, clips, trainer

NUMBER = 203  # divided by neither 2 nor 3


def steps_scheduler(optimizer, module):
    return MultiStepLR(optimizer, [1])


class Recording(Module):
    """Records which clips it saw.

    With `unused` one layer gets no gradients, for DDP to find. `layers` adds layers of BatchNorm, each of another
    width, as in large models. `die` says which `rank` dies in epoch 1, and `how`: "kill", "raise" or "worker", which
    kills a worker of its loader. The file `died` is written then.
    """

    def __init__(self, folder, unused, die, layers):
        super().__init__(steps_scheduler)
        self.folder, self.indices, self.die = folder, [], die or {}
        if unused:
            self.unused = nn.Linear(2, 2)
        with torch.random.fork_rng():
            torch.manual_seed(1)
            widths = [*range(3, 3 + layers), 3]
            blocks = [nn.Sequential(nn.Conv3d(*pair, 1), nn.BatchNorm3d(pair[1])) for pair in pairwise(widths)]
        if layers:
            self.net = nn.Sequential(*blocks, *self.net)

    def training_step(self, batch, batch_idx):
        x, y, index = batch
        if isinstance(self._trainer, L.Trainer):
            if self.current_epoch == 1 and self.global_rank == self.die.get("rank"):
                Path(self.folder, "died").touch()
                if self.die["how"] == "raise":
                    raise ValueError("the third clip is odd")
                worker = multiprocessing.active_children()[0].pid if self.die["how"] == "worker" else None
                os.kill(worker or os.getpid(), signal.SIGKILL)
                if worker:
                    self.die = {}
            self.indices.append(index.tolist())
        return super().training_step((x, y % CLASSES), batch_idx)

    def validation_step(self, batch, batch_idx):
        super().validation_step((batch[0], batch[1] % CLASSES), batch_idx)

    def on_train_end(self):
        state = {name: value for name, value in self.state_dict().items() if "unused" not in name}
        torch.save((self.seen, self.indices, state), f"{self.folder}/{self.global_rank}.pt")


def main(folder, devices, num_nodes=1, die=None, layers=0, compiled=False, workers=0, **ddp):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    train, val = (
        DataLoader(
            TensorDataset(*clips(number).tensors, torch.arange(number)),
            2,
            shuffle=number == NUMBER,
            num_workers=workers if number == NUMBER else 0,
        )
        for number in (NUMBER, 11)
    )
    host = trainer(
        MultigridCallback(seed=0, precise_bn_batches=2),
        max_epochs=2,
        strategy=DDPStrategy(process_group_backend="gloo", **ddp),
        devices=devices,
        num_nodes=num_nodes,
    )
    module = Recording(folder, ddp.get("find_unused_parameters", False), die, layers)
    if compiled:
        module.net.compile(backend="eager", dynamic=False)
    host.fit(module, train, val)


if __name__ == "__main__":
    main(sys.argv[1], **json.loads(sys.argv[2]))
