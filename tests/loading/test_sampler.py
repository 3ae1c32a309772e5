import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning import Trainer
from torch.utils.data import DataLoader, DistributedSampler

from lightning_multigrid.loading.order import epoch_order
from lightning_multigrid.loading.randomness import derive_seed
from lightning_multigrid.loading.sampler import MultigridSampler
from lightning_multigrid.schedule.cycles import Baseline, LongCycle, ShortCycle
from lightning_multigrid.schedule.grid import BatchShape
from lightning_multigrid.schedule.plan import Place, Plan
from lightning_multigrid.schedule.schedule import MultigridSchedule
from lightning_multigrid.training.script.recipe import read_recipe

SCHEDULE = MultigridSchedule(Baseline(BatchShape(2, 8, 32), epochs=4, milestones=(2, 3)))


def order(epoch):
    return epoch_order(0, epoch, 203)


def make(rank=0, world=1, clips=None, **arguments):
    return MultigridSampler(Plan(SCHEDULE, clips or 203 // world, world=world, **arguments), order, rank=rank)


def requests_of(sampler, epoch, batch=0):
    sampler.seek(Place(epoch, batch))
    return list(sampler)


def test_requests_carry_shape_and_seed_and_cover_the_epoch():
    batches = requests_of(make(), epoch=1)
    steps = Plan(SCHEDULE, 203).epoch(1)
    assert [len(batch) for batch in batches] == [step.shape.clips for step in steps]
    for batch, step in zip(batches, steps, strict=True):
        assert {(r.frames, r.size) for r in batch} == {(step.shape.frames, step.shape.size)}
        assert all(r.seed == derive_seed(0, 1, r.index) for r in batch)
    assert [r.index for batch in batches for r in batch] == order(1)


def test_seek_starts_in_mid_epoch():
    sampler = make()
    assert requests_of(sampler, 2, batch=3) == requests_of(sampler, 2)[3:]


def test_a_sampler_that_gives_less_than_it_says_is_refused():
    """Otherwise the loader would join pieces of different mini-batches."""
    sampler = MultigridSampler(Plan(SCHEDULE, 100, world=2), lambda epoch: range(150), rank=1)
    with pytest.raises(ValueError, match=r"gave 150 indices in epoch 1, .* need 200\. Make its `__len__` and"):
        requests_of(sampler, 1)


@given(st.integers(1, 7), st.integers(8, 40), st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_flat_plan_sees_every_clip_as_lightnings_own_sampler_makes_the_ranks_equal(world, length, drop_last):
    schedule = MultigridSchedule(
        Baseline(BatchShape(2, 8, 32), 4), LongCycle(((1, 1),)), ShortCycle((1,)), epoch_factor=1
    )
    loader = DataLoader(range(length), 2, drop_last=drop_last)
    host = Trainer(max_epochs=4, logger=False, enable_checkpointing=False, accelerator="cpu")
    recipe = read_recipe(host, loader, world)
    own = [DistributedSampler(range(length), world, rank, shuffle=False) for rank in range(world)]
    if drop_last and len(own[0]) < 2:
        return
    samplers = [
        MultigridSampler(
            Plan(schedule, recipe.planned_clips(schedule), world=world, drop_last=drop_last),
            lambda epoch: range(length),
            rank=rank,
        )
        for rank in range(world)
    ]
    seen = [[request.index for batch in sampler for request in batch] for sampler in samplers]
    batches = [len(DataLoader(range(length), 2, sampler=sampler, drop_last=drop_last)) for sampler in own]
    assert [len(sampler) for sampler in samplers] == batches == [recipe.epoch.batches] * world
    if not drop_last:
        assert sorted(index for rank in seen for index in rank) == sorted(index for sampler in own for index in sampler)
