"""Where it pays: each training with the callback that was measured, against its own baseline, and against any of them.

    python benchmarks/pays.py     # prints the tables of docs/pays.md, and draws its figures

Nothing is trained: `compare.py` and the command `compare` have left the runs in `results`.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from compare import load

from lightning_multigrid.reports import BASELINE, MULTIGRID, Comparison
from lightning_multigrid.reports.changed_meaning import SHORT

RESULTS = Path(__file__).parent / "results"
IMAGES = Path(__file__).parents[1] / "docs" / "images"
TASKS = {
    "easy shapes, CNN": ("easy_5", "easy_7", "easy_10", "easy_14", "easy_20"),
    "hard shapes, CNN": ("cnn_10", "cnn_14", "cnn_20", "cnn_28", "cnn_40"),
    "lips, CNN": ("lips_16", "lips_22", "lips_32", "lips_45", "lips"),
    "hard shapes, transformer": (
        "transformer_10",
        "transformer_15",
        "transformer_21",
        "transformer_30",
        "transformer_42",
        "transformer_60",
    ),
    "fine-tuned transformer": ("fine_tuning",),
}
OF_LENGTHS = [task for task, names in TASKS.items() if len(names) > 1]
LEVERS = {"hard shapes, CNN, 20 epochs": "cnn_20", "lips, CNN, 64 epochs": "lips"}
BY_THE_CLOCK = {
    "quick start, CNN": "quickstart",
    "2,000 own videos": "own_videos_2000",
    "400 own videos": "own_videos_400",
    "60 own videos": "own_videos_60",
}


@dataclass(frozen=True)
class Pair:
    """Trainings of a task with the callback, and their baselines.

    Args:
        task: Data and model.
        factor: The callback's `epoch_factor`.
        steps: Of a training without and with the callback.
        ends: Top-1 accuracies without and with the callback, in percent, one for each seed.
        seconds: Without and with the callback, on the last day when both were trained; None if there is none.
        epochs: Of the baseline.
    """

    task: str
    factor: float
    steps: tuple[int, int]
    ends: tuple[Sequence[float], Sequence[float]]
    seconds: tuple[float, ...] | None
    epochs: float

    @property
    def gained(self) -> float:
        """Points of top-1 over the baseline."""
        baseline, multigrid = map(mean, self.ends)
        return multigrid - baseline

    @property
    def error(self) -> float:
        """Of the gain: two standard errors, 0 for single runs."""
        if min(map(len, self.ends)) < 2:
            return 0.0
        return 2 * sum(stdev(ends) ** 2 / len(ends) for ends in self.ends) ** 0.5

    @property
    def time(self) -> float | None:
        """Of the training with the callback, in epochs of the baseline; trainings of several days compare by it."""
        return None if self.seconds is None else self.epochs * self.seconds[1] / self.seconds[0]

    @property
    def length(self) -> str:
        return f"{self.factor:g} x {self.epochs:g}"

    @property
    def row(self) -> str:
        ends = [f"{mean(of):.1f}" + (f" ± {stdev(of):.1f}" if len(of) > 1 else "") for of in self.ends]
        steps = [f"{number:,}" for number in self.steps]
        share = "" if self.seconds is None else f"{100 * self.seconds[1] / self.seconds[0]:.0f} %"
        cells = [self.task, steps[0], ends[0], f"{self.factor:g}x", steps[1], ends[1], share]
        return f"| {' | '.join(cells)} |"


def _of_script(task: str, folder: Path) -> Iterator[Pair]:
    runs = load(folder)
    baselines = runs["baseline"]
    for name, own in runs.items():
        if factor := re.fullmatch(r"multigrid_([\d.]+)x", name):
            steps = baselines[0]["steps"], own[0]["steps"]
            ends = tuple([100 * run["top1"] for run in of] for of in (baselines, own))
            yield Pair(task, float(factor[1]), steps, ends, _seconds(baselines, own), baselines[0]["epochs"])


def _seconds(*variants: Sequence[Any]) -> tuple[float, ...] | None:
    """Mean CPU time of the runs of each variant, with decoding, on the last day when all were trained."""
    days = set.intersection(*({run["machine"]["date"] for run in runs} for runs in variants))
    if not days:
        return None
    alike = ([run for run in runs if run["machine"]["date"] == max(days)] for runs in variants)
    return tuple(mean(run["train_seconds"] + run["decode_seconds"] for run in runs) for runs in alike)


def _of_command(task: str, folder: Path) -> Pair:
    found = Comparison(folder)
    before, after = (found.runs[variant][0].steps for variant in (BASELINE, MULTIGRID))
    ends = tuple([100 * end for end in found.ends(variant)] for variant in (BASELINE, MULTIGRID))
    seconds = found.seconds(BASELINE), found.seconds(MULTIGRID)
    return Pair(task, 1.5, (before, after), ends, seconds, found.runs[BASELINE][0].epochs)


def pairs() -> list[Pair]:
    """All that was measured, task by task, and from short baselines to long ones."""
    found = [pair for task, names in TASKS.items() for name in names for pair in _of_script(task, RESULTS / name)]
    found += [_of_command(task, RESULTS / name) for task, name in BY_THE_CLOCK.items()]
    return sorted(found, key=lambda pair: (list(TASKS | BY_THE_CLOCK).index(pair.task), pair.steps))


def table(found: Sequence[Pair]) -> str:
    """In Markdown."""
    columns = ["task", "baseline's steps", "its top-1 %", "epochs", "steps", "top-1 %", "of its time"]
    return "\n".join([f"| {' | '.join(columns)} |", "| --- " * len(columns) + "|", *(pair.row for pair in found)])


def firsts(found: Sequence[Pair]) -> Iterator[tuple[Pair, Pair | None, float]]:
    """For each length of a baseline, the training with the callback that was soonest as good, and its share of time.

    It may have any length; its mean end is no lower than the baseline's. None is as high as some baselines.
    """
    for task in dict.fromkeys(pair.task for pair in found):
        of_task = [pair for pair in found if pair.task == task and pair.time]
        for epochs, before in sorted({pair.epochs: pair for pair in of_task}.items()):
            level = [pair for pair in of_task if mean(pair.ends[1]) >= mean(before.ends[0])]
            first = min(level, key=lambda pair: pair.time, default=None)
            yield before, first, first.time / epochs if first else float("nan")


def soonest(found: Sequence[Pair]) -> str:
    """`firsts`, in Markdown."""
    columns = ["task", "baseline's epochs", "its top-1 %", "with the callback", "top-1 %", "of its time"]
    rows = [f"| {' | '.join(columns)} |", "| --- " * len(columns) + "|"]
    for before, first, share in firsts(found):
        cells = [before.task, f"{before.epochs:g}", f"{mean(before.ends[0]):.1f}", "none", "", ""]
        if first:
            cells[3:] = [first.length, f"{mean(first.ends[1]):.1f}", f"{100 * share:.0f} %"]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def levers() -> str:
    """In Markdown: what might help a short training, in about as many steps: top-1."""
    columns = ["", *LEVERS]
    rows = [f"| {' | '.join(columns)} |", "| --- " * len(columns) + "|"]
    runs = [load(RESULTS / name) for name in LEVERS.values()]
    labels = {"baseline": "baseline", "multigrid_1.5x": "with the callback, 1.5x"}
    labels |= {
        "long_3": "without the coarsest shape",
        "long_2": "without the two coarsest",
        "sqrt_lr": "LR by the square root",
    }
    for variant, label in labels.items():
        cells = [label]
        for of_task in runs:
            ends = [100 * run["top1"] for run in of_task[variant]]
            cells.append(f"{mean(ends):.1f} ± {stdev(ends):.1f}")
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _plain_log(axes: Any, ticks: Sequence[float]) -> None:
    """A logarithmic axis with a few ticks, written as one says them."""
    axes.set_xscale("log")
    axes.set_xticks(ticks)
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.minorticks_off()


def draw_frontiers(found: Sequence[Pair], file: Path) -> None:
    """Top-1 against the time, of baselines of several lengths, and of trainings with the callback; a panel per task."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(2, 2, figsize=(8.6, 6.4), dpi=110)
    for axes, task in zip(panels.flat, OF_LENGTHS, strict=True):
        of_task = [pair for pair in found if pair.task == task and pair.time]
        baselines = sorted({(pair.epochs, mean(pair.ends[0])) for pair in of_task})
        axes.plot(*zip(*baselines, strict=True), "s-", label="baselines", markersize=5)
        for factor, colour in ((1.0, "C2"), (1.5, "C1"), (2.0, "C3"), (3.0, "C4")):
            points = sorted((pair.time, mean(pair.ends[1])) for pair in of_task if pair.factor == factor)
            if points:
                label = f"with the callback, {factor:g}x"
                axes.plot(*zip(*points, strict=True), "o--", color=colour, label=label, markersize=5)
        _plain_log(axes, [2, 5, 10, 20, 50])
        axes.set_title(task, fontsize=9)
        axes.grid(alpha=0.3, which="both")
        axes.legend(fontsize=7, loc="lower right")
    figure.supxlabel("time, in epochs of the baseline", fontsize=9)
    figure.supylabel("top-1 %", fontsize=9)
    figure.tight_layout()
    figure.savefig(file)


def draw(found: Sequence[Pair], file: Path) -> None:
    """Points of top-1 over the baseline against the steps of the training with the callback."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8.6, 4.4), dpi=110)
    for number, task in enumerate([*TASKS, *BY_THE_CLOCK]):
        of_task = [pair for pair in found if pair.task == task]
        steps, gained, errors = zip(*((pair.steps[1], pair.gained, pair.error) for pair in of_task), strict=True)
        axes.errorbar(steps, gained, errors, fmt="osD^v<>ph"[number], capsize=2, markersize=5, label=task)
        for pair in of_task:
            if pair.factor != 1.5:
                axes.annotate(f" {pair.factor:g}x", (pair.steps[1], pair.gained), fontsize=7, va="bottom")
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.axvline(SHORT, color="grey", linewidth=0.8, linestyle="--")
    axes.text(SHORT, axes.get_ylim()[0], " the callback warns to the left", fontsize=7, va="bottom")
    _plain_log(axes, [500, 1000, 2500, 5000, 10000])
    axes.set(xlabel="optimizer steps with the callback", ylabel="top-1 over the baseline, points")
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.01, 1))
    figure.tight_layout()
    figure.savefig(file)


def main() -> None:
    found = pairs()
    print(table(found))
    of_lengths = [pair for pair in found if pair.task in OF_LENGTHS]
    print(f"\n{soonest(of_lengths)}")
    print(f"\n{levers()}")
    draw(found, IMAGES / "pays.png")
    draw_frontiers(of_lengths, IMAGES / "frontiers.png")
    print(f"\nThe figures are pays.png and frontiers.png in {IMAGES}.")


if __name__ == "__main__":
    main()
