"""Laws of the plan over ranks, for 1 to 1,024 simulated ones: no processes."""

from dataclasses import dataclass
from functools import lru_cache, partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_multigrid.loading import MultigridSampler, baseline_sampler, derive_seed, shuffled_order
from lightning_multigrid.schedule.plan import Place, Plan
from tests.helpers.plans import schedules

pytestmark = pytest.mark.usefixtures("_unrehearsed")


@dataclass(frozen=True)
class Ranks:
    """A sampler for each rank, for one epoch; the number of ranks need not divide the length of the dataset."""

    samplers: list[MultigridSampler]
    epoch: int
    length: int

    def stream(self, start, end):
        """Clips and seeds from one entry of the stream to another: of one pass after the other."""
        order, seed = self.samplers[0].order, self.samplers[0].plan.seed
        passes = [divmod(entry, self.length) for entry in range(start, end)]
        return [(order(number)[place], derive_seed(seed, number, place)) for number, place in passes]


@st.composite
def ranks(draw, worlds):
    schedule, world, epoch = draw(schedules()), draw(worlds), draw(st.integers(0, 18))
    # Also fewer clips than a mini-batch has.
    length = draw(st.integers(1, 40)) + draw(st.sampled_from([0, world * max(s.clips for s in schedule.grids)]))
    seed, accumulate = draw(st.integers(0, 2**31)), draw(st.integers(1, 3))
    plan = Plan(schedule, length, seed=seed, world=world, accumulate=accumulate)
    order, shift = lru_cache(partial(shuffled_order, seed, length=length)), draw(st.sampled_from([0, 0, 50]))
    samplers = [MultigridSampler(plan, order, rank=rank) for rank in range(world)]
    for sampler in samplers:
        sampler.shift = shift  # as of a training that has begun with other mini-batches
    return Ranks(samplers, epoch, length)


def check_order(case):
    """All ranks have the same shapes, and each global mini-batch is the next block of the stream."""
    world, steps = len(case.samplers), case.samplers[0].plan.epoch(case.epoch)
    mini_batches = []
    for sampler in case.samplers:
        sampler.set_epoch(case.epoch)
        mini_batches.append(list(sampler))
        assert len(mini_batches[-1]) == len(sampler) == len(steps) > 0
    seen = []
    for step, *of_ranks in zip(steps, *mini_batches, strict=True):
        assert [len(requests) for requests in of_ranks] == [step.shape.clips] * world
        block = [request for requests in of_ranks for request in requests]
        assert {(one.frames, one.size, one.visit) for one in block} == {(step.shape.frames, step.shape.size, None)}
        seen += [(request.index, request.seed) for request in block]
    start = steps[0].offset + case.samplers[0].shift
    assert seen == case.stream(start, start + len(seen))


small, large = st.integers(1, 8), st.integers(9, 128)


@settings(max_examples=100, deadline=None)
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
    plan = Plan(schedule, data.draw(st.integers(1, 10**6)), world=world)
    samplers = [MultigridSampler(plan, range, rank=rank) for rank in range(world)]
    step = plan.step(Place(data.draw(st.integers(0, schedule.epochs)), data.draw(st.integers(0, 10**4))))
    end = step.offset
    for sampler in samplers:
        assert sampler.entries(step) == range(end, end + step.shape.clips)
        end += step.shape.clips
    assert end == plan.after(step).offset
    assert plan.step(Place(0, 0)).offset == 0


@settings(max_examples=100, deadline=None)
@given(ranks(small))
def test_ranks_share_the_clips_for_precise_batchnorm(case):
    samplers = [baseline_sampler(sampler, 3, (case.epoch,), seed=1) for sampler in case.samplers]
    of_ranks = [[[request.index for request in requests] for requests in sampler] for sampler in samplers]
    baseline = samplers[0].plan.schedule.baseline.shape.clips
    number = max(1, min(3, case.length // (baseline * len(samplers))))
    assert {tuple(map(len, batches)) for batches in of_ranks} == {(baseline,) * number}
    indices = [index for batches in of_ranks for batch in batches for index in batch]
    assert len(set(indices)) == min(len(indices), case.length)  # none comes twice unless there are too few
    assert set(indices) <= set(case.samplers[0].order(case.epoch))
