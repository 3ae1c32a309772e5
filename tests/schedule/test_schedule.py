import math
import re
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_multigrid.schedule import Baseline, BatchShape, LongCycle, MultigridSchedule, Plan, ShortCycle

OFF_LONG, OFF_SHORT = LongCycle(((1, 1),)), ShortCycle((1,))

# The published recipes, per device: Kinetics SlowFast and I3D (Sec. 4).
KINETICS = Baseline(BatchShape(8, 32, 224), epochs=239, milestones=(94, 154, 196), stride=2, warmup_epochs=34)
I3D = Baseline(BatchShape(2, 16, 224), epochs=106, milestones=(106 * 0.375, 106 * 0.75), stride=4)


def ends(schedule):
    return [float(phase.end_epoch) for phase in schedule.phases]


# --- Phases ---


def test_passes_at_the_ends_of_phases_are_the_published_schedule_to_a_pass():
    """PySlowFast rounds the passes at the ends to whole epochs; here they follow from shares of the steps."""
    schedule = MultigridSchedule(KINETICS)
    passes = [round(schedule.passes(end)) for end in ends(schedule)]
    assert passes == [73, 110, 142, 158, 205, 228, 248, 259, 291, 308, 322, 329, 358]
    assert [phase.stage for phase in schedule.phases] == [0] * 4 + [1] * 4 + [2] * 4 + [3]
    assert [phase.lr_scale for phase in schedule.phases] == [8, 4, 2, 1] * 3 + [1]
    cycle = [BatchShape(64, 8, 158), BatchShape(32, 16, 158), BatchShape(16, 16, 224), BatchShape(8, 32, 224)]
    assert [phase.shape for phase in schedule.phases] == cycle * 3 + cycle[-1:]


def test_short_cycle_has_the_published_shapes():
    schedule = MultigridSchedule(KINETICS)
    multiples = [[shape.clips // 8 for shape in schedule.cycle(phase.shape)] for phase in schedule.phases[:4]]
    assert multiples == [[16, 8, 8], [8, 4, 4], [8, 4, 2], [4, 2, 1]]
    assert [shape.size for shape in schedule.cycle(BatchShape(64, 8, 158))] == [112, 158, 158]
    assert [shape.size for shape in schedule.cycle(BatchShape(8, 32, 224))] == [112, 158, 224]


@pytest.mark.parametrize(("recipe", "reduction"), [(KINETICS, 3.43), (I3D, 3.27)])
def test_iterations_are_reduced_as_published(recipe, reduction):
    schedule = MultigridSchedule(recipe)
    assert schedule.iteration_reduction == pytest.approx(reduction, abs=0.05)
    # The same by counting steps of a data set in which rounding hardly matters.
    plan = Plan(schedule, 240_000, world=8)
    assert plan.baseline_steps / sum(plan.phase_steps) == pytest.approx(reduction, abs=0.05)


def test_each_shape_of_a_stage_has_the_same_number_of_iterations():
    for plan in (Plan(MultigridSchedule(KINETICS), 30_000), Plan(MultigridSchedule(KINETICS), 240_000, world=128)):
        steps = plan.phase_steps
        for stage in (steps[:4], steps[4:8], steps[8:12]):
            assert max(stage) - min(stage) <= 1


@pytest.mark.parametrize("epochs", [1, 3, 10, 2.5])
@pytest.mark.parametrize("factor", [0.25, 1, 1.5, 3])
def test_epochs_are_the_scripts_and_passes_the_factor_times_as_many(epochs, factor):
    schedule = MultigridSchedule(Baseline(BatchShape(2, 8, 64), epochs, (0.5,)), epoch_factor=factor)
    assert schedule.epochs == math.ceil(epochs)
    assert schedule.phases[-1].end_epoch == epochs
    assert schedule.passes(epochs) == epochs * factor


def test_no_milestones_means_fine_tuning_only():
    (phase,) = MultigridSchedule(Baseline(BatchShape(2, 8, 64), epochs=4)).phases
    assert (phase.stage, phase.shape, phase.lr_scale) == (0, BatchShape(2, 8, 64), 1)


def test_short_cycle_alone_keeps_the_lr_scale_and_the_stages():
    schedule = MultigridSchedule(KINETICS, long_cycle=OFF_LONG)
    assert ends(schedule) == [94, 154, 196, 239]
    assert {phase.lr_scale for phase in schedule.phases} == {1}
    assert schedule.iteration_reduction == pytest.approx((4 + 2 + 1) / 3 / 1.5, rel=0.01)


def test_sizes_are_rounded_to_the_divisor_but_the_baseline_never():
    schedule = MultigridSchedule(Baseline(BatchShape(2, 8, 100), epochs=4, milestones=(2,)), size_divisor=16)
    assert {shape.size for shape in schedule.grids} == {48, 64, 100}  # 50 and 71 to multiples of 16


def test_frames_are_rounded_to_the_divisor_but_the_baseline_never():
    baseline = Baseline(BatchShape(2, 18, 96), epochs=4, milestones=(2,))
    schedule = MultigridSchedule(baseline, size_divisor=32, frames_divisor=4)
    assert {shape.frames for shape in schedule.grids} == {4, 8, 18}  # 4.5 and 9 to multiples of 4
    assert "(clips x frames x size); frames are multiples of 4 and sizes are multiples of 32\n" in str(schedule)
    assert {s.frames for s in MultigridSchedule(baseline, frames_divisor=16).grids} == {16, 18}  # at least one


def test_lr_scaling():
    sqrt = pytest.approx([8**0.5, 2, 2**0.5, 1])
    for scaling, scales in (("linear", [8, 4, 2, 1]), ("sqrt", sqrt), ("none", [1, 1, 1, 1])):
        assert [phase.lr_scale for phase in MultigridSchedule(KINETICS, lr_scaling=scaling).phases[:4]] == scales


# --- The clock of the LR ---


def test_the_clock_is_the_epoch_but_a_stepwise_lr_waits_for_the_middle_of_fine_tuning():
    schedule = MultigridSchedule(Baseline(BatchShape(2, 8, 64), epochs=8, milestones=(4, 6)))
    assert [schedule.baseline_epoch(epoch) for epoch in (0, 2, 4, 5.5, 7, 8)] == [0, 2, 4, 5.5, 7, 8]
    for epoch in (6, 6.5, 6.999):
        assert 6 - Fraction(1, 10**6) < schedule.baseline_epoch(epoch) < 6  # so the LR of the stage before is kept
    smooth = MultigridSchedule(schedule.baseline, stepwise=False)
    assert [smooth.baseline_epoch(epoch) for epoch in (6, 6.5, 7)] == [6, 6.5, 7]
    whole = MultigridSchedule(schedule.baseline, fine_tuning=False)  # it has no fine-tuning phase
    assert [whole.baseline_epoch(epoch) for epoch in (6, 6.5, 7)] == [6, 6.5, 7]


def test_published_lr_steps():
    # PySlowFast's STEPS at 1.5x: stages start at passes 158 and 259, the last LR at 343, within the fine-tuning.
    schedule = MultigridSchedule(KINETICS)
    starts = [next(p.start_epoch for p in schedule.phases if p.stage == stage) for stage in (1, 2, 3)]
    assert starts == [94, 154, 196]
    middle = (196 + Fraction(239)) / 2
    assert [round(schedule.passes(epoch)) for epoch in (*starts[:2], middle)] == [158, 259, 344]
    assert schedule.baseline_epoch(middle) == middle
    assert schedule.baseline_epoch(middle - Fraction(1, 10**6)) < 196


def test_a_stepwise_warmup_takes_as_many_passes_as_the_baselines():
    """As published: 34 of Kinetics' epochs, so 34 passes, at more than three passes an epoch of the first phase."""
    schedule = MultigridSchedule(KINETICS)
    end = next(Fraction(part, 100) for part in range(10_000) if schedule.passes(Fraction(part, 100)) >= 34)
    assert end == pytest.approx(34 / 3.116, abs=0.02)
    for share in (0, Fraction(1, 4), Fraction(1, 2), Fraction(9, 10)):
        assert schedule.baseline_epoch(share * end) == schedule.passes(share * end)
    assert [schedule.baseline_epoch(epoch) for epoch in (12, 20, 34, 35)] == [34, 34, 34, 35]
    smooth = MultigridSchedule(KINETICS, stepwise=False)  # its share of the steps
    assert [smooth.baseline_epoch(epoch) for epoch in (1, 12, 34)] == [1, 12, 34]


def test_the_warmup_never_takes_longer_than_in_the_script():
    recipe = Baseline(BatchShape(2, 8, 64), epochs=40, milestones=(20,), warmup_epochs=10)
    schedule = MultigridSchedule(recipe, epoch_factor=0.25)
    assert schedule.passes(10) < 10
    assert [schedule.baseline_epoch(epoch) for epoch in (2, 5, 10)] == [2, 5, 10]


@given(
    st.integers(1, 40),
    st.lists(st.floats(0.05, 0.95), max_size=4),
    st.sampled_from([0.5, 1, 1.5, 2.3]),
    st.booleans(),
    st.floats(0, 0.9),
)
@settings(max_examples=200, deadline=None)
def test_clock_rises_from_start_to_end_and_phases_tile_the_training(epochs, shares, factor, stepwise, warmup):
    milestones = tuple(sorted({round(epochs * share, 3) for share in shares}))
    warmup = warmup * (milestones or (epochs,))[0]
    recipe = Baseline(BatchShape(2, 16, 112), epochs, milestones, warmup_epochs=warmup)
    schedule = MultigridSchedule(recipe, epoch_factor=factor, stepwise=stepwise)
    assert schedule.phases[0].start_epoch == 0
    assert schedule.phases[-1].end_epoch == epochs
    assert all(a.end_epoch == b.start_epoch for a, b in pairwise(schedule.phases))
    clock = [schedule.baseline_epoch(Fraction(epochs * i, 50)) for i in range(52)]
    assert clock[0] == 0
    assert clock[-1] == epochs
    assert all(a <= b for a, b in pairwise(clock))


def test_sub_mini_batches_grow_with_the_short_cycle_only():
    # Sec. 3.2: 8, and 16 or 32 where the short cycle makes the mini-batch 2x or 4x larger.
    schedule = MultigridSchedule(KINETICS)
    for phase, wanted in ((0, [16, 8, 8]), (1, [16, 8, 8]), (2, [32, 16, 8]), (3, [32, 16, 8])):
        assert [sub_batch for _, sub_batch in schedule.cycles[phase]] == wanted


# --- What a user sees ---


def test_table_names_phases_and_savings():
    text = str(MultigridSchedule(KINETICS))
    assert "1      1     0 - 23.5    73.2    64x8x158  128x112 64x158 64x158         8\n" in text
    assert "358.5 passes over the data in 239 epochs, 3.42x fewer iterations" in text
    assert "steps" not in text
    part = MultigridSchedule(Baseline(BatchShape(4, 8, 64), epochs=Fraction(40, 13)))  # as of `max_steps`
    assert part.savings[0] == "4.62 passes over the data in 3.08 epochs"


def test_table_counts_steps_when_clips_are_known():
    schedule = MultigridSchedule(Baseline(BatchShape(4, 8, 64), epochs=2), OFF_LONG, OFF_SHORT, epoch_factor=2)
    assert "12 steps instead of 6, 4 passes over the data in 2 epochs" in str(Plan(schedule, 12))
    assert "12 steps instead of 4" in str(Plan(schedule, 12, batches=2))
    assert "8 mini-batches instead of 6" in str(Plan(schedule, 10, accumulate=2))


@pytest.mark.parametrize(("clips", "accumulate", "batches"), [(12, 1, 3), (11, 1, 3), (9, 1, 3), (17, 2, 5)])
def test_the_schedule_of_the_baseline_has_its_optimizer_steps_and_saves_nothing(clips, accumulate, batches):
    """Those of a loader whose last mini-batch, and whose last optimizer step, may be smaller."""
    schedule = MultigridSchedule(Baseline(BatchShape(4, 8, 64), epochs=2), OFF_LONG, OFF_SHORT, epoch_factor=1)
    plan = Plan(schedule, clips, accumulate=accumulate)
    assert schedule.is_baseline
    assert (plan.baseline_steps, plan.optimizer_steps) == (2 * batches, 2 * math.ceil(batches / accumulate))
    assert {step.shape for step in plan.epoch(1)} == {BatchShape(4, 8, 64)}
    assert not re.search("instead|fewer|Multigrid", str(plan))
    assert not replace(schedule, epoch_factor=1.5).is_baseline
    assert not replace(schedule, short_cycle=ShortCycle((0.5, 1))).is_baseline
    steps = replace(schedule, baseline=replace(schedule.baseline, milestones=(1,)))  # whose LR waits in the fine-tuning
    assert not steps.is_baseline
    assert replace(steps, fine_tuning=False).is_baseline


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epochs": 0.5}, r"`epochs` must be at least 1, got 0\.5\. Train longer"),
        ({"milestones": (5, 3)}, r"`milestones` must increase and lie between 0 and `epochs=10`, got \(5\.0, 3\.0\)"),
        ({"milestones": (10,)}, "`milestones` must increase"),
        ({"milestones": (0,)}, "`milestones` must increase"),
        ({"stride": 0}, "`stride` must be at least 1 source frame, got 0"),
        ({"warmup_epochs": -1}, "`warmup_epochs` must be at least 0 .*; got -1"),
        ({"warmup_epochs": 4, "milestones": (4, 8)}, "end before the first LR stage does, at epoch 4; got 4"),
    ],
)
def test_baselines_refuse(arguments, message):
    with pytest.raises(ValueError, match=message):
        Baseline(**{"shape": BatchShape(2, 8, 64), "epochs": 10} | arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epoch_factor": 0}, "`epoch_factor` must be positive, got 0"),
        ({"sub_batch": 0}, "`sub_batch` must be at least 1, got 0"),
        ({"size_divisor": -16}, "`size_divisor` must be at least 1, got -16"),
        ({"frames_divisor": 0}, "`frames_divisor` must be at least 1, got 0"),
        ({"lr_scaling": "cubic"}, "`lr_scaling` must be one of linear, sqrt, none, got 'cubic'"),
    ],
)
def test_schedules_refuse(arguments, message):
    with pytest.raises(ValueError, match=message):
        MultigridSchedule(KINETICS, **arguments)


def test_cycles_refuse():
    with pytest.raises(ValueError, match="`short_cycle` must have at least one entry. To turn a cycle off, give the f"):
        ShortCycle(())
    with pytest.raises(ValueError, match=r"factors of `long_cycle` must be above 0 and at most 1, got 1\.5"):
        LongCycle(((1.5, 1),))
    with pytest.raises(ValueError, match="factors of `short_cycle` must be above 0 and at most 1, got 0"):
        ShortCycle((0, 1))


def test_without_fine_tuning_each_stage_goes_through_the_long_cycle():
    schedule = MultigridSchedule(KINETICS, fine_tuning=False)
    assert [phase.stage for phase in schedule.phases] == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert [phase.lr_scale for phase in schedule.phases] == [8, 4, 2, 1] * 4
    for stage, start in enumerate([0, 94, 154, 196]):
        first = next(phase for phase in schedule.phases if phase.stage == stage)
        assert first.start_epoch == schedule.baseline_epoch(first.start_epoch) == start
    one_stage = MultigridSchedule(Baseline(BatchShape(8, 32, 224), epochs=9), fine_tuning=False)
    assert len(one_stage.phases) == 4
