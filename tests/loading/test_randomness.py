import random

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

from lightning_multigrid.loading.randomness import OwnGenerators, derive_seed, own_generators, reseed_own


def test_seeds_differ_by_every_part():
    seeds = {derive_seed(a, b, c) for a in range(20) for b in range(20) for c in range(20)}
    assert len(seeds) == 8000
    assert derive_seed(7, 3) == 1702691837176849629  # the same on every machine


class Random(Dataset):
    """Holds a generator of each kind, one of them in a transform, and things without any."""

    def __init__(self):
        self.clips, self.paths, self.kind = torch.zeros(3), ["a.mp4"] * 1000, Random
        self.mine = random.Random()
        self.transforms = {"crop": lambda x: x, "flip": Flip()}
        self.older, self.torch = (np.random.RandomState(),), torch.Generator()
        self.whole = self  # a circle

    def __getitem__(self, index):
        flip = self.transforms["flip"].generator.random()
        return flip, self.mine.random(), self.older[0].rand(), torch.rand(1, generator=self.torch).item()


class Flip:
    def __init__(self):
        self.generator = np.random.Generator(np.random.PCG64DXSM())

    def __call__(self, x):
        return x


def test_generators_that_a_dataset_holds_draw_by_the_seed():
    whole = Random()
    assert len(own_generators(whole)) == 4
    for dataset in (whole, Subset(whole, [0]), ConcatDataset([Subset(whole, [0])])):
        generators = own_generators(dataset)
        assert {id(generator) for generator in generators} == {id(generator) for generator in own_generators(whole)}
        drawn = []
        for seed in (1, 2, 1):
            reseed_own(generators, seed)
            drawn.append(whole[0])
        assert drawn[0] == drawn[2]
        assert not set(drawn[0]) & set(drawn[1])
        assert len(set(drawn[0])) == 4


def test_an_index_of_everything_is_looked_through_twice_and_a_new_generator_is_found():
    class Index(list):
        looks = 0

        def __iter__(self):
            Index.looks += 1
            return super().__iter__()

    whole = Random()
    whole.index = {video: Index([[0.0] * 4] * 60) for video in range(50)}
    own = OwnGenerators(whole)
    for _ in range(5):
        found = {id(one) for one in own.find()}
        looks, expected = Index.looks, {id(one) for one in own_generators(whole)}
        Index.looks = looks
        assert found == expected
        whole.mine = random.Random()
        whole.transforms["flip"].generator = np.random.default_rng(0)
    assert Index.looks <= 2 * 2 * 50
    Index.looks, whole.index = 0, {name: Index([[0.0] * 4] * 60) for name in range(101)}
    OwnGenerators(whole).find()
    assert Index.looks == 0  # an index of the data, of more than 100
    late = Random()
    del late.mine
    own = OwnGenerators(late)
    assert len(own.find()) == 3
    late.mine = random.Random()  # when the first sample is read
    assert len(own.find()) == 4


def test_what_holds_no_generator():
    assert own_generators([1, 2]) == own_generators(torch.utils.data.TensorDataset(torch.zeros(3))) == []
