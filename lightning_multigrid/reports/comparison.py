"""Whether the callback pays: runs with it and without it, their metric, and their times.

A `Recorder` among the callbacks of any script writes a run to a file; `Comparison` reads the files of a folder.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from statistics import mean, variance
from typing import Any, Literal

import torch
from typing_extensions import override

from lightning_multigrid.host import Callback, LightningModule, MisconfigurationException, Trainer, TrainerFn
from lightning_multigrid.reports.account import LEAST_SECONDS, REST, START
from lightning_multigrid.schedule import text_table

MULTIGRID, BASELINE, SHORTENED = "multigrid", "baseline", "shortened"
VARIANTS = MULTIGRID, BASELINE, SHORTENED
_SHORTER = re.compile(rf"{MULTIGRID}_0?\.\d+")
_Clock = Literal["wall", "cpu"]
_FEW_CLIPS = 100  # of a validation: the standard error of an accuracy may be 5 points
_LONG_START = 0.25  # of a command: then a comparison says little of a long training
# Metrics that are the share of clips that are right: `val/top1`, `val_acc`, `accuracy`.
_SHARE = re.compile(r"(?<![a-z])(top[-_]?\d|acc(uracy)?(?![a-z]))", re.IGNORECASE)
# Words in names of metrics of which less is better, beside losses and errors: `val/WER`, `cross_entropy`.
_LESS = {"wer", "cer", "eer", "perplexity", "ppl", "nll", "entropy", "brier", "mpjpe", "mae", "mse", "rmse", "nrmse"}


@dataclass
class RunRecord:
    """A run: its variant and seed, the seconds of its start and of the rest, and what each validation found.

    A validation is (seconds, share, metrics): the share of the training that had passed. `done` is that share at the
    end: below 1, the run was stopped early. `cpu` is the CPU time with that of processes that have ended, in seconds.
    `command` is the wall clock of the whole command, if it was one; else that of `fit` counts. `machine` names the
    processor, or the GPU, and the version of torch. `clips` are those of a validation, 0 if they are not known.
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
    clips: int = 0

    @property
    def seconds(self) -> float:
        return sum(self.account.values()) if self.command is None else self.command

    @property
    def start(self) -> float:
        """The seconds before the first step: a command starts before its `fit`."""
        return self.seconds - sum(self.account.values()) + self.account.get(START, 0.0)

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


def shorter(share: float) -> str:
    """The variant of a complete training with the callback that has a share of the length."""
    return f"{MULTIGRID}_{share:g}"


class Recorder(Callback):
    """Writes what `Comparison` needs of a run when its `fit` ends. It must be the last of the callbacks.

    Args:
        file: The JSON file; those of a comparison are in one folder.
        variant: `multigrid`, `baseline`, or `shortened`: a baseline that takes as much time as multigrid. With a share
            of the length, such as `multigrid_0.75`, a complete training that is shorter.
        seed: The seed of the run.
        validate_at: Shares of the training, in order, after which to validate: to have as many validations as the run
            that this one is compared with. The Trainer must then have `check_val_every_n_epoch=None` and
            `val_check_interval=1`. By default the Trainer decides.
    """

    def __init__(self, file: str, variant: str, seed: int = 0, validate_at: Sequence[float] | None = None) -> None:
        if variant not in VARIANTS and not _SHORTER.fullmatch(variant):
            raise ValueError(f"`variant` must be one of {', '.join(VARIANTS)} or {shorter(0.75)}, got {variant!r}.")
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
            self.record.clips = _validation_clips(trainer)

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


def _validation_clips(trainer: Trainer) -> int:
    """The clips of a validation on all devices; 0 if it has several loaders, or if they have no length."""
    loader: Any = trainer.val_dataloaders
    size, batches = getattr(loader, "batch_size", None), trainer.num_val_batches
    if size is None or len(batches) != 1 or not hasattr(loader.dataset, "__len__"):
        return 0
    return min(len(loader.dataset), int(min(batches[0], sys.maxsize) * size * trainer.world_size))


def _share_done(trainer: Trainer, batch_idx: int) -> float:
    epochs, steps = trainer.max_epochs or -1, trainer.max_steps
    of_epochs = (trainer.current_epoch + (batch_idx + 1) / trainer.num_training_batches) / epochs
    return max(of_epochs, trainer.global_step / steps)  # what has no limit, -1, gives a negative one


def _of_seeds(values: Sequence[float]) -> float:
    """The variance of their mean; NaN of a single one, or where one is not finite."""
    return variance(values) / len(values) if len(values) > 1 and all(map(math.isfinite, values)) else math.nan


def _text(values: Sequence[float], error: float, digits: int = 4) -> str:
    """The mean of values, and its standard error if that is known."""
    if not all(map(math.isfinite, values)):
        return f"{sum(not math.isfinite(value) for value in values)} of {len(values)} diverged"
    text = f"{mean(values):.{digits}g}"
    return f"{text} +- {error:.2g}" if math.isfinite(error) else text


def _difference(gain: float, error: float) -> str:
    """Says what a difference and two standard errors of it say."""
    if math.isnan(error):
        return "a difference of unknown error"
    if abs(gain) <= error:
        return f"no difference beyond chance (two standard errors are {error:.2g})"
    return "better" if gain > 0 else "worse"


def _less_is_better(metric: str) -> bool:
    """Whether a metric is better the less it is, by the words of its name.

    >>> [_less_is_better(name) for name in ("val_loss", "lossval", "MSELoss", "val/WordErrorRate", "val/top1_err")]
    [True, True, True, True, True]
    >>> [_less_is_better(name) for name in ("val/inferred_acc", "VideoMAE_acc", "val/mae_top1", "lossless")]
    [False, False, False, False]
    """
    words = {word.lower() for word in re.findall("[A-Z]?[a-z]+|[A-Z]+(?![a-z])", metric)} - {"lossless"}
    if words & {"acc", "accuracy"}:
        return False
    if _SHARE.search(metric):
        words -= {"mae"}  # the model
    ends = "loss", "losses", "err", "error", "errors"
    return any(word in _LESS or word.startswith(("loss", "err")) or word.endswith(ends) for word in words)


class Comparison:
    """The runs of a folder.

    Args:
        folder: Where the files of the runs are.
        metric: Name of a metric that the script logs in validation; None is the one that `metrics` names first.
        mode: `max` or `min`, what is better; None is `min` for losses, errors, WER, CER, perplexity, MAE, MSE, RMSE and
            the like.
        clock: What is compared: the `wall` clock, or the `cpu` time of trainings on CPUs that share a machine.
    """

    def __init__(
        self, folder: str | os.PathLike[str], metric: str | None = None, mode: str | None = None, clock: _Clock = "wall"
    ) -> None:
        if mode not in ("max", "min", None) or clock not in ("wall", "cpu"):
            raise ValueError(f"`mode` must be max or min, and `clock` wall or cpu, got {mode!r} and {clock!r}.")
        self._clock = clock
        files = [file for variant in VARIANTS for file in sorted(Path(folder).glob(f"{variant}*.json"))]
        records = [RunRecord.read(file) for file in files]
        variants = [*VARIANTS, *sorted({run.variant for run in records}.difference(VARIANTS), reverse=True)]
        if clock == "cpu" and not all(run.cpu for run in records):
            raise ValueError(f"Runs in {folder} have no CPU time. Compare them by the `wall` clock.")
        self.runs = {variant: [run for run in records if run.variant == variant] for variant in variants}
        found = (name for run in records for *_, metrics in run.validations[-1:] for name in metrics)
        names = [name for name in dict.fromkeys(found) if not name.startswith("multigrid/")]
        if metric is None:
            of_validation = [name for name in names if name.startswith("val")] or names
            metric = next((name for name in of_validation if "loss" not in name), (of_validation or [""])[0])
        elif metric not in names:
            logged = f"It logs {', '.join(names)}." if names else "It logs none: is there a validation?"
            raise ValueError(f"The validation of these runs logs no metric {metric!r}. {logged}")
        self.metric = metric
        self.mode = mode or ("min" if _less_is_better(metric) else "max")

    def ends(self, variant: str) -> list[float]:
        """The metric at the end of each run that has it."""
        ends = (run.validations[-1][2].get(self.metric) for run in self.runs[variant] if run.validations)
        return [end for end in ends if end is not None]

    def curve(self, variant: str) -> list[tuple[float, float, float]]:
        """Seconds of `fit`, the mean of the metric, and its standard error, at each validation that all runs have."""
        runs = [run for run in self.runs[variant] if run.validations]
        points = []
        for validations in zip(*(run.validations for run in runs), strict=False):
            values = [metrics[self.metric] for _, _, metrics in validations if self.metric in metrics]
            if values:
                seconds = mean(seconds for seconds, *_ in validations)
                points.append((seconds, mean(values), self._error(values, runs)))
        return points

    def _error(self, values: Sequence[float], runs: Sequence[RunRecord]) -> float:
        """The standard error of the mean of values of runs; NaN if it is not known."""
        # Its variance has a part of the seeds, and for a share p of N clips, the same in all runs, p (1 - p) / N.
        clips, share = min(run.clips for run in runs), mean(values)
        parts = [_of_seeds(values)]
        if clips and _SHARE.search(self.metric) and 0 <= share <= 1:
            parts.append(share * (1 - share) / clips)
        known = [part for part in parts if math.isfinite(part)]
        return math.sqrt(sum(known)) if known else math.nan

    def error(self, variant: str) -> float:
        """The standard error of the mean of `ends`; NaN if it is not known."""
        return self._error(self.ends(variant), self.runs[variant])

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
            metric = self._ends_text(variant) if self.ends(variant) else ""
            faster = f"{self.seconds(BASELINE) / self.seconds(variant):.2f}x" if self.runs[BASELINE] else ""
            times = ([getattr(run, name) for run in runs] for name in ("seconds", "cpu"))
            texts = (_text(of_runs, math.sqrt(_of_seeds(of_runs)), 3) for of_runs in times)
            ends.append([variant, epochs, steps, metric, *texts, faster])
        table = text_table(["", "epochs", "steps", self.metric, "seconds", "CPU s", "faster"], ends)
        return f"{table}\n" + ("+- is the standard error of the mean.\n" if "+-" in table else "")

    def _ends_text(self, variant: str) -> str:
        return _text(self.ends(variant), self.error(variant))

    def _gain(self, over: str, variant: str = MULTIGRID) -> tuple[float, float]:
        """How much better a variant ends than another, and two standard errors of that; NaN if not known."""
        gain = (mean(self.ends(variant)) - mean(self.ends(over))) * (1 if self.mode == "max" else -1)
        return gain, 2 * math.hypot(self.error(variant), self.error(over))

    def as_good(self, variant: str) -> bool:
        """Whether a variant does not end below the baseline by more than two standard errors, if these are known."""
        # They are those of the seeds alone: all variants are validated on the same clips.
        gain, _ = self._gain(BASELINE, variant)
        error = 2 * math.sqrt(sum(_of_seeds(self.ends(name)) for name in (BASELINE, variant)))
        return gain >= (0 if math.isnan(error) else -error)

    def shortest(self) -> str | None:
        """The variant that is as good as the baseline in the least time, of all lengths with the callback."""
        lengths = (variant for variant in self.runs if variant.startswith(MULTIGRID) and self.ends(variant))
        return min(filter(self.as_good, lengths), key=self.seconds, default=None) if self.ends(BASELINE) else None

    def verdict(self) -> str:
        """Says what the numbers say, in a sentence or two. A difference within two standard errors doesn't count."""
        if not self.runs[MULTIGRID] or not self.runs[BASELINE]:
            return "There is nothing to compare yet: a run with the callback and one without it are needed."
        faster = self.seconds(BASELINE) / self.seconds(MULTIGRID)
        clock = f"{faster:.2f}x faster by {'CPU time' if self._clock == 'cpu' else 'the wall clock'}"
        ends = {variant: self.ends(variant) for variant in VARIANTS}
        few = " One seed says little: take three." if min(len(ends[MULTIGRID]), len(ends[BASELINE])) < 2 else ""
        clips = min(run.clips for run in (*self.runs[MULTIGRID], *self.runs[BASELINE]))
        if 0 < clips < _FEW_CLIPS:
            few += f" {clips} validation clips can't tell an accuracy: give at least {_FEW_CLIPS}."
        if faster <= 1:
            slower = f"with the callback it takes {1 / faster:.0%} of the baseline's time"
            steps, of_baseline = (mean(run.seconds - run.start for run in self.runs[v]) for v in (MULTIGRID, BASELINE))
            start = mean(run.start / run.seconds for run in self.runs[MULTIGRID])
            if start >= _LONG_START and steps < of_baseline:
                rest = f"{steps / of_baseline:.0%}"
                why = f"{start:.0%} of that passes before the first step, and the rest takes {rest} of the baseline's"
            elif of_baseline < LEAST_SECONDS:
                why = f"the baseline's steps take {of_baseline:.1f} s, of which too many are the first on a grid"
            else:
                return f"Don't: {slower}.{few}"
            return f"Can't tell: {slower}, but {why}. Train longer.{few}"
        if not ends[MULTIGRID] or not ends[BASELINE] or not all(map(math.isfinite, chain(*ends.values()))):
            return f"{clock}; the ends can't be compared: see the table."
        gain, error = self._gain(BASELINE)
        said = f"{clock}; {self.metric} ({'higher' if self.mode == 'max' else 'lower'} is better) "
        said += f"{self._ends_text(MULTIGRID)} against {self._ends_text(BASELINE)} is {_difference(gain, error)}"
        unknown = math.isnan(error) or (0 < clips < _FEW_CLIPS and abs(gain) <= error)
        answer = "Can't tell" if unknown else "It depends" if gain < -error else "Yes"
        if ends[SHORTENED]:
            ahead, error = self._gain(SHORTENED)
            said += f"; a baseline of as much time reaches {self._ends_text(SHORTENED)}, against which it is "
            said += _difference(ahead, error)
            if not ahead > error:
                answer = "Don't" if ahead < -error else "Can't tell"
        return f"{answer}: {said}.{few}{self._of_lengths()}"

    def _of_lengths(self) -> str:
        """Says how much time the baseline's end takes, if shorter trainings were tried."""
        if len(self.runs) == len(VARIANTS):
            return ""
        variant = self.shortest()
        if variant is None:
            return " No training with the callback is as good as the baseline."
        epochs, share = self.runs[variant][0].epochs, self.seconds(variant) / self.seconds(BASELINE)
        return (
            f" The shortest that is as good as the baseline has {epochs} epochs, takes {share:.0%} of its time, and "
            f"ends at {self._ends_text(variant)}."
        )

    def __str__(self) -> str:
        return f"{self.table()}\n{self.verdict()}"
