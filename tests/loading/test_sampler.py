from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning import Trainer
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, Sampler

from lightning_multigrid.loading import MultigridSampler, baseline_sampler, derive_seed, order_of, shuffled_order
from lightning_multigrid.schedule import Baseline, BatchShape, LongCycle, MultigridSchedule, Place, Plan, ShortCycle
from lightning_multigrid.training.script.recipe import read_recipe

SCHEDULE = MultigridSchedule(Baseline(BatchShape(2, 8, 32), epochs=4, milestones=(2, 3)))
FLAT = MultigridSchedule(Baseline(BatchShape(2, 8, 32), 4), LongCycle(((1, 1),)), ShortCycle((1,)), epoch_factor=1)


@dataclass
class Order:
    """A shuffled order that notes which passes are drawn."""

    length: int

    def __post_init__(self):
        self.drawn = []

    def __call__(self, number):
        self.drawn.append(number)
        return shuffled_order(0, number, self.length)


def make(rank=0, world=1, clips=203, schedule=SCHEDULE, order=None):
    return MultigridSampler(Plan(schedule, clips, world=world), order or Order(clips), rank=rank)


def requests_of(sampler, epoch, batch=0):
    sampler.seek(Place(epoch, batch))
    return list(sampler)


def of_all_ranks(world, epochs, **arguments):
    """The mini-batches of the first epochs as (shape, requests of all ranks in their order)."""
    samplers = [make(rank, world, **arguments) for rank in range(world)]
    plan = samplers[0].plan
    for epoch in range(epochs):
        batches = zip(*(requests_of(sampler, epoch) for sampler in samplers), strict=True)
        for step, ranks in zip(plan.epoch(epoch), batches, strict=True):
            assert [len(requests) for requests in ranks] == [step.shape.clips] * world
            yield step.shape, [request for requests in ranks for request in requests]


@pytest.mark.parametrize("world", [1, 2, 3])
def test_clips_of_an_index_that_comes_several_times_in_a_pass_differ(world):
    """Each epoch has an order of its own, and begins at the place where the last one ended."""
    sampler = RandomSampler(range(20), replacement=True, num_samples=60)
    order = order_of(DataLoader(range(20), sampler=sampler), seed=0)
    steps = iter(of_all_ranks(world, SCHEDULE.epochs, clips=60, order=order))
    plan, everything = make(world=world, clips=60).plan, []
    for epoch in range(SCHEDULE.epochs):
        requests = [request for _ in range(plan.batches_per_epoch) for request in next(steps)[1]]
        for entry, request in enumerate(requests, start=len(everything)):
            number, place = divmod(entry, 60)
            assert (request.index, request.seed) == (order(epoch, number)[place], derive_seed(0, epoch, number, place))
        everything += requests
    assert len({request.seed for request in everything}) == len(everything)


class InOrder(Sampler):
    """A sampler of a script's own, which gives all clips in their order."""

    def __len__(self):
        return 60

    def __iter__(self):
        return iter(range(60))


def test_of_a_fixed_order_no_clip_comes_more_often_than_others():
    """Also where an epoch takes less than a pass, as on the fine grids at the end."""
    order = order_of(DataLoader(range(60), sampler=InOrder()), seed=0)
    requests = [request for _, batch in of_all_ranks(1, SCHEDULE.epochs, clips=60, order=order) for request in batch]
    counts = Counter(request.index for request in requests)
    assert set(counts) == set(range(60))
    assert max(counts.values()) - min(counts.values()) <= 1


def test_an_order_that_was_looked_at_before_its_epoch_is_asked_anew_in_it():
    """As `trainer.train_dataloader` asks it, before the script has set what holds in the epoch."""
    sampler = InOrder()
    made = make(clips=60, order=order_of(DataLoader(range(60), sampler=sampler), seed=0))
    made.pass_of(0, 0)
    sampler.__class__ = type("Reversed", (InOrder,), {"__iter__": lambda self: iter(range(59, -1, -1))})
    assert [request.index for request in requests_of(made, 0)[0]][:2] == [59, 58]


def test_seek_starts_in_mid_epoch():
    sampler = make()
    assert requests_of(sampler, 2, batch=3) == requests_of(sampler, 2)[3:]


@pytest.mark.parametrize("clips", [203, 20])
def test_the_current_pass_is_that_of_the_first_clip_of_a_step(clips):
    sampler = make(clips=clips)
    sampler.shift = 7
    entries = 7
    for epoch in range(4):
        for step in sampler.plan.epoch(epoch):
            assert sampler.number_of(step) == (entries // clips,)
            entries += step.shape.clips


def test_each_pass_is_drawn_once_though_others_ask_for_epochs_too():
    """Whoever looks at the loader in training asks for the current epoch; precise BatchNorm may ask for another."""
    order = Order(203)
    sampler = make(order=order, schedule=FLAT)
    for epoch in range(FLAT.epochs):
        sampler.set_epoch(epoch)
        for _, step in zip(sampler, sampler.steps, strict=True):
            next(iter(baseline_sampler(sampler, 1, sampler.number_of(step), seed=1)))
            next(iter(baseline_sampler(sampler, 1, (max(0, epoch - 1),), seed=1)))
    assert order.drawn == [0, 1, 2, 3, 4]  # an epoch has 102 steps of 2 clips, one clip more than a pass


def test_a_sampler_that_gives_less_than_it_says_is_refused():
    """Otherwise the loader would join pieces of different mini-batches."""
    lengths = [200, 150]
    sampler = MultigridSampler(Plan(SCHEDULE, 200, world=2), lambda number: range(lengths[number]), rank=1)
    with pytest.raises(ValueError, match=r"gave 150 indices in a pass over .* need 200\. Let it give as many as"):
        [requests_of(sampler, epoch) for epoch in range(4)]


@given(st.integers(1, 7), st.integers(8, 40), st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_pass_has_each_clip_that_lightnings_own_samplers_take_in_an_epoch(world, length, drop_last):
    """Lightning repeats clips to make the ranks equal, which a stream need not do."""
    loader = DataLoader(range(length), 2, drop_last=drop_last)
    host = Trainer(max_epochs=4, logger=False, enable_checkpointing=False, accelerator="cpu")
    own = [DistributedSampler(range(length), world, rank, shuffle=False) for rank in range(world)]
    if drop_last and len(own[0]) < 2:
        return
    recipe = read_recipe(host, loader, world)
    batches = {len(DataLoader(range(length), 2, sampler=sampler, drop_last=drop_last)) for sampler in own}
    assert batches == {recipe.epoch.batches}
    assert recipe.clips == (min(length, 2 * world * recipe.epoch.batches) if drop_last else length)
    steps = of_all_ranks(world, 4, clips=recipe.clips, schedule=FLAT, order=lambda number: range(length))
    seen = [request.index for _, requests in steps for request in requests]
    passes = len(seen) // recipe.clips
    assert seen[: passes * recipe.clips] == list(range(recipe.clips)) * passes
    if not drop_last:
        assert set(seen) == {index for sampler in own for index in sampler}
