import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, WeightedRandomSampler

from lightning_multigrid.loading.order import epoch_order, order_of


def test_order_is_a_permutation_of_its_seed_and_epoch_and_leaves_the_random_state_alone():
    before = torch.random.get_rng_state()
    orders = {tuple(epoch_order(seed, epoch, 50)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9
    assert all(sorted(indices) == list(range(50)) for indices in orders)
    assert torch.equal(before, torch.random.get_rng_state())


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


class Balanced(DistributedSampler):
    def __iter__(self):
        return iter([0] * len(self))


def test_a_distributed_order_of_the_users_own_is_refused_and_not_ignored():
    with pytest.raises(ValueError, match=r"has a Balanced, .* Give the DataLoader a Sampler of all indices"):
        order_of(DataLoader(dataset(), sampler=Balanced(dataset(), num_replicas=2, rank=0)), seed=0)
