"""A plan: places, optimizer steps and positions agree with the steps that are counted one by one."""

from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lightning_multigrid.schedule import Baseline, BatchShape, EpochLength, MultigridSchedule, Place, Plan
from tests.helpers.plans import schedules

SCHEDULE = MultigridSchedule(Baseline(BatchShape(2, 8, 32), epochs=4, milestones=(2, 3)))


def plans():
    """With accumulation, and several ranks."""
    of = {"clips": st.integers(20, 900), "world": st.integers(1, 3), "accumulate": st.integers(1, 3)}
    return st.builds(Plan, schedules(), **of)


def steps_of(plan):
    return [step for epoch in range(plan.epochs) for step in plan.epoch(epoch)]


@settings(max_examples=100, deadline=None)
@given(plans())
def test_the_training_is_one_sequence_of_steps_that_take_the_stream_clip_by_clip(plan):
    every = steps_of(plan)
    assert {len(plan.epoch(epoch)) for epoch in range(plan.epochs + 1)} == {plan.batches_per_epoch}
    assert [step.place for step in every] == [
        Place(epoch, batch) for epoch in range(plan.epochs) for batch in range(plan.batches_per_epoch)
    ]
    assert [plan.after(step) for step in every] == [*every[1:], plan.epoch(plan.epochs)[0]]
    offset = 0
    for step in every:
        assert step == plan.step(step.place)
        assert step.offset == offset
        assert step.shape in plan.schedule.cycle(plan.schedule.phases[step.phase].shape)  # whole: no step is a tail
        offset += step.shape.clips * plan.world
    assert 0 <= len(every) - sum(plan.phase_steps) < plan.batches_per_epoch  # the rest of a last epoch that ends early


@settings(max_examples=100, deadline=None)
@given(plans())
def test_passes_are_the_factor_times_the_epochs_up_to_the_rounding_of_an_epoch(plan):
    steps, schedule = steps_of(plan)[: sum(plan.phase_steps)], plan.schedule
    assume(not schedule.is_baseline)  # that has as many updates as the script, each of whole mini-batches
    clips = sum(step.shape.clips for step in steps) * plan.world
    wanted = schedule.epoch_factor * schedule.baseline.epochs * plan.clips
    rounding = plan.steps_per_epoch / plan.unrounded_steps_per_epoch
    # Each phase may have a step more or less, and a part of a turn of the short cycle.
    largest = max(shape.clips for shape in schedule.grids) * plan.world * plan.accumulate
    assert clips == pytest.approx(float(wanted * rounding), abs=4 * largest * (len(schedule.phases) + 1))


@settings(max_examples=100, deadline=None)
@given(plans())
def test_scale_and_lr_change_at_the_same_step(plan):
    """A phase has the steps that begin within it, and so has the LR: of an epoch's scheduler, as many ticks."""
    schedule, length = plan.schedule, plan.baseline_length
    for step in steps_of(plan)[: sum(plan.phase_steps)]:
        update = plan.start_of_update(step.place)
        position = plan.position(update)
        phase = schedule.phases[step.phase]
        assert phase.start_epoch <= position < phase.end_epoch
        assert step.lr_scale == phase.lr_scale
        if schedule.is_baseline:  # each update is one of the script's own
            assert step.baseline_epoch == update.epoch + Fraction(update.batch, length.batches)
            continue
        assert step.baseline_epoch == schedule.baseline_epoch(position)
        if not schedule.stepwise:
            assert length.ticks(step.baseline_epoch, "epoch", 1) == step.place.epoch
        in_last = schedule.fine_tuning and schedule.stepwise and phase.stage == len(schedule.baseline.milestones) > 0
        held = in_last and position < (phase.start_epoch + phase.end_epoch) / 2
        stage = sum(milestone <= step.baseline_epoch for milestone in schedule.baseline.milestones)
        assert stage == phase.stage - held


@settings(max_examples=50, deadline=None)
@given(plans())
def test_mini_batches_of_an_optimizer_step_share_its_clock_its_scales_and_its_shape(plan):
    done = 0
    for step in steps_of(plan):
        assert step.starts_update == (step.place.batch % plan.accumulate == 0)
        if step.starts_update:
            first = step
            assert plan.start_of_update(step.place) == step.place
            assert plan.optimizer_steps_before(step.place) == done
            done += 1
        assert plan.start_of_update(step.place) == first.place
        of_update = "phase", "shape", "sub_batch", "baseline_epoch", "lr_scale"
        assert [getattr(step, name) for name in of_update] == [getattr(first, name) for name in of_update]
    assert plan.optimizer_steps * plan.accumulate == sum(plan.phase_steps)
    assert 0 <= done - plan.optimizer_steps < plan.steps_per_epoch


@settings(max_examples=50, deadline=None)
@given(plans(), st.fractions(0, 12))
def test_the_first_step_from_a_position_begins_there_or_is_the_next(plan, position):
    place = plan.first_from(position)
    assert plan.start_of_update(place) == place
    assert position <= plan.position(place) < position + Fraction(1, plan.steps_per_epoch)


def test_the_short_cycle_begins_anew_with_each_phase():
    plan = Plan(SCHEDULE, 203)
    by_phase = [[step.shape for step in steps_of(plan) if step.phase == phase] for phase in range(9)]
    for phase, shapes in enumerate(by_phase):
        cycle = SCHEDULE.cycle(SCHEDULE.phases[phase].shape)
        assert shapes == [cycle[number % 3] for number in range(len(shapes))]


def test_an_epoch_of_the_baseline_has_the_mini_batches_of_its_clips_unless_given():
    assert Plan(SCHEDULE, 101).baseline_length == EpochLength(51)
    assert Plan(SCHEDULE, 101, world=2, accumulate=4).baseline_length == EpochLength(26, 4)
    assert Plan(SCHEDULE, 101, batches=7).baseline_length == EpochLength(7)


def test_the_last_phase_has_the_momentum_of_the_script():
    """It is most of the steps that running statistics at the end look back over."""
    steps = steps_of(Plan(SCHEDULE, 203))
    assert [step.baseline_batches for step in steps if step.phase in (0, 8)][:1] == [8]
    assert {step.baseline_batches for step in steps if step.phase == 8} == {1}


# --- Ticks of schedulers ---


@pytest.mark.parametrize("batches", [5, 8])
@pytest.mark.parametrize("accumulate", [1, 2, 3])
@pytest.mark.parametrize("frequency", [1, 2, 4])
def test_ticks_are_those_of_lightnings_rule(batches, accumulate, frequency):
    epoch, ticks = EpochLength(batches, accumulate), 0
    for done in range(3 * batches):
        assert epoch.ticks(Fraction(done, batches), "step", frequency) == ticks
        position = done % batches + 1
        if position % frequency == 0 and (position % accumulate == 0 or position == batches):
            ticks += 1
            assert epoch.after_ticks(ticks, "step", frequency) == Fraction(done + 1, batches)


def test_epoch_ticks():
    epoch = EpochLength(10)
    assert [epoch.ticks(Fraction(e, 2), "epoch", 2) for e in range(9)] == [0, 0, 0, 0, 1, 1, 1, 1, 2]
    assert epoch.after_ticks(3, "epoch", 2) == 6


@pytest.mark.parametrize(("accumulate", "frequency"), [(1, 11), (4, 3), (4, 10), (1, 10), (3, 1)])
def test_an_epoch_after_so_many_ticks_is_the_first_that_has_had_them(accumulate, frequency):
    """With 10 batches, a scheduler of every 11th step never ticks, nor one of every 3rd where every 4th is a step."""
    epoch = EpochLength(batches=10, accumulate=accumulate)
    assert epoch.after_ticks(0, "step", frequency) in (0, 10**9)
    for ticks in range(1, 12):
        at = epoch.after_ticks(ticks, "step", frequency)
        if at == 10**9:
            assert epoch.ticks(Fraction(100), "step", frequency) == 0
        else:
            assert epoch.ticks(at, "step", frequency) >= ticks
            assert epoch.ticks(at - Fraction(1, 10), "step", frequency) < ticks
