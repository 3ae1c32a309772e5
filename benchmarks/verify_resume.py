"""Kills a training with `kill -9`, continues it with `ckpt_path="last"`, and compares it with an uninterrupted one.

    python benchmarks/verify_resume.py --kills 50

Each trial is a process of its own, with two workers. It dies at a random step, within one step of the start or end of
an epoch or a phase, in the middle of a validation, or with half a checkpoint on the disk; half of the trials die a
random fraction of a step later. A second process continues. Its steps are compared with those of the uninterrupted
training: indices of the clips, their shape, LR and loss to the last bit, and at the end a hash of weights, momentum and
average.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from io import BytesIO
from pathlib import Path
from unittest import mock

import lightning as L
import torch
from lightning.pytorch import callbacks
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

from lightning_multigrid import (
    AtomicCheckpointIO,
    Augmentation,
    Baseline,
    BatchShape,
    MultigridCallback,
    MultigridSchedule,
    Plan,
    ShortCycle,
)

CLIPS, CLASSES, EPOCHS = 100, 4, 4


class Classifier(L.LightningModule):
    """A small 3D CNN with dropout and augmentation; it writes a line for each step."""

    def __init__(self, log: Path) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(
            nn.Conv3d(3, 8, 3, stride=2, padding=1),
            nn.BatchNorm3d(8),
            nn.ReLU(),
            nn.AdaptiveAvgPool3d(1),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(8, CLASSES),
        )
        self.log_file = log

    def training_step(self, batch, batch_idx):
        x, y, index = batch
        x = x + 0.1 * torch.randn_like(x)
        if x.device.type == "meta":
            return self.net(x).sum()
        # Drawn from torch's random state on the device, as a user's own augmentation would be.
        seeds = torch.randint(2**31, (len(x),)).tolist()
        augment = Augmentation(mixup=0.8, cutmix=1.0, erasing=0.5)
        x, y = augment.apply(x, y, seeds, num_classes=CLASSES, mean=[0.0] * 3, std=[1.0] * 3)
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.step = [self.current_epoch, batch_idx, index.tolist(), list(x.shape), loss.item().hex()]
        return loss

    def note_step(self, optimizer: SGD, *_: object) -> None:
        """With the LR in use, which is the group's while the optimizer steps."""
        with self.log_file.open("a") as file:
            file.write(json.dumps([*self.step, float(optimizer.param_groups[0]["lr"]).hex()]) + "\n")

    def validation_step(self, batch, batch_idx):
        self.log("val", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = SGD(self.parameters(), lr=0.1, momentum=0.9)
        optimizer.register_step_post_hook(self.note_step)
        steps = int(self.trainer.estimated_stepping_batches)
        return [optimizer], [{"scheduler": OneCycleLR(optimizer, 0.1, total_steps=steps), "interval": "step"}]


class KillAt(L.Callback):
    """Kills the process at the n-th moment of a kind."""

    def __init__(self, moment: str, number: int, delay: float) -> None:
        self.moment, self.left, self.delay = moment, number, delay

    def reach(self, moment: str) -> None:
        if moment == self.moment:
            if self.left == 0:
                # With a delay, the process and its workers go on, and the signal interrupts what they do next.
                if self.delay and os.fork() == 0:
                    time.sleep(self.delay)
                    os.killpg(0, signal.SIGKILL)
                elif not self.delay:
                    os.killpg(0, signal.SIGKILL)
            self.left -= 1

    def on_train_batch_start(self, *_):
        self.reach("step")

    def on_validation_batch_start(self, trainer, *_):
        if not trainer.sanity_checking:
            self.reach("validation")

    def half_written(self, save):
        """A `torch.save` that reaches the moment "write" when half of a checkpoint is on the disk."""

        def write(checkpoint, file):
            buffer = BytesIO()
            save(checkpoint, buffer)
            data = buffer.getvalue()
            file.write(data[: len(data) // 2])
            file.flush()
            self.reach("write")
            file.write(data[len(data) // 2 :])

        return write


def clips() -> TensorDataset:
    """Noise whose class is in its mean: clips C x T x H x W, labels, and their own index."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, CLASSES, (CLIPS,), generator=generator)
    noise = torch.randn(CLIPS, 3, 8, 32, 32, generator=generator)
    return TensorDataset(noise + labels.view(-1, 1, 1, 1, 1), labels, torch.arange(CLIPS))


def train(folder: Path, workers: int, kill: KillAt | None = None) -> None:
    """A training that continues with the last checkpoint of its folder, if it has one."""
    L.seed_everything(1, verbose=False)
    data, module = clips(), Classifier(folder / "steps.jsonl")
    average = getattr(callbacks, "EMAWeightAveraging", None)  # new in Lightning 2.6
    extra = [callback for callback in (kill, average(decay=0.9) if average else None) if callback is not None]
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=EPOCHS,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        plugins=[AtomicCheckpointIO()],
        callbacks=[
            MultigridCallback(milestones=[2, 3], lr_scaling="sqrt", short_cycle=ShortCycle()),
            callbacks.ModelCheckpoint(folder, every_n_train_steps=3, save_last=True),
            *extra,
        ],
    )
    loaders = DataLoader(data, 4, shuffle=True, num_workers=workers), DataLoader(data, 4)
    write = kill.half_written(torch.save) if kill else torch.save
    with mock.patch("torch.save", write):
        trainer.fit(module, *loaders, ckpt_path="last")
    # By now the module has the averaged weights; the checkpoint has both.
    trainer.save_checkpoint(folder / "end.ckpt")
    (folder / "hash").write_text(hash_of(torch.load(folder / "end.ckpt", weights_only=True)))


def hash_of(checkpoint: dict) -> str:
    digest = hashlib.sha256()

    def add(part) -> None:
        if isinstance(part, torch.Tensor):
            digest.update(part.numpy().tobytes())
        elif isinstance(part, dict):
            for name in sorted(part, key=str):
                digest.update(str(name).encode())
                add(part[name])
        elif isinstance(part, (list, tuple)):
            for item in part:
                add(item)
        else:
            digest.update(repr(part).encode())

    for name in ("state_dict", "current_model_state", "averaging_state", "optimizer_states", "global_step"):
        add(checkpoint.get(name))
    return digest.hexdigest()


def run(folder: Path, workers: int, kill: KillAt | None = None) -> int:
    """Trains in a process of its own, with a process group of its own; returns its status as `os.waitpid` does.

    It is a fork of this process, which has imported torch and Lightning: importing takes longer than training.
    """
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setpgid(0, 0)
            quiet = os.open(folder / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            train(folder, workers, kill)
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(pid, 0)[1]
    with contextlib.suppress(ProcessLookupError):  # its workers, which are in the same group
        os.killpg(pid, signal.SIGKILL)
    return status


def steps_of(folder: Path) -> list:
    lines = (folder / "steps.jsonl").read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def choose_moments(kills: int, validations: int, writes: int, draw: random.Random) -> list[tuple[str, int]]:
    """The moments at which to kill, of each kind in turn."""
    plan = Plan(MultigridSchedule(Baseline(BatchShape(4, 8, 32), EPOCHS, (2, 3))), CLIPS)
    steps = [step for epoch in range(plan.epochs) for step in plan.epoch(epoch)]
    edges = {number for number, step in enumerate(steps) if step.place.batch == 0}
    edges |= {number for number in range(1, len(steps)) if steps[number].phase != steps[number - 1].phase}
    near = sorted({number + side for number in edges for side in (-1, 0, 1)} & set(range(len(steps))))
    draw.shuffle(near)
    kinds = [
        lambda turn: ("step", draw.randrange(len(steps))),
        lambda turn: ("step", near[turn % len(near)]),
        lambda turn: ("validation", draw.randrange(validations)),
        lambda turn: ("write", draw.randrange(writes)),
    ]
    return [kinds[number % len(kinds)](number // len(kinds)) for number in range(kills)]


def verify(kills: int, workers: int, folder: Path) -> int:
    """Kills, continues and compares; returns how many trainings were identical."""
    whole = folder / "whole"
    whole.mkdir()
    if run(whole, workers) != 0:
        raise RuntimeError(f"The uninterrupted training failed:\n{(whole / 'output.txt').read_text()}")
    expected = {tuple(step[:2]): step for step in steps_of(whole)}
    draw, identical = random.Random(0), 0
    per_validation = -(-CLIPS // 4)  # there are as many as in the baseline
    moments = choose_moments(kills, EPOCHS * per_validation, len(expected) // 3, draw)
    for number, (moment, place) in enumerate(moments):
        trial = folder / f"trial {number}"
        trial.mkdir()
        # Half of the kills come a little later, wherever the process is by then.
        delay = draw.choice((0.0, draw.uniform(0.001, 0.03)))
        killed = run(trial, workers, KillAt(moment, place, delay))
        ended = run(trial, workers)
        steps = steps_of(trial)
        if not os.WIFSIGNALED(killed):
            raise RuntimeError(f"The training ended before {moment} {place}.")
        same = (
            ended == 0
            and {tuple(step[:2]) for step in steps} == set(expected)
            and all(step == expected[tuple(step[:2])] for step in steps)
            and (trial / "hash").read_text() == (whole / "hash").read_text()
        )
        identical += same
        again = len(steps) - len(expected)
        said = "identical" if same else f"DIFFERENT, see {trial}"
        print(f"{number + 1:3}  killed at {moment} {place} + {delay * 1000:4.1f} ms, {again} steps repeated: {said}")
        if same:
            shutil.rmtree(trial)
    print(
        f"{identical}/{kills} identical: indices, shapes, LR and loss of {len(expected)} steps, and the final weights"
    )
    return identical


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(args)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="verify_resume_"))
    if verify(options.kills, options.workers, folder) < options.kills:
        sys.exit(1)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
