"""A plan: places, optimizer steps and positions agree with the steps that are counted one by one."""

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_multigrid.schedule.cycles import Baseline
from lightning_multigrid.schedule.grid import BatchShape
from lightning_multigrid.schedule.plan import BaselineEpoch, Place, Plan
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


def places(plan):
    return [Place(epoch, batch) for epoch in range(plan.epochs) for batch in range(len(plan.steps(epoch)))]


@settings(max_examples=30, deadline=None)
@given(PLANS)
def test_each_place_comes_after_the_one_before_and_further_on(plan):
    every = places(plan)
    assert [plan.after(place) for place in every] == [*every[1:], Place(plan.epochs, 0)]
    positions = [plan.position(place) for place in every]
    assert positions == sorted(set(positions))
    assert plan.position(Place(1, len(plan.steps(1)))) == 2
    assert len(every) == sum(plan.phase_steps) == sum(plan.batches_of(epoch) for epoch in range(plan.epochs))


@settings(max_examples=30, deadline=None)
@given(PLANS)
def test_mini_batches_of_an_optimizer_step_share_its_lr_and_gradient_scale(plan):
    done = 0
    for epoch in range(plan.epochs):
        for batch in range(len(plan.steps(epoch))):
            place = Place(epoch, batch)
            first = plan.whole(place)
            assert first.batch == max(b for b in range(batch + 1) if b % plan.accumulate == 0)
            assert plan.lr(place) == plan.lr(first)
            assert plan.gradient_scale(place) == plan.gradient_scale(first)
            if place == first:
                assert plan.optimizer_steps_before(place) == done
                done += 1
                clock = plan.lr(place).baseline_epoch
                assert clock == SCHEDULE.baseline_epoch(epoch + Fraction(plan.steps(epoch)[batch].offset, plan.clips))
    assert plan.optimizer_steps == done


def test_the_weight_decay_that_keeps_its_timescale_grows_with_the_clips_over_the_lr():
    plan = Plan(SCHEDULE, 100)
    for place in places(plan):
        step = plan.steps(place.epoch)[place.batch]
        rule = plan.lr(place)
        assert rule.scale == step.lr_scale
        assert rule.scale * rule.weight_decay_scale == SCHEDULE.phases[step.phase].shape.clips / 2


def test_an_epoch_of_the_baseline_has_the_mini_batches_of_its_clips_unless_given():
    assert Plan(SCHEDULE, 101).baseline_epoch == BaselineEpoch(51)
    assert Plan(SCHEDULE, 101, drop_last=True, accumulate=4).baseline_epoch == BaselineEpoch(50, 4)
    assert Plan(SCHEDULE, 101, batches=7).baseline_epoch == BaselineEpoch(7)
