"""Trains the rows of a task by `lightning-multigrid compare`, and writes their table into the pages that show it.

    python benchmarks/tasks/run.py grid_words --seeds 3     # in the folder of its videos; what is there is not repeated
    python benchmarks/tasks/run.py grid_planes --rows default
    python benchmarks/tasks/run.py grid_64 --rows default --lengths 0.75 0.67 0.5
    python benchmarks/tasks/run.py                          # the tables and figures alone

A page shows a table between `<!-- made by benchmarks/tasks/run.py: TASK ROW ... -->`, of all rows if none is named, and
`<!-- end -->`. The row of a baseline is named by its length, such as `8_epochs`, and that of a shorter training by its
share of the length, such as `default_0.75`. "As much time" is CPU time, so that trainings may share a machine. The mark
`time TASK ...` is for a table of the time that the baseline's accuracy takes, with the default or with the row of a
`TASK/ROW`, and `card` for one of situations.
"""

import argparse
import itertools
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from lightning_multigrid.reports import BASELINE, MULTIGRID, Comparison, RunRecord

HERE = Path(__file__).parent
RESULTS, ROOT = HERE.parent / "results", HERE.parents[1]
PAGES = ROOT / "README.md", HERE / "README.md", *sorted((ROOT / "docs").glob("*.md"))
MARKED = re.compile(r"(<!-- made by benchmarks/tasks/run\.py: ([\w./ ]+) -->\n).*?(<!-- end -->)", re.DOTALL)
# Each is a file of `rows`, but the first: the config of the task as it is, with the baseline.
ROWS = {
    "default": "**multigrid**, the default",
    "progressive": "**one pass** at 1x, `progressive()`: half of the frames, then all",
    "frames_last": "one pass at 1x, half of the frames at each size, then all",
    "one_shape": "one pass at 1x with one coarse shape: half of the frames",
    "factor_13": "multigrid 1.3x",
    "short_cycle_off": "multigrid without the short cycle",
    "short_cycle_off_1": "multigrid 1x without the short cycle",
    "short_cycle_67": "multigrid with a short cycle, from 0.67 of the size",
    "short_cycle_80": "multigrid with a short cycle, from 0.8 of the size",
    "long_cycle_off": "multigrid 1.5x without the long cycle",
    "paper": "multigrid 1.5x with the paper's short cycle, from half of the size",
    "fine_33": "short cycle from 0.67 of the size, a third of the steps fine",
    "fine_25": "multigrid 1.5x, a quarter of the steps fine",
    "sizes_83": "multigrid 1.5x, by way of 0.83 of the size",
    "smaller_end": "multigrid 1.5x, ended at 0.875 of the size, a quarter of the steps there",
    "fine_67": "short cycle from 0.67 of the size, two thirds of the steps fine",
    "factor_175": "multigrid 1.75x with a short cycle, from 0.67 of the size",
    "stages": "multigrid 1.5x, a long cycle for each LR stage, as in the paper",
    "stages_2": "multigrid 2x, a long cycle for each LR stage",
    "stages_short_cycle_off": "multigrid 1.5x, a long cycle for each LR stage, without the short cycle",
    "lr_sqrt": "short cycle from 0.67 of the size, the LR by the square root of the clips",
    "lr_none": "short cycle from 0.67 of the size, the script's LR",
}
# Parts of a config, which go on that of `grid_words`.
ON_GRID_WORDS = "grid_planes", "grid_48", "grid_48_steps", "grid_64", "grid_64_steps", "grid_96"
ON_GRID_WORDS += "grid_wide", "grid_many", "grid_many_24", "grid_few"
TASKS = "grid_words", *ON_GRID_WORDS, "avletters", "hard_shapes", "transformer_10"
# Situation, plan, and the task and row that show it.
CARD = (
    ("from scratch, clips of 64 pixels or more", "the default", "grid_64", "default"),
    ("from scratch, smaller clips", "the default", "grid_planes", "default"),
    ("an LR that falls in steps", "the default", "grid_64_steps", "default"),
    ("a transformer, clips of 40 pixels", "[a short cycle](choose.md)", "transformer_10", "short_cycle_80"),
    ("[a long fine-tuning](#fine-tuning)", "the default", "grid_many_24", "default"),
)
# What the table of times calls a task.
CLIPS = {
    "grid_wide": "words, 96 px",
    "grid_64": "words, 64 px",
    "grid_64_steps": "words, 64 px, LR in steps",
    "grid_planes": "words, 48 px",
    "grid_48": "words, 48 px",
    "hard_shapes": "shapes, 40 px, LR in steps",
}
# The task that each shows, and its rows: at most five.
FIGURES = {
    "front": ("grid_64", "16_epochs", "short_cycle_off", "default"),
}


@dataclass(frozen=True)
class Training:
    """The runs of a training, and the row that they belong to."""

    row: str
    label: str
    runs: Sequence[RunRecord]
    ends: Sequence[float]

    @property
    def cpu(self) -> float:
        """The least of the runs: all compute the same, and other work on the machine only makes them slower."""
        return min(run.cpu for run in self.runs)

    @property
    def top1(self) -> str:
        """The mean over the seeds, with its standard error."""
        ends = [100 * end for end in self.ends]
        spread = f"±\N{NO-BREAK SPACE}{stdev(ends) / math.sqrt(len(ends)):.1f}" if len(ends) > 1 else ""
        return "\N{NO-BREAK SPACE}".join(filter(None, [f"{mean(ends):.1f}", spread]))

    def cells(self, baseline: float) -> list[str]:
        [steps] = {run.steps for run in self.runs}
        share = f"{100 * self.cpu / baseline:.0f} %"
        return [self.label, str(len(self.runs)), self.top1, f"{steps:,}", f"{self.cpu:.0f}", share]


def trainings(task: str, *rows: str) -> list[Training]:
    """What there is of a task, of the rows that are named or of all, the longest first."""
    found, baselines = [], dict[int, list[tuple[RunRecord, float]]]()
    for row, label in ROWS.items():
        compared = Comparison(RESULTS / task / row, clock="cpu")
        for variant, runs in compared.runs.items():
            if variant.startswith(MULTIGRID) and runs:
                part = variant.removeprefix(MULTIGRID)
                length = part and f", {runs[0].epochs} epochs"
                found.append(Training(row + part, label + length, runs, compared.ends(variant)))
            elif runs:  # those of one length are one baseline, whatever they are compared with
                baselines.setdefault(runs[0].epochs, []).extend(zip(runs, compared.ends(variant), strict=True))
    for epochs, pairs in baselines.items():
        runs, ends = zip(*pairs, strict=True)
        found.append(Training(f"{epochs}_epochs", f"baseline, {epochs} epochs", runs, ends))
    return sorted((one for one in found if not rows or one.row in rows), key=lambda one: -one.cpu)


def table(task: str, *rows: str) -> str:
    """In Markdown; of the rows that are named, or of all."""
    baseline = whole_baseline(task).cpu
    columns = ["training", "runs", "top-1 %", "steps", "CPU time, s", "of the baseline's"]
    return markdown(columns, [one.cells(baseline) for one in trainings(task, *rows)])


def card() -> str:
    """In Markdown: which plan for which situation, its share of the baseline's time, and both accuracies."""
    columns, cells = ["you train", "plan", "of the time", "top-1 %", "the baseline's"], []
    for situation, plan, task, row in CARD:
        [one], whole = trainings(task, row), whole_baseline(task)
        cells.append([situation, plan, f"{100 * one.cpu / whole.cpu:.0f} %", one.top1, whole.top1])
    return markdown(columns, cells)


def whole_baseline(task: str) -> Training:
    return max((one for one in trainings(task) if one.runs[0].variant == BASELINE), key=lambda one: one.cpu)


def markdown(columns: list[str], cells: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [columns, ["---"] * len(columns), *cells])


def times(*tasks: str) -> str:
    """The time that the baseline's accuracy takes with the default, or with the row of a `TASK/ROW`, in Markdown."""
    columns = ["clips", "baseline", "top-1 %", "CPU time, s", "with the line", "top-1 %", "CPU time, s", "of its time"]
    lines = []
    for name in tasks:
        task, _, row = name.partition("/")
        compared = Comparison(RESULTS / task / (row or "default"), clock="cpu")
        compared.runs[BASELINE] = [*whole_baseline(task).runs]
        variant = compared.shortest()
        pair = [Training("", "", compared.runs[one], compared.ends(one)) for one in (BASELINE, variant or MULTIGRID)]
        texts = [[f"{one.runs[0].epochs} epochs", one.top1, f"{one.cpu:.0f}"] for one in pair]
        share = f"**{100 * pair[1].cpu / pair[0].cpu:.0f} %**" if variant else "worse"
        lines.append([CLIPS[name], *texts[0], *texts[1], share])
    return markdown(columns, lines)


def made(words: Sequence[str]) -> str:
    """The table of a mark."""
    if words == ["card"]:
        return card()
    return times(*words[1:]) if words[0] == "time" else table(*words)


def with_tables(text: str) -> str:
    """Returns a page with today's tables between its marks."""
    return MARKED.sub(lambda found: f"{found[1]}\n{made(found[2].split())}\n\n{found[3]}", text)


def draw(file: Path, task: str, *rows: str) -> None:
    """Accuracy against CPU time: each run a small point, their mean at the least time a large one."""
    from matplotlib.figure import Figure

    found, baselines = trainings(task, *rows), []
    figure = Figure(figsize=(7.2, 3.8 + 0.12 * len(found)), layout="constrained")
    axes = figure.subplots()
    shown = {one.row for one in found}
    # C7 is the grey of the baselines.
    looks = dict(zip((row for row in ROWS if row in shown), itertools.product("oD^", "012345689"), strict=False))
    for one in found:
        marker, number = looks.get(one.row, ("s", "7"))
        colour = f"C{number}"
        label = re.sub("[*`]", "", one.label) if one.row in ROWS else None
        axes.plot([run.cpu for run in one.runs], [100 * end for end in one.ends], marker, c=colour, ms=3, alpha=0.6)
        above = 3 if one.row == "default" else 2
        axes.plot(one.cpu, 100 * mean(one.ends), marker, c=colour, ms=8, label=label, zorder=above)
        if one.row not in ROWS:
            baselines.append((one.cpu, 100 * mean(one.ends)))
            length = f"{one.runs[0].epochs} epochs"
            axes.annotate(length, baselines[-1], (-8, 4), textcoords="offset points", ha="right")
    axes.plot(*zip(*baselines, strict=True), color="C7", marker="s", linewidth=0.8, label="baselines")
    # From 0, so that a share of the time looks like one.
    axes.set(xlabel="CPU time, s", ylabel="top-1 %", xlim=(0, None))
    axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=7)
    figure.savefig(file, dpi=150)


def configs_of(task: str) -> list[Path]:
    """The configs of a task's baseline, which add up."""
    if task in ON_GRID_WORDS:
        return [HERE / "grid_words.yaml", HERE / "on_grid_words" / f"{task}.yaml"]
    return [HERE / f"{task}.yaml"]


def train(task: str, seeds: int, rows: Sequence[str] | None = None, lengths: Sequence[float] = ()) -> None:
    """Trains what is missing of each row, or of these, in the folder that one is in; also of shorter trainings."""
    first, *_ = (RESULTS / task / row for row in ROWS)
    for row in ROWS if rows is None else rows:
        folder = RESULTS / task / row
        folder.mkdir(parents=True, exist_ok=True)
        if folder != first:
            for file in first.glob(f"{BASELINE}-*.json"):
                shutil.copy(file, folder)
        configs = [*configs_of(task), *(HERE / "rows").glob(f"{row}.yaml")]
        command = [sys.executable, "-m", "lightning_multigrid", "compare", "--clock", "cpu", "--seeds", str(seeds)]
        command += [f"--lengths={[*lengths]}"] if lengths else []
        command += ["--output", str(folder), *(word for file in configs for word in ("--config", str(file)))]
        try:
            # `fine_tuning.py` has a model of its own.
            paths = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
            subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": paths})
        finally:
            if folder != first:
                for file in folder.glob(f"{BASELINE}-*.json"):
                    file.unlink()


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", choices=TASKS, help="train what is missing of it")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", nargs="+", choices=ROWS, help="those to train; by default all")
    parser.add_argument("--lengths", type=float, nargs="+", default=(), help="shares of the length to train, too")
    options = parser.parse_args(given)
    if options.task:
        train(options.task, options.seeds, options.rows, options.lengths)
    pages = {page: page.read_text() for page in PAGES}
    for name, shown in FIGURES.items():
        draw(ROOT / "docs" / "images" / f"{name}.png", *shown)
    for page, text in pages.items():
        page.write_text(with_tables(text))


if __name__ == "__main__":
    main()
