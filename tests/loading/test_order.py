from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    TensorDataset,
    WeightedRandomSampler,
)

from lightning_multigrid import MultigridCallback
from lightning_multigrid.loading import MultigridSampler, order_of, shuffled_order
from tests.helpers.tiny import Module, clips, fit


def test_order_is_a_permutation_of_its_seed_and_pass_and_leaves_the_random_state_alone():
    before = torch.random.get_rng_state()
    orders = {tuple(shuffled_order(seed, number, 50)) for seed in range(3) for number in range(3)}
    assert len(orders) == 9
    assert all(sorted(indices) == list(range(50)) for indices in orders)
    assert torch.equal(before, torch.random.get_rng_state())


def dataset(length=20):
    return TensorDataset(torch.arange(length))


def test_order_follows_the_users_loader():
    shuffled = order_of(DataLoader(dataset(), shuffle=True), seed=3)
    assert shuffled(1) == shuffled_order(3, 1, 20)
    assert list(order_of(DataLoader(dataset()), seed=3)(1)) == list(range(20))
    for shuffle in (True, False):
        distributed = DistributedSampler(dataset(), num_replicas=2, rank=1, shuffle=shuffle)
        indices = order_of(DataLoader(dataset(), sampler=distributed), seed=3)(1)
        assert list(indices) == (shuffled_order(3, 1, 20) if shuffle else list(range(20)))


def test_another_sampler_is_drawn_from_reproducibly():
    weighted = WeightedRandomSampler([0.0] * 10 + [1.0] * 10, num_samples=15)
    drawn = order_of(DataLoader(dataset(), sampler=weighted), seed=3)
    before = torch.random.get_rng_state()
    assert drawn(0) == drawn(0) != drawn(1)
    assert len(drawn(0)) == 15
    assert min(drawn(0)) >= 10  # only what has a weight
    assert torch.equal(before, torch.random.get_rng_state())


class Endless(Sampler):
    """Says how many indices it gives, but goes on."""

    def __init__(self, told):
        self.told = told

    def __len__(self):
        return 7

    def set_epoch(self, number):
        self.told.append(number)

    def __iter__(self):
        return count(10 * self.told[-1])


def test_a_sampler_without_an_end_gives_as_many_indices_as_it_says_and_is_told_the_pass():
    told = []
    order = order_of(DataLoader(dataset(), sampler=Endless(told)), seed=3)
    assert [order(number) for number in (0, 2, 1)] == [list(range(start, start + 7)) for start in (0, 20, 10)]
    assert told == [0, 2, 1]


def test_the_random_generator_of_a_sampler_is_set_by_the_pass():
    samplers = [RandomSampler(dataset(), replacement=True, generator=torch.Generator()) for _ in range(2)]
    first, second = (order_of(DataLoader(dataset(), sampler=sampler), seed=3) for sampler in samplers)
    first(0)
    assert first(1) == second(1) != second(2)


class Balanced(DistributedSampler):
    def __iter__(self):
        return iter([0] * len(self))


def test_a_distributed_order_of_the_users_own_is_refused_and_not_ignored():
    with pytest.raises(ValueError, match=r"has a Balanced, .* Give the DataLoader a Sampler of all indices"):
        order_of(DataLoader(dataset(), sampler=Balanced(dataset(), num_replicas=2, rank=0)), seed=0)


class Keys(Sampler):
    """Gives a key for each sample, as for a dataset that is told more than an index."""

    def __init__(self, key):
        self.key = key

    def __len__(self):
        return 100

    def __iter__(self):
        return map(self.key, range(100))


class Keyed(Dataset):
    """Looks up samples by keys, and some by an index, too."""

    def __init__(self, only_keys):
        self.only_keys = only_keys

    def __len__(self):
        return 100

    def __getitem__(self, key):
        return clips()[key[0] if isinstance(key, tuple) or self.only_keys else key]


@pytest.mark.parametrize(
    ("key", "said"), [(lambda index: (index, 3), r"\(0, 3\), of type tuple"), (float, r"0\.0, of type float")]
)
@pytest.mark.parametrize("only_keys", [True, False])
def test_keys_that_are_no_indices_are_refused_by_name(key, said, only_keys):
    loader = DataLoader(Keyed(only_keys), batch_size=4, sampler=Keys(key))
    with pytest.raises(TypeError, match=f"^Keys gives the dataset {said}; an index .*Let the sampler give integers"):
        fit(Module(), MultigridCallback(), train=loader)


def test_indices_may_be_of_any_kind_of_integer():
    kinds = [int, np.int32, torch.tensor]
    orders = [order_of(DataLoader(dataset(100), sampler=Keys(kind)), seed=3) for kind in kinds]
    passes = [MultigridSampler(SimpleNamespace(clips=100), order).pass_of(0) for order in orders]
    assert [list(one) for one in passes] == [list(range(100))] * 3
