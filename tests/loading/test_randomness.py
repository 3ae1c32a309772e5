import random

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

from lightning_multigrid.loading.randomness import derive_seed, own_generators, reseed_own


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


def test_what_holds_no_generator():
    assert own_generators([1, 2]) == own_generators(torch.utils.data.TensorDataset(torch.zeros(3))) == []
