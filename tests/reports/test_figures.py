"""Figures: what they show, by asking matplotlib for it."""

import sys

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from lightning_multigrid.reports.figures import LRPoint, plan_figure, save, times_figure
from lightning_multigrid.reports.grid_times import TimesRow
from lightning_multigrid.reports.step_times import StepTotals
from lightning_multigrid.schedule.cycles import Baseline
from lightning_multigrid.schedule.grid import BatchShape
from lightning_multigrid.schedule.schedule import MultigridSchedule

SCHEDULE = MultigridSchedule(Baseline(BatchShape(4, 32, 224), epochs=239, milestones=(94, 154, 196)))
LRS = [
    LRPoint(float(position), 0.8 * phase.lr_scale, 0.8)
    for phase in SCHEDULE.phases
    for position in (phase.start_epoch, phase.end_epoch)
]
ROWS = [
    TimesRow(BatchShape(64, 8, 112), StepTotals(10, 640, waiting=2.5, stepping=5.0)),
    TimesRow(BatchShape(4, 32, 224), StepTotals(20, 80, waiting=0.0, stepping=9.0)),
]


KINDS = ("FLOPs", "activation memory", "measured time", "time on another GPU", "energy", "a sixth kind")
COSTS = {kind: dict.fromkeys(SCHEDULE.grids, 1 + index / 50) for index, kind in enumerate(KINDS)}


def words(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def boxes(figure):
    """Where each text and legend is drawn."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    for axes in figure.axes:
        yield axes.get_legend().get_window_extent(renderer)
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
            for label in (axis.label, *ticks):
                if label.get_visible() and label.get_text():
                    yield label.get_window_extent(renderer)


def test_the_plan_shows_shapes_and_lrs():
    shapes, lrs = plan_figure(SCHEDULE, LRS).axes
    times = "\N{MULTIPLICATION SIGN}"
    assert words(shapes) == [
        s.replace("x", times) for s in ("32 x 8 x 158", "16 x 16 x 158", "8 x 16 x 224", "4 x 32 x 224")
    ]
    assert [tick.get_text() for tick in shapes.get_yticklabels()] == ["4", "8", "16", "32", "64"]
    assert words(lrs) == ["a stage begins", "multigrid", "baseline, at the corresponding epoch"]
    multigrid, baseline = lrs.get_lines()[-2:]
    assert max(multigrid.get_ydata()) == pytest.approx(6.4)
    assert set(baseline.get_ydata()) == {0.8}
    assert lrs.get_xlim() == (0, 358)
    assert lrs.get_yscale() == "log"


def test_an_lr_of_zero_has_no_logarithm():
    assert plan_figure(SCHEDULE, [*LRS, LRPoint(358, 0, 0)]).axes[1].get_yscale() == "linear"


def test_a_plan_with_costs_shows_each_kind_on_every_grid():
    *_, costs = plan_figure(SCHEDULE, LRS, COSTS).axes
    assert words(costs) == list(KINDS)
    assert len(costs.get_yticklabels()) == len(SCHEDULE.grids) == 8
    drawn = [line for line in costs.get_lines() if line.get_label() in KINDS]
    assert [set(line.get_xdata()) for line in drawn] == [{1 + index / 50} for index in range(6)]
    assert len({line.get_color() for line in drawn}) == len({line.get_marker() for line in drawn}) == 6
    for line in drawn:
        assert [round(place) for place in line.get_ydata()] == list(range(8))


def test_times_show_a_bar_for_each_shape():
    (axes,) = times_figure(ROWS).axes
    assert words(axes) == ["step", "waiting"]
    assert [bar.get_width() for bar in axes.patches] == [500, 450, 250, 0]
    assert [bar.get_x() for bar in axes.patches] == [0, 0, 500, 450]


@pytest.mark.parametrize(
    "figure",
    [plan_figure(SCHEDULE, LRS), plan_figure(SCHEDULE, LRS, COSTS), times_figure(ROWS), times_figure(ROWS * 6)],
)
def test_no_words_overlap(figure):
    drawn = list(boxes(figure))
    width, height = figure.canvas.get_width_height()
    for place, box in enumerate(drawn):
        assert 0 <= box.x0 < box.x1 <= width
        assert 0 <= box.y0 < box.y1 <= height
        assert not any(box.overlaps(other) for other in drawn[place + 1 :]), box


def test_files(tmp_path):
    figure = times_figure(ROWS)
    for name, start in (("a.png", b"\x89PNG"), ("a.SVG", b"<?xml"), ("a.pdf", b"%PDF")):
        save(figure, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(start)
    with pytest.raises(ValueError, match=r"The name of a figure must end in one of .*\.png.*, got .*a\.txt"):
        save(figure, tmp_path / "a.txt")


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(
        ModuleNotFoundError, match=r'not installed. Install it with `python -m pip install ".*\[plot\]"`'
    ):
        times_figure(ROWS)
