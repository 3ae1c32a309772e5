"""Accuracy against training time on hard moving shapes: the baseline, shortened ones, and multigrid.

    python benchmarks/compare.py                  # trains what is missing in benchmarks/results/compare, then reports
    python benchmarks/compare.py --ablations      # the same for the variants of the paper's Table 1
    python benchmarks/compare.py --opponents      # the same for shortened baselines with other LRs and more steps
    python benchmarks/compare.py --model transformer   # a video transformer and AdamW, in results/compare_transformer
    python benchmarks/compare.py --model transformer --epochs 60 --folder long   # the same for a baseline of 60 epochs
    python benchmarks/compare.py --fine-tuning    # that transformer, trained on easy shapes, then tuned on hard ones
    python benchmarks/compare.py --report         # trains nothing: prints the tables and draws the figure
    python benchmarks/compare.py --width 32 --folder wide   # a CNN of twice the width, whose steps outlast decoding
    python benchmarks/compare.py --avletters avletters  # the CNN on the lips that `avletters.py` has written there
    python benchmarks/compare.py --avletters avletters_0 --seeds 0 --folder people   # fold 0 of people, as seed 0
    python benchmarks/compare.py --epochs 10 --folder short   # all lengths of the task in proportion
    python benchmarks/compare.py --easy --epochs 20 --folder easy   # shapes that are easier to tell apart
    python benchmarks/compare.py --growing              # regularisation that grows with the grid, and that does not
    python benchmarks/compare.py --tiny --folder tiny   # seconds; its accuracy says nothing

Each run writes one JSON file when it is done, and a run whose file exists is not repeated. So an interrupted comparison
continues where it was, and several processes may share one, each with its own `--seeds` or `--variants`.

A run is one process with one thread, and `--workers` processes that decode for it. `train_seconds` is the CPU time of
the training process: forward, backward, optimizer, resampling and Lightning, without decoding or waiting for it.
`wall_seconds` is the wall-clock time, with all waiting. Both begin before the first mini-batch is requested, end after
the last optimizer step, and include no validation.
"""

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any, Literal

import lightning as L
import torch
from measuring import machine
from regularisation import Regularisation
from typing_extensions import override

from lightning_multigrid import (
    Baseline,
    BatchShape,
    LongCycle,
    MovingShapesDataModule,
    MultigridCallback,
    MultigridSchedule,
    ShortCycle,
    VideoClassifier,
    VideoDataModule,
)
from lightning_multigrid.cli.forecast import clip_costs
from lightning_multigrid.models import small_cnn
from lightning_multigrid.schedule import Plan

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))
from video_transformer import VideoTransformer

RESULTS = Path(__file__).parent / "results" / "compare"
SHAPES = LongCycle().factors
SIZES = ShortCycle().factors


TUBELET, PATCH = 4, 6


# The stages that the callback takes for a cosine: the proportions of the paper's Kinetics recipe.
COSINE_STAGES = (Fraction(44, 112), Fraction(72, 112), Fraction(92, 112))


@dataclass(frozen=True)
class Task:
    """The baseline recipe and its data: moving shapes, or the videos of a folder with `train` and `val`.

    A step of multigrid 1.5x takes `equal_time` times as long as one of the baseline: CPU time, of videos with decoding.
    """

    train_per_class: int = 64
    val_per_class: int = 64
    clips: int = 4
    frames: int = 16
    size: int = 40
    epochs: int = 40
    milestones: tuple[float, ...] = (20, 30)
    warmup_epochs: float = 1
    lr: float = 0.015
    width: int = 16
    weight_decay: float = 1e-4
    model: str = "cnn"
    multigrid: dict[str, Any] = field(default_factory=dict)
    difficulty: str = "hard"
    fine_tunes: bool = False
    classes: int = 16
    videos: str = ""
    equal_time: float = 1.14

    @property
    def described(self) -> dict[str, Any]:
        """Its values for the JSON file, without those that the CNN's task does not change."""
        plain = asdict(Task())
        own = ("weight_decay", "model", "multigrid", "difficulty", "fine_tunes", "classes", "videos")
        values = asdict(self) | {"videos": Path(self.videos).name}  # not where they are
        del values["equal_time"]  # trains nothing
        return {name: value for name, value in values.items() if name not in own or value != plain[name]}

    @property
    def steps(self) -> int:
        """Optimizer steps of an epoch of the baseline."""
        return self.train_clips // self.clips

    @property
    def train_clips(self) -> int:
        return self.classes * self.train_per_class

    def of_length(self, epochs: int) -> "Task":
        """The same with another number of epochs: the LR has its stages and warm-up at the same shares."""
        if epochs == self.epochs:
            return self  # whole numbers stay whole
        share = epochs / self.epochs
        milestones = tuple(share * milestone for milestone in self.milestones)
        return replace(self, epochs=epochs, milestones=milestones, warmup_epochs=share * self.warmup_epochs)

    def schedule(self, **arguments: Any) -> MultigridSchedule:
        """The multigrid schedule that the callback will infer."""
        shape = BatchShape(self.clips, self.frames, self.size)
        milestones = arguments.pop("milestones", self.milestones or [self.epochs * share for share in COSINE_STAGES])
        arguments = self.multigrid | {"stepwise": bool(self.milestones)} | arguments
        arguments.pop("weight_decay_scaling", None)
        return MultigridSchedule(
            Baseline(shape, self.epochs, tuple(milestones), warmup_epochs=self.warmup_epochs), **arguments
        )

    def module(self, share: float, lr_factor: float) -> VideoClassifier:
        """The model with its optimizer, for a training of a share of the baseline's length."""
        lr, warmup = lr_factor * self.lr, share * self.warmup_epochs
        if self.model == "cnn":
            milestones = [share * milestone for milestone in self.milestones]
            model = small_cnn(num_classes=self.classes, width=self.width)
            schedule = "steps" if milestones else "cosine"
            return VideoClassifier(
                model, self.classes, lr=lr, schedule=schedule, milestones=milestones, warmup_epochs=warmup
            )
        model = VideoTransformer(16, self.frames, self.size, TUBELET, PATCH, self.width, depth=3, heads=2)
        adamw = partial(torch.optim.AdamW, lr=lr)
        return VideoClassifier(
            model, 16, optimizer=adamw, weight_decay=self.weight_decay, schedule="cosine", warmup_epochs=warmup
        )

    def multigrid_steps(self, **arguments: Any) -> int:
        """Optimizer steps of a multigrid training."""
        return sum(Plan(self.schedule(**arguments), self.train_clips).phase_steps)

    def data(self, workers: int) -> VideoDataModule:
        """Its clips, decoded by so many processes."""
        shape = {"batch_size": self.clips, "frames": self.frames, "size": self.size, "num_workers": workers}
        if not self.videos:
            return MovingShapesDataModule(
                train_per_class=self.train_per_class,
                val_per_class=self.val_per_class,
                difficulty=self.difficulty,
                **shape,
            )
        train, val = (Path(self.videos) / part for part in ("train", "val"))
        # As in the config that `avletters.py` writes.
        return VideoDataModule(train, val, sampling="segments", short_side=(32, 34), flip=False, **shape)


TINY = Task(
    train_per_class=4,
    val_per_class=1,
    clips=2,
    frames=8,
    size=32,
    epochs=4,
    milestones=(2, 3),
    warmup_epochs=0,
    width=4,
)


# Sizes are multiples of the patch, and frames of the tubelet: T/4 would be a single tubelet.
TRANSFORMER = Task(
    clips=2,
    size=36,
    epochs=10,
    milestones=(),
    warmup_epochs=1,
    lr=1e-3,
    width=64,
    weight_decay=0.05,
    model="transformer",
    multigrid={"size_divisor": PATCH, "long_cycle": LongCycle(SHAPES[1:])},
)
# Where a fine-tuning starts is trained like this; its head is not taken.
PRETRAINED = {"difficulty": "easy", "epochs": TRANSFORMER.epochs, "lr": TRANSFORMER.lr, "fine_tunes": False}
FINE_TUNING = replace(TRANSFORMER, epochs=5, lr=3e-4, fine_tunes=True)
AVLETTERS = Task(
    classes=26,
    train_per_class=20,
    frames=12,
    size=32,
    epochs=64,
    milestones=(),
    warmup_epochs=0,
    lr=0.005,
    equal_time=1.86,
)


def lips(folder: str) -> Task:
    """The task of the videos that `avletters.py` has written to a folder."""
    videos = sum(1 for _ in Path(folder, "train").rglob("*.mp4"))
    if not videos:
        raise SystemExit(f"{folder} has no videos in `train`: `avletters.py` writes them.")
    return replace(AVLETTERS, videos=folder, train_per_class=videos // AVLETTERS.classes)


@dataclass(frozen=True)
class Variant:
    """A way to train: multigrid with arguments of its callback, or a baseline of so many steps.

    Args:
        label: Its name in tables.
        multigrid: Arguments of `MultigridCallback`; None is a baseline.
        steps_of: For a shortened baseline, the multigrid variant that has as many steps.
        steps_factor: A shortened baseline has so many times the steps of `steps_of`.
        lr_factor: Its LR, relative to the task's.
        regularised: Whether dropout, stochastic depth and erased boxes are on, at full strength or, if it `grows`, in
            proportion to the points of the grid.
    """

    label: str
    multigrid: dict[str, Any] | None = None
    steps_of: str | None = None
    steps_factor: float = 1.0
    lr_factor: float = 1.0
    regularised: Literal["", "constant", "grows"] = ""


COMPARISON = {
    "baseline": Variant("Baseline"),
    "multigrid_1.5x": Variant("Multigrid 1.5x (default)", {}),
    "short_1.5x": Variant("Baseline, steps of multigrid 1.5x", steps_of="multigrid_1.5x"),
    "multigrid_1.0x": Variant("Multigrid 1.0x", {"epoch_factor": 1.0}),
    "multigrid_2.0x": Variant("Multigrid 2.0x", {"epoch_factor": 2.0}),
    "multigrid_3.0x": Variant("Multigrid 3.0x", {"epoch_factor": 3.0}),
    "short_1.0x": Variant("Baseline, steps of multigrid 1.0x", steps_of="multigrid_1.0x"),
    "short_2.0x": Variant("Baseline, steps of multigrid 2.0x", steps_of="multigrid_2.0x"),
}

TRANSFORMERS = {
    "baseline": Variant("Baseline"),
    "multigrid_1.5x": Variant("Multigrid 1.5x, LR by the square root (default)", {}),
    "short_1.5x": Variant("Baseline, steps of multigrid 1.5x", steps_of="multigrid_1.5x"),
    "short_1.5x_lr2": Variant("Baseline, steps of multigrid 1.5x, LR x 2", steps_of="multigrid_1.5x", lr_factor=2.0),
    "linear": Variant("Multigrid 1.5x, LR linear", {"lr_scaling": "linear"}),
    "unscaled": Variant("Multigrid 1.5x, LR not scaled", {"lr_scaling": "none"}),
    "timescale": Variant("Multigrid 1.5x, weight decay scaled, too", {"weight_decay_scaling": "timescale"}),
    "multigrid_2.5x": Variant("Multigrid 2.5x", {"epoch_factor": 2.5}),
    "short_2.5x": Variant("Baseline, steps of multigrid 2.5x", steps_of="multigrid_2.5x"),
    "all_shapes": Variant("Multigrid 1.5x, long cycle of 4 shapes", {"long_cycle": LongCycle()}),
    "short_cycle_only": Variant("Short cycle only, 1.5x", {"long_cycle": LongCycle(SHAPES[-1:])}),
    "long_cycle_only": Variant("Long cycle only, 1.5x", {"short_cycle": ShortCycle(SIZES[-1:])}),
}

FINE_TUNINGS = {
    name: TRANSFORMERS[name]
    for name in ("baseline", "multigrid_1.5x", "short_1.5x", "linear", "unscaled", "multigrid_2.5x", "short_2.5x")
}

# Regularisation that grows with the grid (Tan and Le 2021, "EfficientNetV2"), by the factor of the epochs.
GROWING = {
    f"{name}_{factor:g}x": Variant(f"Multigrid {factor:g}x, {label}", {"epoch_factor": factor}, regularised=how)
    for factor in (1.0, 1.5)
    for name, label, how in (
        ("regularised", "regularised", "constant"),
        ("growing", "regularised more on larger grids", "grows"),
    )
}


def opponents(task: Task) -> dict[str, Variant]:
    """Shortened baselines with as many steps as multigrid 1.5x and with as much time, at several LRs."""
    return {
        f"short_1.5x_{length}lr{lr:g}": Variant(
            f"Baseline, {label} of multigrid 1.5x, LR x {lr:g}", None, "multigrid_1.5x", factor, lr
        )
        for length, label, factor in (("", "steps", 1.0), ("time_", "time", task.equal_time))
        for lr in (0.25, 0.5, 1.0, 2.0, 4.0)
    }


def ablations(task: Task) -> dict[str, Variant]:
    """Table 1: other cycles, and parts of the method left out or changed, each with as many steps as the default."""
    variants = {
        "long_1": Variant("Long cycle of 1 shape (short cycle only)", {"long_cycle": LongCycle(SHAPES[-1:])}),
        "long_2": Variant("Long cycle of 2 shapes", {"long_cycle": LongCycle(SHAPES[-2:])}),
        "long_3": Variant("Long cycle of 3 shapes", {"long_cycle": LongCycle(SHAPES[-3:])}),
        "short_cycle_1": Variant("Short cycle of 1 shape (long cycle only)", {"short_cycle": ShortCycle(SIZES[-1:])}),
        "short_cycle_2": Variant("Short cycle of 2 shapes", {"short_cycle": ShortCycle(SIZES[-2:])}),
        "no_fine_tuning": Variant("No fine-tuning", {"fine_tuning": False}),
        "no_sub_batch": Variant("BatchNorm over the whole mini-batch", {"sub_batch": 2**20}),
        "sqrt_lr": Variant("LR scaled with the square root of the clips", {"lr_scaling": "sqrt"}),
    }
    default = task.schedule().iteration_reduction
    return {
        name: replace(
            variant,
            multigrid={
                **(variant.multigrid or {}),
                "epoch_factor": 1.5 * task.schedule(**(variant.multigrid or {})).iteration_reduction / default,
            },
        )
        for name, variant in variants.items()
    }


def variants_of(task: Task) -> dict[str, Variant]:
    """Every way to train that there is for a task."""
    if task.fine_tunes:
        return FINE_TUNINGS
    if task.model == "transformer":
        return TRANSFORMERS | GROWING
    return COMPARISON | opponents(task) | ablations(task) | GROWING


def predicted_speedup(task: Task, variant: Variant) -> float:
    """How many times faster multigrid is than the baseline, by FLOPs alone, as the command `plan` predicts it."""
    schedule = task.schedule(**(variant.multigrid or {}))
    costs = clip_costs(task.module(1, 1), [schedule.baseline.shape, *schedule.grids])
    return schedule.reduction(lambda shape: shape.clips * costs[shape.clip].flops)


class Clock(L.Callback):
    """Measures training from start to end, in CPU seconds of this process and wall-clock seconds."""

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._process, self._wall = time.process_time(), time.perf_counter()

    @override
    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.process = time.process_time() - self._process
        self.wall = time.perf_counter() - self._wall


def train(
    task: Task, variant: Variant, variants: dict[str, Variant], seed: int, workers: int = 1, weights: Path | None = None
) -> dict[str, Any]:
    """Trains a model from a seed; returns the measurements.

    `weights` are where a fine-tuning starts; other trainings write theirs there.
    """
    L.seed_everything(seed, verbose=False)
    share, callbacks = 1.0, [Clock()]
    if variant.multigrid is not None:
        callbacks.append(MultigridCallback(**task.multigrid | variant.multigrid))
    elif variant.steps_of is not None:
        steps = variant.steps_factor * task.multigrid_steps(**(variants[variant.steps_of].multigrid or {}))
        share = steps / (task.steps * task.epochs)
    model = task.module(share, variant.lr_factor)
    if task.fine_tunes:
        start = torch.load(weights, weights_only=True)
        model.load_state_dict({name: value for name, value in start.items() if "head" not in name}, strict=False)
    if variant.regularised:
        Regularisation(model.model, task.frames * task.size**2, grows=variant.regularised == "grows")
    data = task.data(workers)
    trainer = make_trainer(callbacks, round(share * task.steps * task.epochs))
    decoding = children_seconds()
    trainer.fit(model, data)
    decoding = children_seconds() - decoding
    steps = trainer.global_step
    if weights is not None and not task.fine_tunes:
        torch.save(model.state_dict(), weights)
    validation = make_trainer([], 1).validate(model, data, verbose=False)[0]
    clock = callbacks[0]
    return {
        "top1": validation["val/top1"],
        "loss": validation["val/loss"],
        "train_loss": float(trainer.callback_metrics["train/loss"]),
        "train_seconds": clock.process,
        "wall_seconds": clock.wall,
        "decode_seconds": decoding,
        "workers": workers,
        "steps": steps,
        "epochs": steps / task.steps if variant.multigrid is None else trainer.current_epoch,
    }


def make_trainer(callbacks: list[L.Callback], steps: int) -> L.Trainer:
    return L.Trainer(
        max_steps=steps,
        accelerator="cpu",
        callbacks=callbacks,
        limit_val_batches=0 if callbacks else 1.0,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=bool(callbacks),
    )


def children_seconds() -> float:
    """CPU time of the processes that decoded for this one, once they have ended."""
    times = os.times()
    return times.children_user + times.children_system


def run(names: Sequence[str], seeds: Sequence[int], task: Task, folder: Path, workers: int) -> None:
    """Trains each variant that has no file yet, seed by seed, and writes its file."""
    torch.set_num_threads(1)
    variants = variants_of(task)
    runs = [(seed, name, folder / f"{name}-seed{seed}.json") for seed in seeds for name in names]
    weights = folder / "pretrained.pt" if task.fine_tunes else None
    if weights is not None and not all(file.exists() or weights.exists() for *_, file in runs):
        folder.mkdir(parents=True, exist_ok=True)
        print("Training on easy shapes, whose weights the fine-tuning starts from.", flush=True)
        train(replace(task, **PRETRAINED), TRANSFORMERS["baseline"], variants, 0, workers, weights)
    for number, (seed, name, file) in enumerate(runs, 1):
        if file.exists():
            print(f"Run {number} of {len(runs)}: {file.name} is there.")
            continue
        print(f"Run {number} of {len(runs)}: {variants[name].label}, seed {seed}.", flush=True)
        measured = train(task, variants[name], variants, seed, workers, weights)
        about = {"task": task.described, "machine": machine(torch.device("cpu"), ["av"])}
        record = {"variant": name, "seed": seed} | measured | about
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps(record, indent=1) + "\n")
        unfinished.replace(file)
        print(f"top-1 {100 * measured['top1']:.1f} %, {measured['train_seconds']:.0f} s of training.", flush=True)


# --- Report ---


def load(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The runs of each variant, by seed."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for file in sorted(folder.glob("*.json")):
        record = json.loads(file.read_text())
        runs.setdefault(record["variant"], []).append(record)
    return runs


def spread(values: Sequence[float], digits: int) -> str:
    """Mean and standard deviation over the seeds."""
    deviation = f" \u00b1 {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{deviation}"


def table(runs: dict[str, list[dict[str, Any]]], variants: dict[str, Variant], times: bool = True) -> str:
    """A row per variant that was run, in Markdown; the speed-up over the baseline is a mean over the seeds.

    The speed-up by the wall clock is given only if all runs waited less than a tenth of their time.
    """
    columns = ["training", "steps", "seeds", "top-1 %"]
    if times:
        columns += ["training (CPU s)", "faster by CPU", "wall clock (s)", "faster by wall", "decoding (CPU s)"]
    rows = [f"| {' | '.join(columns)} |", f"| {' | '.join(['---'] * len(columns))} |"]
    baseline = {record["seed"]: record for record in runs.get("baseline", [])}

    def faster(records: list[dict[str, Any]], key: str) -> str:
        pairs = [(baseline[record["seed"]], record) for record in records if record["seed"] in baseline]
        if not pairs or any(run[key] > 1.1 * run["train_seconds"] for pair in pairs for run in pair):
            return ""
        return f"{mean(whole[key] / record[key] for whole, record in pairs):.1f}x"

    for name, variant in variants.items():
        if name not in runs:
            continue
        records = runs[name]
        measured = {key: [record[key] for record in records] for key in records[0] if key != "task"}
        cells = [variant.label, str(measured["steps"][0]), str(len(records))]
        cells.append(spread([100 * top1 for top1 in measured["top1"]], 1))
        if times:
            for key in ("train_seconds", "wall_seconds"):
                cells += [spread(measured[key], 0), faster(records, key)]
            cells.append(spread(measured["decode_seconds"], 0))
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def draw(runs: dict[str, list[dict[str, Any]]], file: Path) -> None:
    """Accuracy against training time (Fig. 1): each seed as a small point, and their means, at the median time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 4.2), dpi=120)
    top1 = {name: [100 * run["top1"] for run in of_name] for name, of_name in runs.items()}
    minutes = {name: median(run["train_seconds"] / 60 for run in of_name) for name, of_name in runs.items()}
    tuned = [name for name in runs if "_time_lr" in name]
    best = max(tuned, key=lambda name: mean(top1[name]), default="")
    of_best = f"Baseline, time of multigrid 1.5x, best of {len(tuned)} LRs (times {best.partition('_lr')[2]})"
    curves = {
        "Multigrid training": ([name for name in runs if re.fullmatch(r"multigrid_[\d.]+x", name)], "tab:red", "o-"),
        "Baseline, shortened": (
            [name for name in runs if re.fullmatch(r"short_[\d.]+x|baseline", name)],
            "tab:blue",
            "s-",
        ),
        of_best: ([best] if best else [], "tab:green", "D"),
    }
    for label, (names, colour, style) in curves.items():
        names.sort(key=minutes.__getitem__)
        for name in names:
            axes.plot([minutes[name]] * len(top1[name]), top1[name], style[0], color=colour, markersize=3, alpha=0.5)
            epochs = mean(record["epochs"] for record in runs[name]) / runs[name][0]["task"]["epochs"]
            axes.annotate(
                # A multigrid training is called by its epoch factor, though its epochs are whole.
                name.partition("_")[2] if name.startswith("multigrid") else f"{epochs:.2g}x",
                (minutes[name], mean(top1[name])),
                textcoords="offset points",
                xytext=(-7, 5),
                horizontalalignment="right",
                color=colour,
            )
        if names:
            axes.plot(
                [minutes[name] for name in names],
                [mean(top1[name]) for name in names],
                style,
                color=colour,
                label=label,
            )
    seeds = " to ".join(map(str, sorted({len(of_name) for of_name in runs.values()})))
    axes.set(xlabel="training time (CPU minutes, median)", ylabel="top-1 accuracy (%)")
    axes.set_title(f"{seeds} seeds (small), and their means (large); lengths in epochs of the baseline", fontsize=9)
    axes.margins(0.12)
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:  # a few variants have no curve
        axes.legend(loc="lower right", fontsize=8)
    figure.tight_layout()
    figure.savefig(file)


def report(folder: Path, task: Task) -> None:
    runs = load(folder)
    if task.model == "transformer":
        print(table(runs, variants_of(task)))
        for name, variant in variants_of(task).items():
            if variant.multigrid is not None and {name, "baseline"} <= runs.keys():
                seconds = {key: mean(run["train_seconds"] for run in runs[key]) for key in (name, "baseline")}
                print(
                    f"\n{variant.label}: {seconds['baseline'] / seconds[name]:.2f}x faster, "
                    f"{predicted_speedup(task, variant):.2f}x predicted by FLOPs."
                )
    else:
        report_cnn(runs, task)
    if find_spec("matplotlib") is None:
        print('\nNo figure without matplotlib: python -m pip install ".[plot]"')
        return
    figure = folder.parent / f"{folder.name}.png"
    draw(runs, figure)
    print(f"\nThe figure is {figure}.")


def report_cnn(runs: dict[str, list[dict[str, Any]]], task: Task) -> None:
    print(table(runs, COMPARISON))
    default = {name: variant for name, variant in COMPARISON.items() if name in ("baseline", "multigrid_1.5x")}
    if set(ablations(task)) & set(runs):
        # All have as many steps as the default; without times, runs on different machines may be mixed.
        print("\n" + table(runs, default | ablations(task), times=False))
    if set(opponents(task)) & set(runs):
        print("\n" + table(runs, default | opponents(task), times=False))
    if set(GROWING) & set(runs):
        print("\n" + table(runs, COMPARISON | GROWING, times=False))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    choices = dict.fromkeys([*variants_of(Task()), *variants_of(TRANSFORMER)])
    parser.add_argument("--variants", nargs="+", choices=choices, help="only these")
    parser.add_argument("--model", choices=["cnn", "transformer"], default="cnn")
    parser.add_argument("--fine-tuning", action="store_true", help="a transformer that was trained on easy shapes")
    parser.add_argument("--ablations", action="store_true", help="the variants of Table 1 instead of the comparison")
    parser.add_argument("--growing", action="store_true", help="regularisation that grows with the grid")
    parser.add_argument("--avletters", metavar="FOLDER", help="real videos that `avletters.py` has written there")
    parser.add_argument("--opponents", action="store_true", help="shortened baselines with other LRs and more steps")
    parser.add_argument("--report", action="store_true", help="train nothing")
    parser.add_argument("--tiny", action="store_true", help="a few steps on a few videos")
    parser.add_argument("--workers", type=int, default=1, help="processes that decode")
    parser.add_argument("--easy", action="store_true", help="easy shapes")
    parser.add_argument("--width", type=int, default=Task.width, help="channels of the CNN's first layer")
    parser.add_argument("--epochs", type=int, help="of the baseline")
    parser.add_argument("--folder", type=Path, help="of the JSON files")
    args = parser.parse_args()
    transforms = args.model == "transformer" or args.fine_tuning
    if args.avletters and (transforms or args.tiny):
        parser.error("`--avletters` is the CNN's, and as long as its videos: leave out what else names a task.")
    results, task, group = "compare", Task(), COMPARISON
    if args.fine_tuning:
        results, task, group = "fine_tuning", FINE_TUNING, FINE_TUNINGS
    elif transforms:
        results, task, group = "compare_transformer", TRANSFORMER, TRANSFORMERS
    elif args.avletters:
        results, task = "lips", lips(args.avletters)
    named = task
    if args.tiny:
        task = replace(task, train_per_class=4, val_per_class=1, epochs=4) if transforms else TINY
    elif not transforms:
        task = replace(task, width=args.width)
    if args.easy:
        task = replace(task, difficulty="easy")
    task = task.of_length(args.epochs or task.epochs)
    if task != named and args.folder is None:
        parser.error(
            "`--tiny`, `--easy`, `--width` and `--epochs` need a `--folder` of their own, so that their runs are not "
            "taken for others."
        )
    folder = args.folder or RESULTS.with_name(results)
    if not args.report:
        group = ablations(task) if args.ablations else opponents(task) if args.opponents else group
        names = args.variants or list(GROWING if args.growing else group)
        run(names, args.seeds, task, folder, args.workers)
    report(folder, task)


if __name__ == "__main__":
    main()
