"""Copies of a module: what they share with it, and that there is one at a time."""

import weakref

import lightning as L
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_multigrid import MultigridCallback
from lightning_multigrid.training.rehearsal.copies import Copies, held_by, meta_copy
from tests.helpers.tiny import Module, clips, fit, trainer


class Holding(Module):
    """Holds its data: 6 MB in a loader, and the same in a dataset that holds the module's own parameter, too."""

    def __init__(self):
        super().__init__()
        dataset = TensorDataset(torch.zeros(1500, 1000))
        dataset.own = self.net[0].weight
        self.loaders = {"train": DataLoader(dataset), "again": [dataset]}
        self.small, self.queue = TensorDataset(torch.zeros(3)), torch.zeros(500_000)


def owned(copied, module):
    """Bytes of tensors that a copy does not share with its module."""
    shared = {part.untyped_storage().data_ptr() for part in held_by(module) if isinstance(part, Tensor)}
    tensors = {id(part): part for part in held_by(copied) if isinstance(part, Tensor)}
    return sum(part.nbytes for part in tensors.values() if part.untyped_storage().data_ptr() not in shared)


def test_data_of_datasets_and_loaders_is_shared_and_nothing_else():
    module, host = Holding(), trainer()
    parameters = sum(parameter.nbytes for parameter in (*module.parameters(), *module.buffers()))
    host.strategy.connect(module)
    with Copies(module, host).working([]) as copied:
        assert owned(copied, module) == parameters + 3 * 4 + 500_000 * 4
        assert copied.loaders["again"][0].tensors[0] is module.loaders["again"][0].tensors[0]
        assert copied.loaders["again"][0].own is copied.net[0].weight


def test_there_is_one_copy_at_a_time():
    seen = []

    class Watched(Holding):
        def training_step(self, batch, batch_idx):
            if not isinstance(self.trainer, L.Trainer):
                alive.append(sum(reference() is not None and reference() is not self for reference in seen))
                seen.append(weakref.ref(self))
            return super().training_step(batch, batch_idx)

    alive = []
    fit(Watched(), MultigridCallback(), fast_dev_run=True)
    assert len(seen) > 20
    assert not any(alive)


def test_a_copy_on_shapes_takes_no_memory_of_what_the_module_holds():
    class Holds(Module):
        def __init__(self):
            super().__init__()
            self.data = {"tensors": [torch.zeros(10)], "array": np.zeros(10), "paths": [[path] for path in range(2000)]}

    module = Holds()
    probe = meta_copy(module)
    data, copied = module.data, probe.data
    assert copied["tensors"][0].is_meta
    assert np.shares_memory(copied["array"], data["array"])
    with pytest.raises(ValueError, match="read-only"):
        copied["array"][0] = 1
    assert copied["paths"] is not data["paths"]
    assert copied["paths"][0] is data["paths"][0]
    assert probe.device.type == "meta"
    assert all(parameter.is_meta for parameter in probe.parameters())
    assert [name for name, _ in probe.named_parameters()] == [name for name, _ in module.named_parameters()]
    assert "Conv3d" in repr(probe.net)


def test_an_optimizer_that_cannot_be_copied_is_no_reason_not_to_rehearse():
    class Stuck(torch.optim.SGD):
        def __deepcopy__(self, memo):
            raise TypeError("cannot pickle")

    module = Module(optimizer=lambda parameters: Stuck(parameters, lr=0.1))
    module.net[0] = nn.Conv3d(3, 6, (4, 3, 3))
    with pytest.raises(ValueError, match="Module cannot take clips"):
        fit(module, MultigridCallback(), train=DataLoader(clips(), 4))
