"""Laws of the plan over ranks, for 1 to 1,024 simulated ones: no processes."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_multigrid.loading.order import epoch_order
from lightning_multigrid.loading.sampler import MultigridSampler
from lightning_multigrid.schedule.cycles import Baseline, LongCycle, ShortCycle
from lightning_multigrid.schedule.grid import BatchShape
from lightning_multigrid.schedule.plan import Plan
from lightning_multigrid.schedule.schedule import MultigridSchedule
from lightning_multigrid.training.parts.evaluation_statistics import population_sampler

pytestmark = pytest.mark.usefixtures("_unrehearsed")

factors = st.floats(0.5, 1)


def some(elements):
    return st.lists(elements, min_size=1, max_size=4)


@st.composite
def schedules(draw):
    """Draws baselines and cycles of every kind: fractional epochs and milestones, odd sizes, one frame, one clip."""
    epochs = draw(st.fractions(1, 12, max_denominator=7))
    marks = draw(st.lists(st.fractions(0, 12, max_denominator=9), max_size=3, unique=True))
    shape = BatchShape(draw(st.integers(1, 9)), draw(st.integers(1, 32)), draw(st.integers(4, 64)))
    return MultigridSchedule(
        Baseline(shape, epochs, tuple(sorted(mark for mark in marks if 0 < mark < epochs))),
        draw(
            st.just(LongCycle()) | st.builds(LongCycle, st.lists(st.tuples(factors, factors), min_size=1, max_size=4))
        ),
        draw(st.just(ShortCycle()) | st.builds(ShortCycle, st.lists(factors, min_size=1, max_size=4))),
        epoch_factor=draw(st.sampled_from([0.5, 1, 1.5, 2])),
        sub_batch=draw(st.sampled_from([1, 8, 16])),
        whole_epochs=draw(st.booleans()),
    )


@dataclass(frozen=True)
class Ranks:
    """A sampler for each rank, for one epoch; the number of ranks need not divide the length of the dataset."""

    samplers: list[MultigridSampler]
    epoch: int
    length: int
    drop_last: bool


@st.composite
def ranks(draw, worlds):
    schedule, world, epoch = draw(schedules()), draw(worlds), draw(st.integers(0, 18))
    of_rank = max(shape.clips for shape in schedule.grids) + draw(st.integers(0, 40))
    length = of_rank * world + draw(st.integers(0, world - 1))
    seed, accumulate, drop_last = draw(st.integers(0, 2**31)), draw(st.integers(1, 3)), draw(st.booleans())
    order = epoch_order(seed, epoch, length)
    samplers = [
        MultigridSampler(
            Plan(schedule, length // world, seed=seed, world=world, accumulate=accumulate, drop_last=drop_last),
            lambda epoch: order,
            rank=rank,
        )
        for rank in range(world)
    ]
    return Ranks(samplers, epoch, length, drop_last)


def check_order(case):
    """All ranks have the same counts and shapes and disjoint clips; fewer clips than there are ranks are left out."""
    world, order = len(case.samplers), case.samplers[0].order(case.epoch)
    steps = case.samplers[0].plan.epoch(case.epoch)
    assert steps
    assert all(
        sampler.plan.epoch(case.epoch) == steps for sampler in case.samplers[1:]
    )  # shapes, LR scale, sub-mini-batch
    mini_batches = []
    for sampler in case.samplers:
        sampler.set_epoch(case.epoch)
        mini_batches.append(list(sampler))
        assert len(mini_batches[-1]) == len(sampler) == len(steps)
    seen = []
    for step, *of_ranks in zip(steps, *mini_batches, strict=True):
        assert [len(requests) for requests in of_ranks] == [step.shape.clips] * world
        block = [request for requests in of_ranks for request in requests]
        assert {(request.frames, request.size) for request in block} == {(step.shape.frames, step.shape.size)}
        seen += [request.index for request in block]
    # Each global mini-batch is the next block of the order, whatever the number of ranks.
    assert seen == order[: len(seen)]
    schedule = case.samplers[0].plan.schedule
    if case.epoch < schedule.phases[-1].end_epoch < case.epoch + 1:
        return  # the training ends within this epoch
    left = case.length - len(seen)
    assert left < world * (max(shape.clips for shape in schedule.grids) if case.drop_last else 1)
    if not case.drop_last:
        assert left == case.length % world


small, large = st.integers(1, 8), st.integers(9, 128)


@settings(max_examples=250, deadline=None)
@given(ranks(small))
def test_ranks_share_each_mini_batch(case):
    check_order(case)


@settings(max_examples=10, deadline=None)
@given(ranks(large))
def test_many_ranks_share_each_mini_batch(case):
    check_order(case)


@pytest.mark.slow  # 10,000 configurations
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("worlds", "number"), [(small, 9000), (large, 1000)])
def test_ten_thousand_configurations(worlds, number):
    tried = []

    @settings(max_examples=number, deadline=None, database=None)
    @given(ranks(worlds))
    def check(case):
        check_order(case)
        tried.append(case.epoch)

    check()
    assert len(tried) >= number


@settings(max_examples=60, deadline=None)
@given(schedules(), st.integers(1, 1024), st.data())
def test_a_thousand_ranks_tile_the_order(schedule, world, data):
    """Only the arithmetic, for one step on all ranks."""
    clips = max(shape.clips for shape in schedule.grids) + data.draw(st.integers(0, 40))
    length = clips * world + data.draw(st.integers(0, world - 1))
    epoch = data.draw(st.integers(0, schedule.epochs))
    samplers = [
        MultigridSampler(Plan(schedule, clips, world=world), lambda epoch: range(length), rank=rank)
        for rank in range(world)
    ]
    steps = samplers[0].plan.epoch(epoch)
    assert sum(step.shape.clips for step in steps) == clips
    assert samplers[-1].plan.epoch(epoch) == steps
    step = data.draw(st.sampled_from(steps))
    end = step.offset * world
    for sampler in samplers:
        assert sampler.entries(step) == range(end, end + step.shape.clips)
        end += step.shape.clips
    assert end <= length


@settings(max_examples=100, deadline=None)
@given(ranks(small))
def test_ranks_share_the_clips_for_precise_batchnorm(case):
    samplers = [population_sampler(sampler, 3) for sampler in case.samplers]
    for sampler in samplers:
        sampler.set_epoch(case.epoch)
    of_ranks = [[[request.index for request in requests] for requests in sampler] for sampler in samplers]
    baseline = samplers[0].plan.schedule.baseline.shape.clips
    number = min(3, case.samplers[0].plan.clips // baseline)
    assert {tuple(map(len, batches)) for batches in of_ranks} == {(baseline,) * number}
    indices = [index for batches in of_ranks for batch in batches for index in batch]
    assert len(set(indices)) == len(indices)
    world = len(samplers)
    assert set(indices) <= set(case.samplers[0].order(case.epoch)[: case.samplers[0].plan.clips * world])
    assert all(sampler.plan.epoch(case.epoch) == samplers[0].plan.epoch(case.epoch) for sampler in samplers)
