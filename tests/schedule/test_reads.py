from collections import Counter, defaultdict
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_multigrid.schedule.cycles import Baseline, LongCycle, Place
from lightning_multigrid.schedule.grid import BatchShape
from lightning_multigrid.schedule.plan import Plan
from lightning_multigrid.schedule.reads import share_reads, turns
from lightning_multigrid.schedule.schedule import MultigridSchedule


@given(st.integers(1, 300), st.integers(1, 8))
def test_each_clip_of_a_read_has_one_turn_and_they_are_apart(mini_batches, moments):
    order = turns(mini_batches, moments)
    assert len(order) == mini_batches == len(set(order))
    places = defaultdict(list)
    for place, (read, moment) in enumerate(order):
        assert moment == len(places[read])  # its clips in their order, from the first
        places[read].append(place)
    assert len(places) == -(-mini_batches // moments)  # not one read more than needed
    for read in places:
        distances = [after - before for before, after in pairwise(places[read])]
        # In the middle; at both ends the mini-batches of fewer reads take turns.
        if moments <= read < len(places) - moments:
            assert distances == [moments + 1] * (moments - 1)
        assert all(distance <= moments + 1 for distance in distances)


@given(st.integers(2, 6), st.integers(40, 200))
def test_reads_are_spread_evenly(moments, mini_batches):
    """A loader that reads ahead has a read after each `moments` mini-batches, but for the first few."""
    first = [place for place, (_, moment) in enumerate(turns(mini_batches, moments)) if moment == 0]
    steady = first[moments:]
    assert all(after - before <= moments for before, after in pairwise(steady))


@given(st.lists(st.sampled_from([3, 5, 8]), min_size=1, max_size=120), st.integers(1, 5))
def test_mini_batches_of_one_size_share_samples_and_the_stream_has_no_gaps(clips, moments):
    shares = share_reads(clips, moments)
    taken = {}
    for size, share in zip(clips, shares, strict=True):
        assert share.before == sum(taken.values())  # what the ones before have read
        if share.moment == 0:
            assert share.offset == share.before
            taken[share.offset] = size
        assert taken[share.offset] == size
    uses = Counter(share.offset for share in shares)
    assert all(share.moments == uses[share.offset] <= moments for share in shares)


SCHEDULE = MultigridSchedule(Baseline(BatchShape(2, 16, 32), epochs=6, milestones=(3,)))


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("world", [1, 2])
def test_a_plan_reads_each_sample_once_for_all_that_share_it(world, accumulate):
    plan = Plan(SCHEDULE, 500, world=world, accumulate=accumulate, shares_reads=True)
    alone = Plan(SCHEDULE, 500, world=world, accumulate=accumulate)
    end = 0
    for epoch in range(plan.epochs):
        seen = defaultdict(list)
        for step, other in zip(plan.epoch(epoch), alone.epoch(epoch), strict=True):
            assert (step.shape, step.phase, step.lr_scale) == (other.shape, other.phase, other.lr_scale)
            assert step.moments <= 16 // step.shape.frames
            if not seen[step.offset]:
                assert step.offset == end == plan.reads_before(step.place)
                end += world * step.shape.clips
            seen[step.offset].append((step.moment, step.shape))
        for uses in seen.values():
            assert [moment for moment, _ in uses] == [*range(len(uses))]
            assert len({shape for _, shape in uses}) == 1
    assert plan.reads == end
    assert alone.reads == alone.step(Place(plan.epochs, 0)).offset
    assert plan.reads < 0.62 * alone.reads
    assert plan.reads < plan.baseline_reads == 6 * 500 < alone.reads


def test_without_fewer_frames_nothing_is_shared():
    baseline = Baseline(BatchShape(2, 16, 32), epochs=6, milestones=(3,))
    schedule = MultigridSchedule(baseline, LongCycle(((1, 0.5), (0.75, 1), (1, 1))))
    shared, alone = (Plan(schedule, 300, shares_reads=shares) for shares in (True, False))
    for epoch in range(6):
        assert shared.epoch(epoch) == alone.epoch(epoch)
    assert shared.reads == alone.reads
