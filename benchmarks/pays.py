"""Where it pays: each training with the callback that was measured, against its own baseline, by the number of steps.

    python benchmarks/pays.py     # prints the table of docs/pays.md, and draws docs/images/pays.png

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
FIGURE = Path(__file__).parents[1] / "docs" / "images" / "pays.png"
TASKS = {
    "hard shapes, CNN": ("compare", "cnn_20", "cnn_10"),
    "hard shapes, wider CNN": ("compare_width48",),
    "hard shapes, transformer": ("compare_transformer_60", "compare_transformer"),
    "fine-tuned transformer": ("compare_fine_tuning",),
    "lips, CNN": ("lips",),
}
BY_THE_CLOCK = {"quick start, CNN": "quickstart", "400 own videos": "own_videos_400", "60 own videos": "own_videos_60"}


@dataclass(frozen=True)
class Pair:
    """Trainings of a task with the callback, and their baselines.

    Args:
        task: Data and model.
        factor: The callback's `epoch_factor`.
        steps: Of a training without and with the callback.
        ends: Top-1 accuracies without and with the callback, in percent, one for each seed.
        share: Time with the callback as a share of the baseline's, None where they were not measured alike.
    """

    task: str
    factor: float
    steps: tuple[int, int]
    ends: tuple[Sequence[float], Sequence[float]]
    share: float | None

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
    def row(self) -> str:
        ends = [f"{mean(of):.1f}" + (f" ± {stdev(of):.1f}" if len(of) > 1 else "") for of in self.ends]
        steps = [f"{number:,}" for number in self.steps]
        share = "" if self.share is None else f"{100 * self.share:.0f} %"
        cells = [self.task, steps[0], ends[0], f"{self.factor:g}x", steps[1], ends[1], share]
        return f"| {' | '.join(cells)} |"


def _measured(runs: Sequence[Any]) -> tuple[int, list[float], float]:
    """Of runs of the script: the steps of each, the ends, and the mean CPU time with decoding."""
    ends = [100 * run["top1"] for run in runs]
    return runs[0]["steps"], ends, mean(run["train_seconds"] + run["decode_seconds"] for run in runs)


def _of_script(task: str, folder: Path) -> Iterator[Pair]:
    runs = load(folder)
    if "baseline" in runs:
        steps, ends, seconds = _measured(runs["baseline"])
    else:  # of the lips, which the command `compare` has trained
        found = Comparison(RESULTS / "compare_avletters")
        steps, ends, seconds = found.runs[BASELINE][0].steps, [100 * end for end in found.ends(BASELINE)], 0.0
    for name, of_variant in runs.items():
        if found_factor := re.fullmatch(r"multigrid_([\d.]+)x", name):
            own_steps, own_ends, own_seconds = _measured(of_variant)
            share = own_seconds / seconds if seconds else None
            yield Pair(task, float(found_factor[1]), (steps, own_steps), (ends, own_ends), share)


def _of_command(task: str, folder: Path) -> Pair:
    found = Comparison(folder)
    before, after = (found.runs[variant][0].steps for variant in (BASELINE, MULTIGRID))
    ends = tuple([100 * end for end in found.ends(variant)] for variant in (BASELINE, MULTIGRID))
    return Pair(task, 1.5, (before, after), ends, found.seconds(MULTIGRID) / found.seconds(BASELINE))


def pairs() -> list[Pair]:
    """All that was measured, from few steps to many."""
    found = [pair for task, names in TASKS.items() for name in names for pair in _of_script(task, RESULTS / name)]
    found += [_of_command(task, RESULTS / name) for task, name in BY_THE_CLOCK.items()]
    return sorted(found, key=lambda pair: pair.steps[1])


def table(found: Sequence[Pair]) -> str:
    """In Markdown, from few steps to many."""
    columns = ["task", "baseline's steps", "its top-1 %", "epochs", "steps", "top-1 %", "of its time"]
    return "\n".join([f"| {' | '.join(columns)} |", "| --- " * len(columns) + "|", *(pair.row for pair in found)])


def draw(found: Sequence[Pair], file: Path) -> None:
    """Points of top-1 over the baseline against the steps of the training with the callback."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.2, 4.4), dpi=110)
    for number, task in enumerate([*TASKS, *BY_THE_CLOCK]):
        of_task = [pair for pair in found if pair.task == task]
        steps, gained, errors = zip(*((pair.steps[1], pair.gained, pair.error) for pair in of_task), strict=True)
        axes.errorbar(steps, gained, errors, fmt="osD^v<>p"[number], capsize=2, markersize=5, label=task)
        for pair in of_task:
            axes.annotate(f" {pair.factor:g}x", (pair.steps[1], pair.gained), fontsize=7, va="bottom")
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.axvline(SHORT, color="grey", linewidth=0.8, linestyle="--")
    axes.text(SHORT, axes.get_ylim()[0], " the callback warns to the left", fontsize=7, va="bottom")
    axes.set_xscale("log")
    axes.set(xlabel="optimizer steps with the callback", ylabel="top-1 over the baseline, points")
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=7, loc="lower right")
    figure.tight_layout()
    figure.savefig(file)


def main() -> None:
    found = pairs()
    print(table(found))
    draw(found, FIGURE)
    print(f"\nThe figure is {FIGURE}.")


if __name__ == "__main__":
    main()
