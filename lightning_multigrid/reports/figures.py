"""Figures of a plan and of a run. matplotlib is imported when the first figure is drawn."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING

from lightning_multigrid.reports.grid_times import TimesRow
from lightning_multigrid.schedule import BatchShape, MultigridSchedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
# Okabe and Ito's colours, which colour-blind people can tell apart; dark enough on white.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#882255", "#000000")
_GREY = "#777777"
_TIMES = "\N{MULTIPLICATION SIGN}"
_POINTS = 1000  # of a curve: about as many as a figure is wide


@dataclass(frozen=True)
class LRPoint:
    """The LR in use at a position, in epochs of the run, and the baseline's LR at the corresponding epoch."""

    position: float
    lr: float
    baseline_lr: float


class LRCurve:
    """Keeps the points of the LR curve of a run where the LR changes, and a few between them."""

    def __init__(self, epochs: int) -> None:
        self.points: list[LRPoint] = []
        self._distance = epochs / _POINTS
        self.newest = LRPoint(0.0, 0.0, 0.0)  # whether it was kept or not

    def add(self, point: LRPoint) -> None:
        previous, self.newest = self.newest, point
        if self.points:
            last = self.points[-1]
            if math.isclose(point.lr, last.lr, rel_tol=0.02) and point.position - last.position < self._distance:
                return
            if previous is not last:
                self.points.append(previous)  # so that a figure shows a jump where it is
        self.points.append(point)


def _new_figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure  # not pyplot, which would choose a window system
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "Figures need matplotlib, which is not installed. Install it with "
            '`python -m pip install "lightning-multigrid[plot]"`.'
        ) from None
    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Writes a figure in the format that the suffix of the path asks for."""
    formats = figure.canvas.get_supported_filetypes()
    suffix = os.path.splitext(path)[1].lstrip(".").lower()
    if suffix not in formats:
        raise ValueError(f"The name of a figure must end in one of .{', .'.join(sorted(formats))}, got {path}.")
    figure.savefig(path, dpi=150)


def plan_figure(
    schedule: MultigridSchedule,
    lrs: Sequence[LRPoint],
    costs: Mapping[str, Mapping[BatchShape, float]] = MappingProxyType({}),
) -> Figure:
    """Draws shapes and LR over the training, as Figure 2 of the paper does, and below them what a step costs.

    `lrs` are in the order of positions; a cost is that of a step on each grid, relative to a step of the baseline.
    """
    rows = max((len(of_grids) for of_grids in costs.values()), default=0)
    heights = (3.3, 2.2, 1.0 + 0.25 * rows)[: 3 if costs else 2]
    figure = _new_figure(9, sum(heights))
    shapes_axes, lr_axes, *costs_axes = figure.subplots(len(heights), 1, height_ratios=heights)
    shapes_axes.sharex(lr_axes)
    shapes_axes.tick_params(labelbottom=False)
    for axes in costs_axes:
        _draw_costs(axes, costs)
    colours = dict(zip(dict.fromkeys(phase.shape for phase in schedule.phases), cycle(_COLOURS)))
    labels = {shape: _name(shape) for shape in colours}
    for phase in schedule.phases:
        clips = [shape.clips for shape in schedule.cycle(phase.shape)]
        start, end = float(phase.start_epoch), float(phase.end_epoch)
        colour, label = colours[phase.shape], labels.pop(phase.shape, None)
        shapes_axes.fill_between([start, end], min(clips), max(clips), color=colour, alpha=0.2, linewidth=0)
        shapes_axes.hlines(phase.shape.clips, start, end, color=colour, linewidth=3, label=label)
    starts = [float(phase.start_epoch) for before, phase in pairwise(schedule.phases) if phase.stage != before.stage]
    for axes in (shapes_axes, lr_axes):
        for start in starts:
            line = axes.axvline(start, color=_GREY, linewidth=0.8, linestyle=":")
        _clean(axes)
    if starts:
        line.set_label("a stage begins")
    every = sorted({shape.clips for shape in schedule.grids} | {schedule.baseline.shape.clips})
    shapes_axes.set_yscale("log", base=2)
    # The smallest value times powers of two: all values if Eq. 1 doubles the clips, and never too many to read.
    ticks = [every[0] * 2**power for power in range(12) if every[0] * 2**power <= 1.01 * every[-1]]
    shapes_axes.set_yticks(ticks, [str(tick) for tick in ticks])
    shapes_axes.set_yticks([], minor=True)
    shapes_axes.set_ylabel("clips per mini-batch\n(shade: short cycle)")
    _legend(shapes_axes, min(4, len(colours)), title=f"base shape: clips {_TIMES} frames {_TIMES} size")
    positions, baseline_lrs = [point.position for point in lrs], [point.baseline_lr for point in lrs]
    lr_axes.plot(positions, [point.lr for point in lrs], color=_COLOURS[0], label="multigrid")
    lr_axes.plot(positions, baseline_lrs, "--", color=_GREY, label="baseline, at the corresponding epoch")
    if all(point.lr > 0 and point.baseline_lr > 0 for point in lrs):
        lr_axes.set_yscale("log")
    lr_axes.set_ylabel("LR")
    lr_axes.set_xlabel(f"epoch of the multigrid training (baseline: {float(schedule.baseline.epochs):g} epochs)")
    lr_axes.set_xlim(0, schedule.epochs)
    _legend(lr_axes, 3)
    return figure


def _draw_costs(axes: Axes, costs: Mapping[str, Mapping[BatchShape, float]]) -> None:
    shapes = list(dict.fromkeys(shape for of_grids in costs.values() for shape in of_grids))
    axes.axvline(1, color=_GREY, linewidth=0.8, linestyle=":")
    for index, (colour, marker, (name, of_grids)) in enumerate(zip(cycle(_COLOURS), cycle("osD^vPX*"), costs.items())):
        offset = 0.5 * (index + 0.5) / len(costs) - 0.25  # equal values stay apart
        places = [shapes.index(shape) + offset for shape in of_grids]
        axes.plot(list(of_grids.values()), places, marker, color=colour, markersize=5, label=name)
    axes.set_yticks(range(len(shapes)), [_name(shape) for shape in shapes])
    axes.set_ylim(len(shapes) - 0.5, -0.5)
    axes.grid(axis="y", linewidth=0.4)
    axes.set_xlim(min(0.9, axes.get_xlim()[0]), max(1.1, axes.get_xlim()[1]))
    axes.set_xlabel("a step of each grid, relative to a step of the baseline")
    _legend(axes, 4)
    _clean(axes)


def times_figure(rows: Sequence[TimesRow]) -> Figure:
    """Draws the time of a step of each shape, and of waiting for the loader."""
    figure = _new_figure(9, 1.6 + 0.5 * len(rows))
    axes = figure.subplots()
    places = range(len(rows))
    steps = [1000 * row.step for row in rows]
    waits = [1000 * row.total.waiting / row.total.steps for row in rows]
    axes.barh(places, steps, height=0.6, color=_COLOURS[0], label="step")
    axes.barh(places, waits, height=0.6, left=steps, color=_COLOURS[5], hatch="//", edgecolor="white", label="waiting")
    axes.set_yticks(list(places), [_name(row.shape) for row in rows])
    axes.invert_yaxis()
    axes.set_ylabel(f"clips {_TIMES} frames {_TIMES} size")
    axes.set_xlabel("ms per step on one device")
    axes.set_xlim(left=0)
    _legend(axes, 3)
    _clean(axes)
    return figure


def _name(shape: BatchShape) -> str:
    return str(shape).replace("x", _TIMES)


def _legend(axes: Axes, columns: int, title: str | None = None) -> None:
    axes.legend(title=title, ncols=columns, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)


def _clean(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)


def runs_figure(curves: Mapping[str, Sequence[Sequence[tuple[float, float]]]], metric: str) -> Figure:
    """Draws a metric against the wall clock: for each kind of run, the (seconds, metric) of each of its runs."""
    figure = _new_figure(7, 4)
    axes = figure.subplots()
    for colour, (name, runs) in zip(_COLOURS, curves.items(), strict=False):
        for number, points in enumerate(runs):
            minutes, values = [seconds / 60 for seconds, _ in points], [value for _, value in points]
            seeds = f"{name} ({len(runs)} {'seed' if len(runs) == 1 else 'seeds'})"
            axes.plot(minutes, values, ".-", color=colour, alpha=0.7, label=seeds if number == 0 else None)
            axes.plot(minutes[-1:], values[-1:], "o", color=colour)
    _clean(axes)
    axes.set_xlabel("minutes by the wall clock")
    axes.set_ylabel(metric)
    axes.set_xlim(left=0)
    _legend(axes, 3)
    return figure
