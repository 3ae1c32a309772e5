"""Draws the words of the glossary into one picture: `docs/images/words.png`.

    python docs/figures/glossary.py words.png

What is drawn is computed by `MultigridSchedule`: phases, passes over the data, the mini-batches of a short cycle.
"""

import argparse
from itertools import pairwise
from math import floor

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lightning_multigrid import Baseline, BatchShape, MultigridSchedule
from lightning_multigrid.schedule import Place, Plan

# Okabe and Ito's colours, which colour-blind people can tell apart; one for each base shape.
COLOURS = ("#56B4E9", "#009E73", "#E69F00", "#D55E00")
BLUE, GREY = "#0b4f79", "#666666"
WORD = {"fontweight": "bold", "color": BLUE, "fontsize": 11}
TIMES = "\N{MULTIPLICATION SIGN}"
SCHEDULE = MultigridSchedule(Baseline(BatchShape(clips=8, frames=32, size=224), epochs=24, milestones=(18,)))
SHOWN = 2  # the phase whose short cycle is drawn


def name(shape):
    return f"{shape.clips} {TIMES} {shape.frames} {TIMES} {shape.size}"


def bracket(axes, start, end, height, text):
    ends = {"arrowstyle": "|-|, widthA=0.3, widthB=0.3", "color": BLUE}
    axes.annotate("", (start, height), (end, height), arrowprops=ends)
    axes.text((start + end) / 2, height + 0.1, text, ha="center", va="bottom", **WORD)


def pass_ends():
    """The epochs at which passes over the data end in the multigrid training."""
    for phase in SCHEDULE.phases:
        first, last = SCHEDULE.passes(phase.start_epoch), SCHEDULE.passes(phase.end_epoch)
        for number in range(floor(first) + 1, floor(last) + 1):
            share = (number - first) / (last - first)
            yield float(phase.start_epoch + share * (phase.end_epoch - phase.start_epoch))


def draw_run(axes):
    """Above, the phases of the multigrid training with their base shapes and its passes; below, the baseline."""
    shapes, epochs = list(dict.fromkeys(phase.shape for phase in SCHEDULE.phases)), SCHEDULE.epochs
    for number, phase in enumerate(SCHEDULE.phases, 1):  # from 1, as in plans
        start, end = float(phase.start_epoch), float(phase.end_epoch)
        colour = COLOURS[shapes.index(phase.shape)]
        axes.add_patch(Rectangle((start, 1.6), end - start, 1, facecolor=colour, edgecolor="white", alpha=0.6))
        text = f"phase {number}\n{name(phase.shape)}"
        axes.text((start + end) / 2, 2.1, text, ha="center", va="center", fontsize=8)
    stages = [0, *map(float, SCHEDULE.baseline.milestones), epochs]
    for number, (start, end) in enumerate(pairwise(stages), 1):
        axes.add_patch(Rectangle((start, 0.1), end - start, 0.6, facecolor="#dddddd", edgecolor="white"))
        axes.text((start + end) / 2, 0.4, f"LR stage {number}", ha="center", va="center", fontsize=8)
        axes.plot([end, end], [1.6, 0.7], ":", color=GREY, linewidth=1)
    ends = list(pass_ends())
    axes.plot([0, epochs], [1.42, 1.42], color=GREY, linewidth=0.8)
    axes.plot([0, *ends], [1.42] * (len(ends) + 1), "|", color=GREY, markersize=6)
    last = [phase for phase in SCHEDULE.phases if phase.stage == 0][-1]
    bracket(axes, 0, float(last.end_epoch), 2.72, "long cycle")
    arrow = {"arrowstyle": "->", "color": BLUE}
    first = SCHEDULE.phases[0]
    axes.annotate(
        "base shape", (float(first.end_epoch) * 0.4, 1.92), (0.4, 1.05), arrowprops=arrow, va="center", **WORD
    )
    bracket(axes, 9, 10, 0.82, "epoch")
    between = (ends[-4] + ends[-3]) / 2
    axes.annotate("pass", (between, 1.42), (between, 1.02), arrowprops=arrow, ha="center", va="center", **WORD)
    tuned = SCHEDULE.phases[-1]
    axes.annotate("phase", (float(tuned.start_epoch + tuned.end_epoch) / 2, 2.6), (22, 2.95), arrowprops=arrow, **WORD)
    passes = float(SCHEDULE.passes(epochs))
    axes.text(epochs + 0.4, 2.1, f"multigrid training,\n{epochs} epochs", va="center", fontsize=9)
    axes.text(epochs + 0.4, 1.42, f"{passes:g} passes", va="center", fontsize=9)
    axes.text(epochs + 0.4, 0.5, "baseline", va="center", **WORD)
    axes.text(epochs + 0.4, 0.1, f"{name(SCHEDULE.baseline.shape)},\n{epochs} epochs", va="center", fontsize=9)
    axes.set_xlim(-0.2, 29)
    axes.set_ylim(-0.2, 3.2)
    axes.axis("off")


def draw_short_cycle(axes):
    """The mini-batches of a short cycle: a clip is a square as large as its frames, a frame holds a sub-mini-batch."""
    place, columns = 0.0, 8
    plan = Plan(SCHEDULE, 4096)
    first = plan.first_from(SCHEDULE.phases[SHOWN].start_epoch)
    for batch in range(first.batch, first.batch + 3):
        step = plan.step(Place(first.epoch, batch))
        grid, side = step.shape, step.shape.size / SCHEDULE.baseline.shape.size
        rows = grid.clips // columns
        for clip in range(grid.clips):
            row, column = divmod(clip, columns)
            corner = place + side * column, 4 - side * (row + 1)
            axes.add_patch(Rectangle(corner, 0.86 * side, 0.86 * side, facecolor=COLOURS[SHOWN], alpha=0.6))
        deep = side * rows * step.sub_batch / grid.clips
        for group in range(grid.clips // step.sub_batch):
            corner = place - 0.08, 4 - deep * (group + 1) - 0.02
            frame = {"fill": False, "edgecolor": BLUE, "linewidth": 1.3}
            axes.add_patch(Rectangle(corner, columns * side + 0.02, deep - 0.05, **frame))
        axes.text(place + columns * side / 2, 4.08, name(grid), ha="center", va="bottom", fontsize=9)
        place += columns * side + 1.3
    bracket(axes, 0, place - 1.3, 4.75, f"short cycle of phase {SHOWN + 1}")
    arrow = {"arrowstyle": "->", "color": BLUE}
    axes.annotate("sub-mini-batch", (place - 1.3, 2.5), (place - 0.6, 2.5), arrowprops=arrow, va="center", **WORD)
    axes.annotate("grid", (place - 2.9, 4.25), (place - 0.6, 4.25), arrowprops=arrow, va="center", **WORD)
    axes.set_xlim(-0.4, place + 5)
    axes.set_ylim(-0.2, 5.5)
    axes.set_aspect("equal")
    axes.axis("off")


def figure():
    drawn = Figure(figsize=(9, 5.2), layout="constrained")
    run, cycle = drawn.subplots(2, 1, height_ratios=(3.2, 2.6))
    draw_run(run)
    draw_short_cycle(cycle)
    return drawn


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture")
    figure().savefig(parser.parse_args(arguments).picture, dpi=150)


if __name__ == "__main__":
    main()
