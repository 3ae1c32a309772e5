import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler, Sampler, TensorDataset, WeightedRandomSampler

from lightning_multigrid.loading.fixed_clips import FixedClips
from lightning_multigrid.loading.loader import MultigridLoader
from lightning_multigrid.loading.order import epoch_order, order_of
from lightning_multigrid.loading.randomness import derive_seed
from lightning_multigrid.loading.requests import ClipDataset
from lightning_multigrid.loading.sampler import MultigridSampler
from lightning_multigrid.schedule.cycles import Baseline
from lightning_multigrid.schedule.grid import BatchShape
from lightning_multigrid.schedule.schedule import MultigridSchedule

SCHEDULE = MultigridSchedule(Baseline(BatchShape(2, 8, 32), epochs=4, milestones=(2, 3)))


def order(epoch):
    return epoch_order(0, epoch, 203)


def make(rank=0, world=1, clips=None, **arguments):
    return MultigridSampler(SCHEDULE, order, clips or 203 // world, seed=0, rank=rank, world=world, **arguments)


def requests_of(sampler, epoch, batch=0):
    sampler.seek(epoch, batch)
    return list(sampler)


class Clips:
    """A dataset that answers with the request itself and the process that read it."""

    frames, size, stride = 8, 32, 1

    def __len__(self):
        return 203

    def read_clip(self, request):
        return request, os.getpid()


def loader_of(sampler, workers=0, host=None, collate_fn=list):
    like = DataLoader(TensorDataset(torch.zeros(1)), num_workers=workers, collate_fn=collate_fn)
    return MultigridLoader(Clips(), sampler, like, host)


# --- Order ---


def test_order_is_a_permutation_of_its_seed_and_epoch_and_leaves_the_random_state_alone():
    before = torch.random.get_rng_state()
    orders = {tuple(epoch_order(seed, epoch, 50)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9
    assert all(sorted(indices) == list(range(50)) for indices in orders)
    assert torch.equal(before, torch.random.get_rng_state())


def test_seeds_differ_by_every_part():
    seeds = {derive_seed(a, b, c) for a in range(20) for b in range(20) for c in range(20)}
    assert len(seeds) == 8000
    assert derive_seed(7, 3) == 1702691837176849629  # the same on every machine


def dataset(length=20):
    return TensorDataset(torch.arange(length))


def test_order_follows_the_users_loader():
    shuffled = order_of(DataLoader(dataset(), shuffle=True), seed=3)
    assert shuffled(1) == epoch_order(3, 1, 20)
    assert list(order_of(DataLoader(dataset()), seed=3)(1)) == list(range(20))
    for shuffle in (True, False):
        distributed = DistributedSampler(dataset(), num_replicas=2, rank=1, shuffle=shuffle)
        indices = order_of(DataLoader(dataset(), sampler=distributed), seed=3)(1)
        assert list(indices) == (epoch_order(3, 1, 20) if shuffle else list(range(20)))


def test_another_sampler_is_drawn_from_reproducibly():
    weighted = WeightedRandomSampler([0.0] * 10 + [1.0] * 10, num_samples=15)
    drawn = order_of(DataLoader(dataset(), sampler=weighted), seed=3)
    before = torch.random.get_rng_state()
    assert drawn(0) == drawn(0) != drawn(1)
    assert len(drawn(0)) == 15
    assert min(drawn(0)) >= 10  # only what has a weight
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_generator_of_the_samplers_own_draws_each_epoch_anew_too():
    def drawn(epoch):
        """In a process that has drawn from it as often as it may."""
        generator = torch.Generator().manual_seed(torch.seed() % 1000)
        weighted = WeightedRandomSampler([1.0] * 20, num_samples=15, generator=generator)
        return order_of(DataLoader(dataset(), sampler=weighted), seed=3)(epoch)

    assert drawn(0) == drawn(0) != drawn(1)


class Reversed(Sampler):
    def __iter__(self):
        return iter(range(19, -1, -1))

    def __len__(self):
        return 20


class Balanced(DistributedSampler):
    def __iter__(self):
        return iter([0] * len(self))


def test_a_distributed_order_of_the_users_own_is_refused_and_not_ignored():
    with pytest.raises(ValueError, match=r"has a Balanced, .* Give the DataLoader a Sampler of all indices"):
        order_of(DataLoader(dataset(), sampler=Balanced(dataset(), num_replicas=2, rank=0)), seed=0)


def test_a_sampler_that_gives_less_than_it_says_is_refused():
    """Pieces of mini-batches would be joined that belong to different ones."""
    sampler = MultigridSampler(SCHEDULE, lambda epoch: range(150), 100, seed=0, rank=1, world=2)
    with pytest.raises(ValueError, match=r"gave 150 indices in epoch 1; .* requires 200\. Make its `__len__` and"):
        requests_of(sampler, 1)


def test_a_sampler_of_the_users_own_keeps_its_order():
    assert order_of(DataLoader(dataset(), sampler=Reversed()), seed=0)(5) == list(range(19, -1, -1))


# --- Requests ---


def test_requests_carry_shape_and_seed_and_cover_the_epoch():
    batches = requests_of(make(), epoch=1)
    steps = SCHEDULE.steps(1, 203)
    assert [len(batch) for batch in batches] == [step.shape.clips for step in steps]
    for batch, step in zip(batches, steps, strict=True):
        assert {(r.frames, r.size) for r in batch} == {(step.shape.frames, step.shape.size)}
        assert all(r.seed == derive_seed(0, 1, r.index) for r in batch)
    assert [r.index for batch in batches for r in batch] == order(1)


@given(st.integers(1, 7), st.integers(0, 5), st.integers(1, 3), st.booleans())
@settings(max_examples=60, deadline=None)
def test_ranks_agree_and_share_each_global_batch(world, epoch, accumulate, drop_last):
    arguments = {"accumulate": accumulate, "drop_last": drop_last, "clips": 203 // world}
    schedule = MultigridSchedule(Baseline(BatchShape(1, 8, 32), epochs=4, milestones=(2, 3)))

    def ranks(world):
        return [MultigridSampler(schedule, order, rank=r, world=world, seed=0, **arguments) for r in range(world)]

    batches = [requests_of(sampler, epoch) for sampler in ranks(world)]
    assert len({len(rank) for rank in batches}) == 1
    seen = []
    for step in zip(*batches, strict=True):
        assert len({len(rank) for rank in step}) == 1
        assert len({(r.frames, r.size) for rank in step for r in rank}) == 1
        seen += [r.index for rank in step for r in rank]  # rank after rank, a contiguous block of the order
    assert seen == order(epoch)[: len(seen)]
    if not drop_last:
        assert 203 - len(seen) < world


def test_the_same_global_batches_on_two_ranks_as_on_one():
    one = MultigridSchedule(Baseline(BatchShape(4, 8, 32), epochs=4, milestones=(2, 3)))
    two = MultigridSchedule(Baseline(BatchShape(2, 8, 32), epochs=4, milestones=(2, 3)))
    alone = requests_of(MultigridSampler(one, order, 200, seed=0), 1)
    ranks = [requests_of(MultigridSampler(two, order, 100, seed=0, rank=r, world=2), 1) for r in (0, 1)]
    assert alone == [a + b for a, b in zip(*ranks, strict=True)]


def test_seek_starts_in_mid_epoch():
    sampler = make()
    assert requests_of(sampler, 2, batch=3) == requests_of(sampler, 2)[3:]


# --- Loader ---


def test_length_is_exact_in_every_epoch():
    sampler = make()
    loader = loader_of(sampler)
    for epoch in range(SCHEDULE.epochs + 1):
        sampler.set_epoch(epoch)
        assert len(loader) == len(list(loader)) == len(SCHEDULE.steps(epoch, 203))


class Host:
    def __init__(self):
        self.now, self.asked, self.handed, self.waited = (0, 0), 0, [], ()

    def epoch(self):
        return self.now[0]

    def start(self):
        self.asked += 1
        return self.now

    def follow(self, epoch, batch, mini_batches):
        for number, mini_batch in enumerate(mini_batches, batch):
            self.handed.append((epoch, number))
            yield mini_batch
            self.waited = (*self.waited, len(self.handed))


def test_loader_asks_for_its_position_only_when_the_first_batch_is_asked_for():
    host = Host()
    loader = loader_of(make(), host=host)
    iterator = iter(loader)
    iter(loader)
    assert host.asked == 0
    host.now = (2, 3)
    first = [request for request, _ in next(iterator)]
    assert host.asked == 1
    assert first == requests_of(make(), 2)[3]
    assert len(loader) == len(SCHEDULE.steps(2, 203))
    assert host.handed == [(2, 3)]
    list(iterator)
    assert host.handed == [(2, batch) for batch in range(3, len(loader))]
    assert host.waited == tuple(range(1, len(host.handed) + 1))  # after each one, whether there is another or not


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_live_through_every_change_of_shape_and_change_nothing(workers):
    sampler = make()
    loader = loader_of(sampler, workers)
    plain = loader_of(sampler)
    processes = set()
    for epoch in range(SCHEDULE.epochs):
        sampler.set_epoch(epoch)
        batches = list(loader)
        processes |= {pid for batch in batches for _, pid in batch}
        expected = [[request for request, _ in batch] for batch in plain]
        assert [[request for request, _ in batch] for batch in batches] == expected
    assert len(processes) == workers
    assert os.getpid() not in processes


def drawing(samples):
    return torch.rand(2).tolist()


def test_what_a_collate_fn_draws_depends_on_the_mini_batch_alone():
    drawn = [list(loader_of(make(), workers, collate_fn=drawing)) for workers in (0, 1, 2)]
    assert drawn[0] == drawn[1] == drawn[2]
    assert len({tuple(values) for values in drawn[0]}) == len(drawn[0])


def test_options_of_the_users_loader_are_taken_over():
    user = DataLoader(dataset(), num_workers=2, prefetch_factor=3, timeout=7, worker_init_fn=print)
    loader = MultigridLoader(Clips(), make(), user)
    assert (loader.num_workers, loader.prefetch_factor) == (2, 3)
    assert loader.timeout == 7 * 32 / 2  # for mini-batches of up to 32 clips instead of 2
    assert loader.worker_init_fn is print
    assert loader.persistent_workers
    assert not MultigridLoader(Clips(), make(), DataLoader(dataset())).persistent_workers


def test_fixed_clips_are_a_clip_dataset():
    assert isinstance(FixedClips(TensorDataset(torch.zeros(2, 3, 4, 8, 8))), ClipDataset)
    assert isinstance(Clips(), ClipDataset)
    assert not isinstance(dataset(), ClipDataset)
