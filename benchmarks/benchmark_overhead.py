"""What the callback costs: Lightning with MultigridCallback, compared with a bare loop over the same mini-batches.

    python benchmarks/benchmark_overhead.py
    python benchmarks/benchmark_overhead.py --width 48 --rounds 5 --json overhead.json

The Trainer with MultigridCallback and a bare loop (forward, backward, optimizer step and nothing else) take turns over
the same clips, in the same order and shapes. So do Lightning's Trainer alone and a bare loop, on the baseline's shape.
A step lasts from one call of the model to the next; its time is the median over the rounds, as process time on a CPU.
The script prints the ratios of whole trainings, and the extra time of a step.
"""

import argparse
import logging
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import lightning as L
import torch
from measuring import choose_device, machine, machine_line, make_clock, write_json
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim import SGD
from torch.utils.data import DataLoader, Dataset

from lightning_multigrid import Baseline, BatchShape, MultigridCallback, MultigridSchedule, sub_batches
from lightning_multigrid.loading import FixedClips, MultigridLoader, MultigridSampler, shuffled_order
from lightning_multigrid.models import small_cnn
from lightning_multigrid.schedule import Place, Plan

CLASSES, SEED = 8, 0


class Clips(Dataset):
    """Noise of one size."""

    def __init__(self, number: int, frames: int, size: int) -> None:
        self.number = number
        self.clip = torch.randn(3, frames, size, size, generator=torch.Generator().manual_seed(SEED))

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> Tensor:
        return self.clip


class Classifier(L.LightningModule):
    """Notes the time of each call of its model."""

    def __init__(self, width: int, clock: Callable[[], float]) -> None:
        super().__init__()
        torch.manual_seed(SEED)
        self.model = small_cnn(CLASSES, width)
        self.clock = clock
        self.stamps: list[float] = []
        self.record = False

    def training_step(self, clips: Tensor, batch_idx: int) -> Tensor:
        if self.record:
            self.stamps.append(self.clock())
        return cross_entropy(self.model(clips), torch.zeros(len(clips), dtype=torch.long, device=clips.device))

    def configure_optimizers(self) -> SGD:
        return SGD(self.parameters(), lr=1e-6, momentum=0.9)

    def on_train_start(self) -> None:
        self.record = True

    def on_train_end(self) -> None:
        self.stamps.append(self.clock())


def bare_loop(
    classifier: Classifier, loader: Any, groups: Callable[[int, int], AbstractContextManager[None]], epochs: int
) -> None:
    """Forward, backward and optimizer step."""
    optimizer = classifier.configure_optimizers()
    device = classifier.device
    classifier.record = True
    for epoch in range(epochs):
        if isinstance(loader, MultigridLoader):
            loader.sampler.set_epoch(epoch)
        for batch_idx, clips in enumerate(loader):
            with groups(epoch, batch_idx):
                loss = classifier.training_step(clips.to(device), batch_idx)
                optimizer.zero_grad()
                loss.backward()
            optimizer.step()
    classifier.on_train_end()


class Runs:
    """The four trainings over the same data."""

    def __init__(self, options: argparse.Namespace, device: torch.device) -> None:
        self.options, self.device, self.clock = options, device, make_clock(device)
        shape = BatchShape(options.clips, options.frames, options.size)
        self.data = Clips(options.videos, options.frames, options.size)
        self.baseline = Baseline(shape, options.epochs, (options.epochs // 2,))
        self.schedule = MultigridSchedule(self.baseline)

    def loader(self) -> DataLoader:
        return DataLoader(self.data, self.options.clips, shuffle=True)

    def classifier(self) -> Classifier:
        return Classifier(self.options.width, self.clock).to(self.device)

    def bare(self, multigrid: bool) -> Classifier:
        classifier = self.classifier()
        if not multigrid:
            bare_loop(classifier, self.loader(), lambda epoch, batch: nullcontext(), self.options.epochs)
            return classifier
        clips = len(self.data)
        sampler = MultigridSampler(Plan(self.schedule, clips, seed=SEED), partial(shuffled_order, SEED, length=clips))
        loader = MultigridLoader(FixedClips(self.data, None), sampler, self.loader())

        def groups(epoch: int, batch: int) -> AbstractContextManager[None]:
            step = sampler.plan.step(Place(epoch, batch))
            return sub_batches(step.sub_batch, of=step.shape.clips)

        bare_loop(classifier, loader, groups, self.schedule.epochs)
        return classifier

    def lightning(self, multigrid: bool) -> Classifier:
        callbacks = [MultigridCallback(seed=SEED, schedule=self.schedule)] if multigrid else []
        trainer = L.Trainer(
            max_epochs=self.options.epochs,
            accelerator="cpu" if self.device.type == "cpu" else "gpu",
            devices=1,
            callbacks=callbacks,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        classifier = self.classifier()
        trainer.fit(classifier, self.loader())
        return classifier


def overhead(runs: Runs, rounds: int) -> dict[str, Any]:
    """Seconds of a training by each loop; the time of each step is its median over the rounds."""
    loops = {
        "bare": lambda: runs.bare(multigrid=True),
        "callback": lambda: runs.lightning(multigrid=True),
        "bare, baseline": lambda: runs.bare(multigrid=False),
        "Trainer, baseline": lambda: runs.lightning(multigrid=False),
    }
    spent: dict[str, list[list[float]]] = {name: [] for name in loops}
    for turn in range(rounds + 1):
        for name, loop in loops.items():
            steps = [later - earlier for earlier, later in pairwise(loop().stamps)]
            if turn:  # the first round warms up
                spent[name].append(steps)
    totals, numbers = {}, {}
    for name, of in spent.items():
        numbers[name] = len(of[0])
        assert all(len(steps) == len(of[0]) for steps in of)
        totals[name] = sum(median(column) for column in zip(*of, strict=True))
    assert numbers["bare"] == numbers["callback"]
    result: dict[str, Any] = {"steps": numbers, "seconds": totals}
    for name, ours, theirs in (("callback", "callback", "bare"), ("trainer", "Trainer, baseline", "bare, baseline")):
        result[f"{name}_ratio"] = totals[ours] / totals[theirs]
        result[f"{name}_ms_per_step"] = 1000 * (totals[ours] - totals[theirs]) / numbers[ours]
    result["step_ms"] = 1000 * totals["bare"] / numbers["bare"]
    return result


def main(args: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--clips", type=int, default=4, help="clips of the baseline")
    parser.add_argument("--frames", type=int, default=8)
    parser.add_argument("--size", type=int, default=48)
    parser.add_argument("--width", type=int, default=32, help="channels of the small CNN's stem")
    parser.add_argument("--videos", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=4, help="of the baseline")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each loop")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers there")
    options = parser.parse_args(args)
    device = choose_device(options, parser.error)
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=".*does not have many workers")

    print(machine_line(machine(device)))
    runs = Runs(options, device)
    loops = overhead(runs, options.rounds)
    print(
        f"{loops['steps']['callback']} steps of {loops['step_ms']:.1f} ms: Lightning with MultigridCallback takes "
        f"{loops['callback_ratio']:.4f} of the bare loop's time, {loops['callback_ms_per_step']:.2f} ms a step more. "
        f"Lightning alone, on the baseline: {loops['trainer_ratio']:.4f}, {loops['trainer_ms_per_step']:.2f} ms."
    )
    write_json(options, "overhead", {"loops": loops})


if __name__ == "__main__":
    main()
