"""What a script says about its baseline, and what several devices read."""

from functools import partial

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler, Sampler

from lightning_multigrid.loading import order_of
from lightning_multigrid.schedule import EpochLength
from lightning_multigrid.training.script.recipe import baseline_epochs, read_recipe, user_loader
from tests.helpers.tiny import CLIPS, Module, clips, fit, loader, trainer


def order_on(devices, **arguments):
    host = trainer(devices=devices, strategy="ddp", max_epochs=2)
    return order_of(user_loader(loader(**{"shuffle": None} | arguments), host), seed=0)


def test_several_devices_shuffle_as_lightning_does():
    """There `shuffle=False`, or its absence, trains in the order of the dataset on one device only."""
    everything = list(range(len(loader().dataset)))
    assert list(order_on(1)(0)) == everything
    for sampler in (None, RandomSampler(everything, replacement=True, num_samples=7)):
        order = order_on(2, sampler=sampler)
        assert sorted(order(0)) == sorted(order(1)) == everything
        assert order(0) != everything != order(1) != order(0)
    own = DistributedSampler(everything, 2, 0, shuffle=False)
    assert list(order_on(2, sampler=own)(0)) == everything


def test_devices_that_read_all_of_the_data_each_are_refused():
    host = trainer(devices=2, strategy="ddp", use_distributed_sampler=False)
    with pytest.raises(MisconfigurationException, match="has an order of its own, of its RandomSampler.* give the"):
        user_loader(loader(), host)
    own = loader(shuffle=None, sampler=DistributedSampler(loader().dataset, 2, 0))
    assert user_loader(own, host) is own


def test_a_training_without_an_epoch_is_told_which_argument_says_so():
    with pytest.raises(MisconfigurationException, match=r"`max_epochs=0` is 0\.00 epochs .* Raise `max_epochs`\."):
        baseline_epochs(trainer(max_epochs=0), EpochLength(25))


class Endless(Sampler):
    def __iter__(self):
        while True:
            yield from torch.randperm(CLIPS).tolist()


class Unsized(Dataset):
    def __getitem__(self, index):
        return clips()[index]


@pytest.mark.parametrize(
    ("dataset", "sampler", "name"), [(clips(), Endless(), "Endless"), (Unsized(), RandomSampler(range(40)), "Unsized")]
)
def test_data_of_no_length_are_told_what_gives_them_one(dataset, sampler, name, monkeypatch):
    script, host = DataLoader(dataset, 4, sampler=sampler), trainer(limit_train_batches=8)
    with pytest.raises(TypeError, match=f"{name} does not say how many clips it has. Give it a `__len__`: the clips"):
        user_loader(script, host)
    monkeypatch.setattr(globals()[name], "__len__", lambda _: 40, raising=False)
    assert read_recipe(host, user_loader(script, host), world=1).clips == 8 * 4


def test_a_share_of_no_mini_batch_is_refused_as_lightning_does():
    read = partial(read_recipe, loader=loader(), world=1)  # 25 mini-batches
    assert read(trainer(limit_train_batches=0.04)).epoch == EpochLength(1)
    with pytest.raises(MisconfigurationException, match=r"`limit_train_batches=0.03` of the 25 mini-batches .* none"):
        read(trainer(limit_train_batches=0.03))
    with pytest.raises(MisconfigurationException, match=r"0.03 \* 25 < 1"):
        fit(Module(), limit_train_batches=0.03)


@pytest.mark.parametrize("given", [[loader()], CombinedLoader({"a": loader()}), {"a": loader()}, iter(())])
def test_what_is_not_a_loader_is_refused_with_the_way_to_one(given):
    with pytest.raises(TypeError, match=f"got {type(given).__name__}. .* give the loader of a dataset, .* no list"):
        user_loader(given, trainer())
