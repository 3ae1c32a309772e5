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
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.optim.lr_scheduler import MultiStepLR
from torch.utils.data import DataLoader, TensorDataset

from lightning_multigrid import AtomicCheckpointIO, MultigridCallback
from tests.helpers.tiny import CLASSES, Module, clips, trainer

NUMBER = 203  # divided by neither 2 nor 3


def steps_scheduler(optimizer, module):
    return MultiStepLR(optimizer, [1])


class Drawn(TensorDataset):
    """Clips with their numbers, and a number that is drawn when a clip is read."""

    def __getitem__(self, index):
        return *super().__getitem__(index), index, torch.rand(())


class Recording(Module):
    """Records which clips it saw, and writes a line for each update.

    With `unused` one layer gets no gradients, for DDP to find. `layers` adds layers of BatchNorm, each of another
    width, as in large models. `die` says which `rank`, or "all", dies at a `step`, or in epoch 1, and `how`: "kill",
    "raise" or "worker", which kills a worker of its loader. The file `died` is written then.
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
        x, y, index, drawn = batch
        if isinstance(self._trainer, L.Trainer):
            now = self.global_step == self.die["step"] if "step" in self.die else self.current_epoch == 1
            if now and self.die.get("rank") in (self.global_rank, "all"):
                Path(self.folder, "died").touch()
                if self.die["how"] == "raise":
                    raise ValueError("the third clip is odd")
                worker = multiprocessing.active_children()[0].pid if self.die["how"] == "worker" else None
                os.kill(worker or os.getpid(), signal.SIGKILL)
                if worker:
                    self.die = {}
            self.indices.append(index.tolist())
            self.place = [self.current_epoch, batch_idx, *x.shape[2:4], torch.rand(()).item()]
            self.clips = [*zip(index.tolist(), drawn.tolist(), strict=True)]
        return super().training_step((x, y % CLASSES), batch_idx)

    def note_lr(self, optimizer, *_):
        super().note_lr(optimizer)
        with open(f"{self.folder}/{self.global_rank}.jsonl", "a") as file:
            file.write(json.dumps([[*self.place, self.lrs[-1]], self.clips]) + "\n")

    def validation_step(self, batch, batch_idx):
        super().validation_step((batch[0], batch[1] % CLASSES), batch_idx)

    def on_train_end(self):
        state = {name: value for name, value in self.state_dict().items() if "unused" not in name}
        torch.save((self.seen, self.indices, state), f"{self.folder}/{self.global_rank}.pt")


def main(folder, devices, num_nodes=1, die=None, layers=0, compiled=False, workers=0, batch=2, keep=None, **ddp):
    """Trains, in global mini-batches of `batch` clips of each rank; continues with the last checkpoint in `keep`."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    L.seed_everything(0, verbose=False)  # else each rank draws for itself
    train = DataLoader(Drawn(*clips(NUMBER).tensors), batch, shuffle=True, num_workers=workers)
    val = DataLoader(Drawn(*clips(11).tensors), batch)
    callbacks = [MultigridCallback(seed=0, milestones="script", precise_bn_batches=2)]
    callbacks += [ModelCheckpoint(keep, every_n_train_steps=3, save_last=True)] if keep else []
    strategy = DDPStrategy(process_group_backend="gloo", **ddp)
    settings = {"devices": devices, "num_nodes": num_nodes, "enable_checkpointing": keep is not None, "max_epochs": 2}
    host = trainer(*callbacks, plugins=[AtomicCheckpointIO()], strategy=strategy, **settings)
    module = Recording(folder, ddp.get("find_unused_parameters", False), die, layers)
    if compiled:
        module.net.compile(backend="eager", dynamic=False)
    host.fit(module, train, val, ckpt_path=keep and "last")


if __name__ == "__main__":
    main(sys.argv[1], **json.loads(sys.argv[2]))
