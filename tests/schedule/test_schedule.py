import math
from collections import Counter
from fractions import Fraction
from itertools import count, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_multigrid.schedule import Plan
from lightning_multigrid.schedule.cycles import Baseline, LongCycle, ShortCycle
from lightning_multigrid.schedule.grid import BatchShape
from lightning_multigrid.schedule.schedule import MultigridSchedule

OFF_LONG, OFF_SHORT = LongCycle(((1, 1),)), ShortCycle((1,))

# The published recipes, per device: Kinetics SlowFast and I3D (Sec. 4).
KINETICS = Baseline(BatchShape(8, 32, 224), epochs=239, milestones=(94, 154, 196), stride=2, warmup_epochs=34)
I3D = Baseline(BatchShape(2, 16, 224), epochs=106, milestones=(106 * 0.375, 106 * 0.75), stride=4)


def ends(schedule):
    return [float(phase.end_epoch) for phase in schedule.phases]


# --- Phases ---


def test_whole_epochs_equal_the_published_kinetics_schedule():
    schedule = MultigridSchedule(KINETICS, whole_epochs=True)
    assert ends(schedule) == [73, 110, 142, 158, 205, 228, 248, 259, 291, 308, 322, 329, 358]
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
    baseline = float(recipe.epochs) * 240_000 / recipe.shape.clips / 8
    assert baseline / sum(Plan(schedule, 240_000 // 8).phase_steps) == pytest.approx(reduction, abs=0.05)


def test_each_shape_of_a_stage_has_the_same_number_of_iterations():
    steps = Plan(MultigridSchedule(KINETICS), 30_000).phase_steps
    for stage in (steps[:4], steps[4:8], steps[8:12]):
        assert max(stage) / min(stage) < 1.003


@pytest.mark.parametrize(
    ("epochs", "factor", "total"), [(1, 1.5, 2), (3, 1.5, 4), (10, 0.01, 1), (10, 2, 20), (4, 1, 4)]
)
def test_total_epochs_are_rounded_half_to_even_and_at_least_one(epochs, factor, total):
    for whole in (False, True):
        schedule = MultigridSchedule(Baseline(BatchShape(2, 8, 64), epochs), epoch_factor=factor, whole_epochs=whole)
        assert schedule.epochs == total


def test_no_milestones_means_fine_tuning_only():
    (phase,) = MultigridSchedule(Baseline(BatchShape(2, 8, 64), epochs=4)).phases
    assert (phase.stage, phase.shape, phase.lr_scale) == (0, BatchShape(2, 8, 64), 1)


def test_short_cycle_alone_keeps_the_lr_scale_and_stretches_the_stages():
    schedule = MultigridSchedule(KINETICS, long_cycle=OFF_LONG)
    assert ends(schedule) == pytest.approx([94 * 358 / 239, 154 * 358 / 239, 196 * 358 / 239, 358])
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
    scales = {
        scaling: [phase.lr_scale for phase in MultigridSchedule(KINETICS, lr_scaling=scaling).phases[:4]]
        for scaling in ("linear", "sqrt", "none")
    }
    assert scales == {
        "linear": [8, 4, 2, 1],
        "sqrt": pytest.approx([8**0.5, 2, 2**0.5, 1]),
        "none": [1, 1, 1, 1],
    }


def test_whole_epochs_drop_empty_phases():
    # PySlowFast at its own SSv2 recipe: stage 1 loses its last shape.
    ssv2 = Baseline(BatchShape(2, 64, 224), epochs=22, milestones=(14, 18))
    schedule = MultigridSchedule(ssv2, whole_epochs=True)
    assert [(p.stage, p.shape.frames, p.shape.size) for p in schedule.phases if p.stage == 1] == [
        (1, 16, 158),
        (1, 32, 158),
        (1, 32, 224),
    ]
    exact = MultigridSchedule(ssv2)
    assert sum(phase.stage == 1 for phase in exact.phases) == 4


# --- The baseline clock ---


def test_clock_is_linear_within_stages_and_halves_the_fine_tuning_of_a_stepwise_schedule():
    schedule = MultigridSchedule(Baseline(BatchShape(2, 8, 64), epochs=8, milestones=(4, 6)))
    first, second, last = (schedule.phases[i].end_epoch for i in (3, 7, 8))
    middle = (second + last) / 2
    assert [schedule.baseline_epoch(p) for p in (0, first / 2, first, middle, last)] == [0, 2, 4, 6, 8]
    assert schedule.baseline_epoch(middle - Fraction(1, 10**6)) < 6  # so the LR of the stage before is kept
    assert schedule.baseline_epoch(second) > 4


def test_clock_of_a_smooth_schedule_runs_evenly_through_fine_tuning():
    schedule = MultigridSchedule(Baseline(BatchShape(2, 8, 64), epochs=8, milestones=(4, 6)), stepwise=False)
    second, last = (schedule.phases[i].end_epoch for i in (7, 8))
    assert schedule.baseline_epoch(second) == 6
    assert schedule.baseline_epoch((second + last) / 2) == 7


def test_published_lr_steps():
    # PySlowFast's STEPS at 1.5x: stages start at 158 and 259, and the last LR at 343, inside fine-tuning from 329.
    schedule = MultigridSchedule(KINETICS, whole_epochs=True)
    assert [schedule.baseline_epoch(epoch) for epoch in (158, 259, 343)] == [94, 154, 196]
    assert schedule.baseline_epoch(Fraction("342.999")) < 196


def test_warmup_runs_one_to_one():
    schedule = MultigridSchedule(KINETICS)
    assert [schedule.baseline_epoch(epoch) for epoch in (0, 1, 17.5, 34)] == [0, 1, 17.5, 34]
    assert schedule.baseline_epoch(35) < 35


def test_warmup_never_takes_more_than_its_share_of_the_stage():
    recipe = Baseline(BatchShape(2, 8, 64), epochs=40, milestones=(20,), warmup_epochs=10)
    schedule = MultigridSchedule(recipe, epoch_factor=0.25)
    stage = schedule.phases[3].end_epoch
    assert stage < 10
    assert schedule.baseline_epoch(stage / 2) == 10


@given(
    st.integers(1, 40),
    st.lists(st.floats(0.05, 0.95), max_size=4),
    st.sampled_from([0.5, 1, 1.5, 2.3]),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_clock_rises_from_start_to_end_and_phases_tile_the_training(epochs, shares, factor, stepwise, whole):
    milestones = tuple(sorted({round(epochs * share, 3) for share in shares}))
    recipe = Baseline(BatchShape(2, 16, 112), epochs, milestones)
    schedule = MultigridSchedule(recipe, epoch_factor=factor, stepwise=stepwise, whole_epochs=whole)
    assert schedule.phases[0].start_epoch == 0
    assert schedule.phases[-1].end_epoch == schedule.epochs
    assert all(a.end_epoch == b.start_epoch for a, b in pairwise(schedule.phases))
    clock = [schedule.baseline_epoch(Fraction(schedule.epochs * i, 50)) for i in range(52)]
    # Whole epochs may leave a short first stage no epoch at all.
    assert clock[0] == 0 or (whole and schedule.phases[0].stage > 0)
    assert clock[-1] == epochs
    assert all(a <= b for a, b in pairwise(clock))


# --- Steps ---


def test_sub_mini_batches_grow_with_the_short_cycle_only():
    # Sec. 3.2: 8, and 16 or 32 where the short cycle makes the mini-batch 2x or 4x larger.
    schedule = MultigridSchedule(KINETICS)
    for phase, wanted in ((0, [16, 8, 8]), (1, [16, 8, 8]), (2, [32, 16, 8]), (3, [32, 16, 8])):
        epoch = int(schedule.phases[phase].start_epoch) + 1
        assert [step.sub_batch for step in Plan(schedule, 3000).epoch(epoch)[:3]] == wanted


def one_by_one(schedule, epoch, clips, accumulate, drop_last):
    """(phase, shape, offset) of the steps of an epoch by their definition, one after the other."""
    offset = 0
    for iteration in count():
        position = epoch + Fraction(offset) / clips
        last = len(schedule.phases) - 1
        phase = next((i for i, phase in enumerate(schedule.phases) if position < phase.end_epoch), last)
        cycle = schedule.cycle(schedule.phases[phase].shape)
        shape = cycle[iteration % len(cycle)]
        for _ in range(accumulate):
            left = math.floor(clips) - offset
            if left < shape.clips:
                if left and not drop_last:
                    yield phase, BatchShape(left, shape.frames, shape.size), offset
                return
            yield phase, shape, offset
            offset += shape.clips


@given(
    st.integers(1, 6),
    st.fractions(70, 900, max_denominator=7),
    st.integers(1, 4),
    st.booleans(),
    st.integers(1, 6),
    st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_steps_and_their_counts_follow_the_definition(clips, total, accumulate, drop_last, epochs, whole):
    recipe = Baseline(BatchShape(clips, 8, 64), epochs + 1, (0.5, epochs))
    schedule = MultigridSchedule(recipe, LongCycle(((0.5, 0.5), (1, 1))), whole_epochs=whole)
    for epoch in range(schedule.epochs + 1):
        plan = Plan(schedule, total, accumulate=accumulate, drop_last=drop_last)
        wanted = list(one_by_one(schedule, epoch, total, accumulate, drop_last))
        assert [(step.phase, step.shape, step.offset) for step in plan.epoch(epoch)] == wanted
        assert plan.count_shapes(epoch) == Counter(shape for _, shape, _ in wanted)
        assert plan.batches_of(epoch) == len(wanted)


def test_validation_epochs_divide_each_phase_and_close_it():
    schedule = MultigridSchedule(Baseline(BatchShape(2, 8, 64), epochs=20, milestones=(10, 15)), whole_epochs=True)
    chosen = schedule.validation_epochs(2)
    assert {int(phase.end_epoch) - 1 for phase in schedule.phases} <= chosen
    assert len(chosen) <= 2 * len(schedule.phases)


@given(
    epochs=st.integers(1, 300),
    factor=st.sampled_from([1, 1.3, 1.5, 2, 3]),
    every=st.integers(1, 20),
    warmup=st.sampled_from([0, 1, 3.5]),
)
def test_epochs_of_the_baseline_end_as_often_as_in_it_and_at_the_same_places(epochs, factor, every, warmup):
    baseline = Baseline(BatchShape(2, 8, 64), epochs=epochs, warmup_epochs=min(warmup, epochs / 4))
    schedule = MultigridSchedule(baseline, epoch_factor=factor)
    ends = sorted(schedule.baseline_epoch_ends(every))
    assert ends[-1] == schedule.epochs - 1
    wanted = list(range(every, epochs + 1, every))
    assert len(ends) == len({*wanted, epochs})
    for end, clock in zip(ends, wanted, strict=False):
        assert schedule.baseline_epoch(end) <= clock
        assert schedule.baseline_epoch(end + 2) > clock or end + 1 >= schedule.epochs - 1
    assert ends[0] == 0 or every > 1 or factor >= 2 or epochs == 1


def test_epochs_of_a_baseline_that_are_shorter_end_at_most_once_in_an_epoch():
    schedule = MultigridSchedule(Baseline(BatchShape(2, 8, 64), epochs=20), epoch_factor=0.5)
    assert schedule.baseline_epoch_ends(1) == frozenset(range(10))
    assert schedule.baseline_epoch_ends(5) == {1, 4, 6, 9}


# --- What a user sees ---


def test_table_names_phases_and_savings():
    text = str(MultigridSchedule(KINETICS, whole_epochs=True))
    assert "64x8x158  128x112 64x158 64x158         8" in text
    assert "358 epochs instead of 239, 3.42x fewer iterations" in text
    assert "steps" not in text


def test_table_counts_steps_when_clips_are_known():
    schedule = MultigridSchedule(Baseline(BatchShape(4, 8, 64), epochs=2), OFF_LONG, OFF_SHORT, epoch_factor=1)
    assert "6 steps instead of 6, 2 epochs instead of 2" in str(Plan(schedule, 10))
    assert "4 steps instead of 4" in str(Plan(schedule, 10, drop_last=True))
    assert "6 mini-batches instead of 6" in str(Plan(schedule, 10, accumulate=2))


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
    with pytest.raises(
        ValueError, match="`short_cycle` must have at least one entry; a cycle of one, with the factor 1"
    ):
        ShortCycle(())
    with pytest.raises(ValueError, match=r"factors of `long_cycle` must be above 0 and at most 1, got 1\.5"):
        LongCycle(((1.5, 1),))
    with pytest.raises(ValueError, match="factors of `short_cycle` must be above 0 and at most 1, got 0"):
        ShortCycle((0, 1))


# --- The baseline itself, as a plan ---


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_flat_plan_ends_with_the_baseline_also_within_an_epoch(drop_last, accumulate):
    """As `max_steps` does. A multigrid training has whole epochs."""
    batches = 5 if drop_last else 6  # of 23 clips
    for steps in range(1, 3 * batches + 1):
        baseline = Baseline(BatchShape(4, 8, 32), epochs=max(1, Fraction(steps, batches)), milestones=())
        flat = MultigridSchedule(baseline, OFF_LONG, OFF_SHORT, epoch_factor=1)
        clips = 20 if drop_last else 23
        plan = Plan(flat, clips, accumulate=accumulate, drop_last=drop_last)
        planned = [step for epoch in range(plan.epochs) for step in plan.epoch(epoch)]
        assert len(planned) == sum(plan.phase_steps) == max(steps, batches)
        assert flat.constant_shape
        assert plan.baseline_steps == len(planned)
        assert flat.baseline_epoch(flat.phases[-1].end_epoch) == baseline.epochs
    assert MultigridSchedule(baseline).phases[-1].end_epoch == MultigridSchedule(baseline).epochs


def test_without_fine_tuning_each_stage_goes_through_the_long_cycle():
    schedule = MultigridSchedule(KINETICS, fine_tuning=False)
    assert [phase.stage for phase in schedule.phases] == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert [phase.lr_scale for phase in schedule.phases] == [8, 4, 2, 1] * 4
    # Each stage has the baseline's share of the epochs, and the LR of each begins where the stage begins.
    for stage, start in enumerate([0, 94, 154, 196]):
        first = next(phase for phase in schedule.phases if phase.stage == stage)
        assert float(first.start_epoch) == pytest.approx(start * schedule.epochs / 239)
        assert schedule.baseline_epoch(first.start_epoch) == start
    one_stage = MultigridSchedule(Baseline(BatchShape(8, 32, 224), epochs=9), fine_tuning=False)
    assert len(one_stage.phases) == 4


# --- The tail of an epoch ---


@settings(max_examples=200, deadline=None)
@given(
    clips=st.integers(64, 400),
    accumulate=st.integers(1, 3),
    epoch=st.integers(0, 8),
    rule=st.sampled_from(["linear", "sqrt", "none"]),
)
def test_a_tail_counts_by_its_clips_but_at_least_for_a_step_of_the_baseline(clips, accumulate, epoch, rule):
    grow = {"linear": float, "sqrt": math.sqrt, "none": lambda clips: 1.0}[rule]
    schedule = MultigridSchedule(Baseline(BatchShape(2, 4, 32), epochs=6, milestones=(3,)), lr_scaling=rule)
    steps = Plan(schedule, clips, accumulate=accumulate).epoch(epoch)
    assert sum(step.shape.clips for step in steps) == clips
    for start in range(0, len(steps), accumulate):
        step = steps[start : start + accumulate]
        phase = schedule.phases[step[0].phase]
        base = phase.shape.clips / 2
        counts = []
        for part in step:
            whole = next(s.clips for s in schedule.cycle(phase.shape) if s.clip == part.shape.clip)
            counts.append(max(1, base * part.shape.clips / whole))
            assert part.baseline_batches == pytest.approx(counts[-1])
        wanted = grow(sum(counts) / len(counts)) / grow(base)
        assert [part.gradient_scale for part in step] == [pytest.approx(wanted)] * len(step)
        if start + accumulate < len(steps):
            assert step[0].gradient_scale == 1
