"""The figures of a plan and of a comparison: what it shows, by asking matplotlib for it."""

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from lightning_multigrid.reports import Comparison, LRPoint, RunRecord, comparison_figure, plan_figure
from lightning_multigrid.schedule import Baseline, BatchShape, MultigridSchedule

SCHEDULE = MultigridSchedule(Baseline(BatchShape(4, 32, 224), epochs=239, milestones=(94, 154, 196)))
LRS = [
    LRPoint(float(position), 0.8 * phase.lr_scale, 0.8)
    for phase in SCHEDULE.phases
    for position in (phase.start_epoch, phase.end_epoch)
]


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
    named = "32 x 8 x 158", "16 x 16 x 158", "8 x 16 x 224", "4 x 32 x 224"
    assert words(shapes) == [shape.replace("x", times) for shape in named]
    assert [tick.get_text() for tick in shapes.get_yticklabels()] == ["4", "8", "16", "32", "64"]
    assert words(lrs) == ["multigrid", "baseline"]
    multigrid, baseline = lrs.get_lines()[-2:]
    assert max(multigrid.get_ydata()) == pytest.approx(6.4)
    assert set(baseline.get_ydata()) == {0.8}
    assert (lrs.get_xlabel(), lrs.get_xlim(), lrs.get_yscale()) == ("epoch", (0, 239), "log")


def test_an_lr_of_zero_has_no_logarithm():
    assert plan_figure(SCHEDULE, [*LRS, LRPoint(239, 0, 0)]).axes[1].get_yscale() == "linear"


def test_no_words_overlap():
    figure = plan_figure(SCHEDULE, LRS)
    drawn = list(boxes(figure))
    width, height = figure.canvas.get_width_height()
    for index, box in enumerate(drawn):
        assert 0 <= box.x0 < box.x1 <= width
        assert 0 <= box.y0 < box.y1 <= height
        assert not any(box.overlaps(other) for other in drawn[index + 1 :]), box


def test_a_comparison_shows_each_run_and_the_mean_with_its_error(tmp_path):
    for seed, (half, end) in enumerate([(0.5, 0.8), (0.3, 0.6)]):
        validations = [(60.0, 0.5, {"val/top1": half}), (120.0, 1.0, {"val/top1": end})]
        RunRecord("baseline", seed, {"start": 120.0}, validations).write(tmp_path / f"baseline-{seed}.json")
    figure = comparison_figure(Comparison(tmp_path))
    FigureCanvasAgg(figure).draw()
    [axes] = figure.axes
    drawn = [line.get_xydata().round(6).tolist() for line in axes.lines]
    assert drawn == [[[1, 0.5], [2, 0.8]], [[1, 0.3], [2, 0.6]], [[1, 0.4], [2, 0.7]]]
    assert words(axes) == ["baseline, seeds: 2"]
    [shade] = axes.collections
    heights = shade.get_datalim(axes.transData).get_points()[:, 1]
    assert heights.tolist() == pytest.approx([0.3, 0.8])  # 0.1414 / sqrt(2) around the means
