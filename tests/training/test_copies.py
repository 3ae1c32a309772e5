"""Copies of a module: what they share with it, and that there is one at a time."""

import copy
import weakref

import lightning as L
import pytest
import torch
from torch import Tensor
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import DataLoader, TensorDataset

from lightning_multigrid import MultigridCallback
from lightning_multigrid.loading import held_by
from lightning_multigrid.training.rehearsal.copies import TrainerView, clone_of
from tests.helpers.tiny import Module, fit, trainer


class Holding(Module):
    """Holds its data in a loader, and the same in a dataset that holds the module's own parameter, too."""

    def __init__(self):
        super().__init__()
        dataset = TensorDataset(torch.zeros(3, 5))
        dataset.own = self.net[0].weight
        self.loaders = {"train": DataLoader(dataset), "again": [dataset]}
        self.queue = torch.zeros(500)


def owned(copied, module):
    """Bytes of tensors that a copy does not share with its module."""
    shared = {part.untyped_storage().data_ptr() for part in held_by(module) if isinstance(part, Tensor)}
    tensors = {id(part): part for part in held_by(copied) if isinstance(part, Tensor)}
    return sum(part.nbytes for part in tensors.values() if part.untyped_storage().data_ptr() not in shared)


def test_data_of_datasets_and_loaders_is_shared_and_nothing_else():
    module, host = Holding(), trainer()
    parameters = sum(parameter.nbytes for parameter in (*module.parameters(), *module.buffers()))
    host.strategy.connect(module)
    with clone_of(module, host) as copied:
        assert owned(copied, module) == parameters + 500 * 4
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
    assert len(seen) > 8
    assert not any(alive)


def test_a_copy_shares_the_elements_of_long_lists_and_nothing_else():
    class Holds(Module):
        def __init__(self):
            super().__init__()
            self.data = {"tensors": [torch.zeros(10)], "paths": [[path] for path in range(2000)]}

        def training_step(self, batch, batch_idx):
            if not isinstance(self._trainer, L.Trainer):
                copies.append(self.data)
            return super().training_step(batch, batch_idx)

    module, copies = Holds(), []
    fit(module, MultigridCallback(), fast_dev_run=True)
    assert copies
    for copied in copies:
        assert copied["tensors"][0] is not module.data["tensors"][0]
        assert copied["paths"] is not module.data["paths"]
        assert copied["paths"][0] is module.data["paths"][0]


def test_what_a_copy_does_to_the_trainer_to_optimizers_and_to_schedulers_leaves_no_trace(tmp_path):
    class ByHand(Module):
        def training_step(self, batch, batch_idx):
            optimizer, scheduler = self.optimizers(), self.lr_schedulers()
            if not isinstance(self.trainer, L.Trainer):
                seen.append(scheduler.optimizer is optimizer)
                self.manual_backward(super().training_step(batch, batch_idx))
                optimizer.step()
                scheduler.step()
                optimizer.param_groups[0]["lr"].mul_(9)
                scheduler.base_lrs[0] = 5
                self.trainer.should_stop = True
                self.trainer.save_checkpoint(tmp_path / "copy.ckpt")

    class Look(L.Callback):
        def on_train_start(self, trainer, pl_module):
            [optimizer], scheduler = trainer.optimizers, trainer.lr_scheduler_configs[0].scheduler
            assert optimizer.param_groups[0]["lr"] == torch.tensor(0.1)
            assert not optimizer.state
            assert scheduler.base_lrs[0] != 5
            assert not trainer.should_stop
            raise KeyError("looked")

    seen = []
    module = ByHand(
        optimizer=lambda parameters: SGD(parameters, torch.tensor(0.1)),
        schedulers=lambda one, _: ExponentialLR(one, 0.5),
    )
    module.automatic_optimization = False
    with pytest.raises(KeyError, match="looked"):
        fit(module, MultigridCallback(), Look(), fast_dev_run=True)
    assert seen
    assert all(seen)
    assert not (tmp_path / "copy.ckpt").exists()


def test_a_view_can_be_copied():
    view = copy.copy(TrainerView(trainer(max_epochs=7), global_step=5))
    assert (view.global_step, view.max_epochs) == (5, 7)


def test_a_view_answers_as_the_trainer_but_for_what_it_is_told():
    host = trainer(max_epochs=7)
    view = TrainerView(host, global_step=5)
    assert (view.global_step, view.max_epochs, view.callbacks) == (5, 7, host.callbacks)
    view.max_epochs = 9
    assert host.max_epochs == 7
    with pytest.raises(AttributeError, match="nothing_like_it"):
        view.nothing_like_it  # noqa: B018
