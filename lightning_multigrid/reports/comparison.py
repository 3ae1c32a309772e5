"""Whether the callback pays: runs with it and without it, their metric, and their times.

A `Recorder` among the callbacks of any script writes a run to a file; `Comparison` reads the files of a folder.
"""

from __future__ import annotations

import json
import math
import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal

import torch
from typing_extensions import override

from lightning_multigrid.host import Callback, LightningModule, MisconfigurationException, Trainer, TrainerFn
from lightning_multigrid.reports.account import REST, START
from lightning_multigrid.schedule import text_table

MULTIGRID, BASELINE, SHORTENED = "multigrid", "baseline", "shortened"
VARIANTS = MULTIGRID, BASELINE, SHORTENED
_Clock = Literal["wall", "cpu"]


@dataclass
class RunRecord:
    """A run: its variant and seed, the seconds of its start and of the rest, and what each validation found.

    A validation is (seconds, share, metrics): the share of the training that had passed. `done` is that share at the
    end: below 1, the run was stopped early. `cpu` is the CPU time with that of processes that have ended, in seconds.
    `command` is the wall clock of the whole command, if it was one; else that of `fit` counts. `machine` names the
    processor, or the GPU, and the version of torch.
    """

    variant: str
    seed: int
    account: dict[str, float] = field(default_factory=dict)
    validations: list[tuple[float, float, dict[str, float]]] = field(default_factory=list)
    epochs: int = 0
    steps: int = 0
    command: float | None = None
    config: str = ""  # what the run was made from: another one is another comparison
    done: float = 0.0
    cpu: float = 0.0
    machine: str = ""

    @property
    def seconds(self) -> float:
        return sum(self.account.values()) if self.command is None else self.command

    @classmethod
    def read(cls, file: Path) -> RunRecord:
        try:
            return cls(**json.loads(file.read_text()))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{file} holds no run of a comparison: {error}. Remove it; the run is repeated.") from None

    def write(self, file: Path) -> None:
        """Writes a file that is there whole or not at all."""
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        part.write_text(json.dumps(asdict(self), indent=1) + "\n")
        os.replace(part, file)


class Recorder(Callback):
    """Writes what `Comparison` needs of a run when its `fit` ends. It must be the last of the callbacks.

    Args:
        file: The JSON file; those of a comparison are in one folder.
        variant: `multigrid`, `baseline`, or `shortened`: a baseline that takes as much time as multigrid.
        seed: The seed of the run.
        validate_at: Shares of the training, in order, after which to validate: to have as many validations as the run
            that this one is compared with. The Trainer must then have `check_val_every_n_epoch=None` and
            `val_check_interval=1`. By default the Trainer decides.
    """

    def __init__(self, file: str, variant: str, seed: int = 0, validate_at: Sequence[float] | None = None) -> None:
        if variant not in VARIANTS:
            raise ValueError(f"`variant` must be one of {', '.join(VARIANTS)}, got {variant!r}.")
        self._file, self._validate_at, self.record = Path(file), validate_at, RunRecord(variant, seed)

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            self.record = RunRecord(self.record.variant, self.record.seed)
            self._began, self._cpu = time.perf_counter(), cpu_seconds()

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.global_step > 0:
            raise MisconfigurationException(
                "A run that continues has only a part of its time. Leave the `Recorder` out, or train from the start."
            )
        self.record.account = {START: self._seconds}

    @property
    def _seconds(self) -> float:
        return time.perf_counter() - self._began

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        before = self.record.done
        done = self.record.done = _share_done(trainer, batch_idx)
        if self._validate_at is not None:  # Lightning asks next whether to validate
            due = any(before < share <= done for share in self._validate_at)
            trainer.check_val_every_n_epoch = None if due else sys.maxsize

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking:
            metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
            self.record.validations.append((self._seconds, self.record.done, metrics))

    @override
    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.record.account[REST] = self._seconds - self.record.account[START]
        self.record.cpu = cpu_seconds() - self._cpu
        self.record.epochs, self.record.steps = trainer.current_epoch, trainer.global_step
        device = trainer.strategy.root_device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
        self.record.machine = f"{name}, torch {torch.__version__}"
        if trainer.is_global_zero:
            self.record.write(self._file)


def cpu_seconds(of_children: bool = False) -> float:
    """CPU time of this process, and of those that it started and that have ended; or of these alone."""
    times = os.times()
    children = times.children_user + times.children_system
    return children if of_children else children + times.user + times.system


def _share_done(trainer: Trainer, batch_idx: int) -> float:
    """The share of the training that has passed after a mini-batch."""
    epochs, steps = trainer.max_epochs or -1, trainer.max_steps
    of_epochs = (trainer.current_epoch + (batch_idx + 1) / trainer.num_training_batches) / epochs
    return max(of_epochs, trainer.global_step / steps)  # what has no limit, -1, gives a negative one


def _spread(values: Sequence[float], digits: int = 4) -> str:
    if not all(map(math.isfinite, values)):
        return f"{sum(not math.isfinite(value) for value in values)} of {len(values)} diverged"
    text = f"{mean(values):.{digits}g}"
    return text if len(values) == 1 else f"{text} +- {stdev(values):.2g}"


class Comparison:
    """The runs of a folder.

    Args:
        folder: Where the files of the runs are.
        metric: Name of a metric that the script logs in validation; None is the one that `metrics` names first.
        mode: `max` or `min`, what is better; None is `min` for names with `loss` or `err` in them.
        clock: What is compared: the `wall` clock, or the `cpu` time of trainings on CPUs that share a machine.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        metric: str | None = None,
        mode: str | None = None,
        clock: _Clock = "wall",
    ) -> None:
        if mode not in ("max", "min", None) or clock not in ("wall", "cpu"):
            raise ValueError(f"`mode` must be max or min, and `clock` wall or cpu, got {mode!r} and {clock!r}.")
        self._clock = clock
        files = [file for variant in VARIANTS for file in sorted(Path(folder).glob(f"{variant}*.json"))]
        records = [RunRecord.read(file) for file in files]
        if clock == "cpu" and not all(run.cpu for run in records):
            raise ValueError(f"Runs in {folder} have no CPU time. Compare them by the `wall` clock.")
        self.runs = {variant: [run for run in records if run.variant == variant] for variant in VARIANTS}
        found = (name for run in records for *_, metrics in run.validations[-1:] for name in metrics)
        names = [name for name in dict.fromkeys(found) if not name.startswith("multigrid/")]
        if metric is None:
            of_validation = [name for name in names if name.startswith("val")] or names
            metric = next((name for name in of_validation if "loss" not in name), (of_validation or [""])[0])
        elif metric not in names:
            logged = f"It logs {', '.join(names)}." if names else "It logs none: is there a validation?"
            raise ValueError(f"The validation of these runs logs no metric {metric!r}. {logged}")
        self.metric = metric
        self.mode = mode or ("min" if "loss" in metric or "err" in metric else "max")

    def ends(self, variant: str) -> list[float]:
        """The metric at the end of each run that has it."""
        ends = (run.validations[-1][2].get(self.metric) for run in self.runs[variant] if run.validations)
        return [end for end in ends if end is not None]

    def seconds(self, variant: str) -> float:
        """The mean of its runs, by the clock of this comparison."""
        return mean(run.cpu if self._clock == "cpu" else run.seconds for run in self.runs[variant])

    def table(self) -> str:
        """What the runs of each variant reached, and their times, of whole commands with their workers."""
        ends = []
        for variant, runs in self.runs.items():
            if not runs:
                continue
            epochs, steps = (str(round(mean(getattr(run, name) for run in runs))) for name in ("epochs", "steps"))
            metric = _spread(self.ends(variant)) if self.ends(variant) else ""
            faster = f"{self.seconds(BASELINE) / self.seconds(variant):.2f}x" if self.runs[BASELINE] else ""
            times = (_spread([getattr(run, name) for run in runs], 3) for name in ("seconds", "cpu"))
            ends.append([variant, epochs, steps, metric, *times, faster])
        return f"{text_table(['', 'epochs', 'steps', self.metric, 'seconds', 'CPU s', 'faster'], ends)}\n"

    def _gain(self, variant: str, over: str) -> tuple[float, float]:
        """How much better the ends of a variant are than another's, and the error of that: two standard errors."""
        ours, theirs = self.ends(variant), self.ends(over)
        gain = (mean(ours) - mean(theirs)) * (1 if self.mode == "max" else -1)
        if min(len(ours), len(theirs)) < 2:
            return gain, 0.0
        return gain, 2 * math.sqrt(sum(stdev(ends) ** 2 / len(ends) for ends in (ours, theirs)))

    def verdict(self) -> str:
        """Says what the numbers say, in a sentence or two."""
        if not self.runs[MULTIGRID] or not self.runs[BASELINE]:
            return "There is nothing to compare yet: a run with the callback and one without it are needed."
        faster = self.seconds(BASELINE) / self.seconds(MULTIGRID)
        clock = f"{faster:.2f}x faster by {'CPU time' if self._clock == 'cpu' else 'the wall clock'}"
        ends = {variant: self.ends(variant) for variant in VARIANTS}
        if faster <= 1:
            return f"Don't: with the callback it is no faster, and takes {1 / faster:.0%} of the baseline's time."
        if not ends[MULTIGRID] or not ends[BASELINE] or not all(map(math.isfinite, chain(*ends.values()))):
            return f"{clock}; the ends can't be compared: see the table."
        gain, error = self._gain(MULTIGRID, BASELINE)
        said = f"{clock}, and {'no worse' if gain >= -error else 'worse'}: {self.metric} {_spread(ends[MULTIGRID])} "
        said += f"against {_spread(ends[BASELINE])}"
        answer = "Yes" if gain >= -error else "It depends"
        if ends[SHORTENED]:
            said += f"; a baseline of as much time reaches {_spread(ends[SHORTENED])}"
            ahead, of_ahead = self._gain(MULTIGRID, SHORTENED)
            if ahead <= of_ahead:
                answer = "Can't tell with so few seeds" if ahead > 0 else "Don't"
        few = " One seed says little: take three." if min(len(ends[MULTIGRID]), len(ends[BASELINE])) < 2 else ""
        return f"{answer}: {said}.{few}"

    def __str__(self) -> str:
        return f"{self.table()}\n{self.verdict()}"
