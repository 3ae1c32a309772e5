"""The figures of a plan and of a comparison. matplotlib is imported when one is drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise
from typing import TYPE_CHECKING

from lightning_multigrid.reports.comparison import Comparison
from lightning_multigrid.schedule import MultigridSchedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
# Okabe and Ito's colours, which colour-blind people can tell apart; dark enough on white.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#882255", "#000000")
_GREY = "#777777"
_TIMES = "\N{MULTIPLICATION SIGN}"


@dataclass(frozen=True)
class LRPoint:
    """The LR in use at a position, in epochs, and the baseline's LR that the scale multiplies."""

    position: float
    lr: float
    baseline_lr: float


def new_figure() -> Figure:
    """Returns an empty figure; an error says how to install what it needs."""
    try:
        from matplotlib.figure import Figure  # not pyplot, which would choose a window system
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("A figure needs matplotlib: `pip install lightning-multigrid[plot]`.") from error
    return Figure(figsize=(9, 5.5), layout="constrained")


def comparison_figure(comparison: Comparison) -> Figure:
    """Draws the metric over the minutes of `fit`: runs, their means, and a shade of the standard error of these."""
    figure = new_figure()
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    for colour, (variant, runs) in zip(_COLOURS, comparison.runs.items(), strict=False):
        if not runs:
            continue
        for run in runs:
            minutes = [seconds / 60 for seconds, *_ in run.validations]
            values = [metrics.get(comparison.metric, math.nan) for *_, metrics in run.validations]
            axes.plot(minutes, values, color=colour, linewidth=0.8, alpha=0.5)
        curve = comparison.curve(variant)
        minutes = [seconds / 60 for seconds, *_ in curve]
        means, errors = [value for _, value, _ in curve], [error for *_, error in curve]
        low, high = ([value + sign * error for value, error in zip(means, errors, strict=True)] for sign in (-1, 1))
        axes.fill_between(minutes, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(minutes, means, color=colour, linewidth=2, label=f"{variant}, seeds: {len(runs)}")
    axes.set_xlabel("minutes of fit")
    axes.set_ylabel(comparison.metric)
    _legend(axes, 3, "mean (shade: standard error) and single runs")
    return figure


def plan_figure(schedule: MultigridSchedule, lrs: Sequence[LRPoint]) -> Figure:
    """Draws shapes and LR over the training, as Figure 2 of the paper does; `lrs` are in the order of positions."""
    figure = new_figure()
    shapes_axes, lr_axes = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    starts = [float(phase.start_epoch) for before, phase in pairwise(schedule.phases) if phase.stage != before.stage]
    for axes in (shapes_axes, lr_axes):
        for start in starts:
            axes.axvline(start, color=_GREY, linewidth=0.8, linestyle=":")
        axes.spines[["top", "right"]].set_visible(False)
    _draw_shapes(shapes_axes, schedule)
    positions, baseline_lrs = [point.position for point in lrs], [point.baseline_lr for point in lrs]
    lr_axes.plot(positions, [point.lr for point in lrs], color=_COLOURS[0], label="multigrid")
    lr_axes.plot(positions, baseline_lrs, "--", color=_GREY, label="baseline")
    if all(point.lr > 0 and point.baseline_lr > 0 for point in lrs):
        lr_axes.set_yscale("log")
    lr_axes.set_ylabel("LR")
    _legend(lr_axes, 2)
    lr_axes.set_xlabel("epoch")
    lr_axes.set_xlim(0, schedule.epochs)
    return figure


def _draw_shapes(axes: Axes, schedule: MultigridSchedule) -> None:
    colours = dict(zip(dict.fromkeys(phase.shape for phase in schedule.phases), cycle(_COLOURS)))
    labels = {shape: str(shape).replace("x", _TIMES) for shape in colours}
    for phase in schedule.phases:
        clips = [shape.clips for shape in schedule.cycle(phase.shape)]
        start, end = float(phase.start_epoch), float(phase.end_epoch)
        colour, label = colours[phase.shape], labels.pop(phase.shape, "_nolegend_")
        axes.fill_between([start, end], min(clips), max(clips), color=colour, alpha=0.2, linewidth=0)
        axes.hlines(phase.shape.clips, start, end, color=colour, linewidth=3, label=label)
    every = sorted({shape.clips for shape in schedule.grids} | {schedule.baseline.shape.clips})
    axes.set_yscale("log", base=2)
    # The smallest value times powers of two: all values if Eq. 1 doubles the clips, and never too many to read.
    ticks = [every[0] * 2**power for power in range(12) if every[0] * 2**power <= 1.01 * every[-1]]
    axes.set_yticks(ticks, [str(tick) for tick in ticks])
    axes.set_yticks([], minor=True)
    axes.set_ylabel("clips per mini-batch\n(shade: short cycle)")
    _legend(axes, min(4, len(colours)), f"base shape: clips {_TIMES} frames {_TIMES} size (dotted: a stage begins)")


def _legend(axes: Axes, columns: int, title: str | None = None) -> None:
    axes.legend(title=title, ncols=columns, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
