"""A plan: places, optimizer steps and positions agree with the steps that are counted one by one."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_multigrid.schedule.cycles import Baseline
from lightning_multigrid.schedule.grid import BatchShape
from lightning_multigrid.schedule.plan import EpochLength, Place, Plan
from lightning_multigrid.schedule.schedule import MultigridSchedule

SCHEDULE = MultigridSchedule(Baseline(BatchShape(2, 8, 32), epochs=4, milestones=(2, 3)))
PLANS = st.builds(
    Plan,
    st.just(SCHEDULE),
    st.integers(40, 200),
    world=st.integers(1, 3),
    accumulate=st.integers(1, 3),
    drop_last=st.booleans(),
)


def steps_of(plan):
    return [step for epoch in range(plan.epochs) for step in plan.epoch(epoch)]


@settings(max_examples=30, deadline=None)
@given(PLANS)
def test_each_step_comes_after_the_one_before_and_further_on(plan):
    every = steps_of(plan)
    assert [plan.after(step) for step in every] == [*every[1:], plan.epoch(plan.epochs)[0]]
    assert [step.place for step in every] == [
        Place(epoch, batch) for epoch in range(plan.epochs) for batch in range(plan.batches_of(epoch))
    ]
    positions = [plan.position(step) for step in every]
    assert positions == sorted(set(positions))
    assert plan.position(plan.after(plan.epoch(1)[-1])) == 2
    assert len(every) == sum(plan.phase_steps)
    assert {(step.shape, step.sub_batch) for step in every} == set(plan.shapes_and_sub_batches)


@settings(max_examples=30, deadline=None)
@given(PLANS)
def test_mini_batches_of_an_optimizer_step_share_its_clock_its_scales_and_its_phase(plan):
    done = 0
    for step in steps_of(plan):
        epoch, batch = step.place
        assert step.starts_update == (batch % plan.accumulate == 0)
        if step.starts_update:
            first, position = step, epoch + Fraction(step.offset, plan.clips)
            assert plan.start_of_update(step.place) == step.place
            assert plan.optimizer_steps_before(step.place) == done
            assert step.baseline_epoch == SCHEDULE.baseline_epoch(position)
            assert step.lr_scale == SCHEDULE.phases[step.phase].lr_scale
            done += 1
        assert plan.start_of_update(step.place) == first.place
        of_update = "phase", "baseline_epoch", "lr_scale", "gradient_scale"
        assert [getattr(step, name) for name in of_update] == [getattr(first, name) for name in of_update]
    assert plan.optimizer_steps == done


def test_an_epoch_of_the_baseline_has_the_mini_batches_of_its_clips_unless_given():
    assert Plan(SCHEDULE, 101).baseline_length == EpochLength(51)
    assert Plan(SCHEDULE, 101, drop_last=True, accumulate=4).baseline_length == EpochLength(50, 4)
    assert Plan(SCHEDULE, 101, batches=7).baseline_length == EpochLength(7)


def test_the_last_phase_of_a_long_training_has_the_momentum_of_the_script():
    """It is most of the steps that running statistics at the end look back over."""
    schedule = MultigridSchedule(Baseline(BatchShape(8, 32, 224), epochs=239, milestones=(94, 154, 196)))
    last = [step for step in Plan(schedule, 20_000).epoch(schedule.epochs - 1) if step.phase == 12]
    assert len(last) > 1000  # and at a momentum of 0.1, what is 1,000 steps ago weighs nothing: 0.9**1000 < 1e-45
    assert {step.baseline_batches for step in last} == {1}


# --- Ticks of schedulers ---


@pytest.mark.parametrize("batches", [5, 8])
@pytest.mark.parametrize("accumulate", [1, 2, 3])
@pytest.mark.parametrize("frequency", [1, 2, 4])
def test_ticks_are_those_of_lightnings_rule(batches, accumulate, frequency):
    epoch = EpochLength(batches, accumulate)
    ticks = 0
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
