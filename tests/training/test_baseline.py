"""The baseline of a comparison: the script to the bit, but for how many clips share BatchNorm statistics."""

import pickle

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.testing import assert_close
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from lightning_multigrid import MultigridCallback
from tests.helpers.norms import shared_clips
from tests.helpers.tiny import Module, clips, fit, loader


class Deterministic(Module):
    def make_net(self):
        net = super().make_net()
        net[5] = nn.Identity()
        return net


def cosine(optimizer, module):
    return {"scheduler": CosineAnnealingLR(optimizer, module.trainer.estimated_stepping_batches), "interval": "step"}


@pytest.mark.parametrize(
    "arguments", [{}, {"batch": 32}, {"accumulate_grad_batches": 3, "max_epochs": -1, "max_steps": 20}]
)
def test_on_one_device_the_baseline_trains_to_the_bit_what_no_callback_does(arguments):
    found, batch = [], arguments.get("batch", 4)
    given = {name: value for name, value in arguments.items() if name != "batch"}
    for callbacks in ([], [MultigridCallback.baseline()]):
        module = Module(cosine)  # with dropout: no random state is touched
        host = fit(module, *callbacks, train=loader(batch, number=129), **{"max_epochs": 3} | given)
        found.append((module.seen, host.global_step, host.current_epoch, module.state_dict()))
    assert found[0][:3] == found[1][:3]
    assert_close(found[0][3], found[1][3], rtol=0, atol=0)
    assert type(module.net[1]) is nn.BatchNorm3d


class OwnBatches(BatchSampler):
    def __iter__(self):
        yield from super().__iter__()


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(clips(70), batch_sampler=BatchSampler(SequentialSampler(range(70)), 32, drop_last=False)),
        lambda: DataLoader(clips(70), batch_sampler=OwnBatches(SequentialSampler(range(70)), 32, drop_last=False)),
        lambda: {"clips": loader(32, number=70), "more": loader(32, number=70)},
    ],
    ids=["batch sampler", "own batches", "two loaders"],
)
def test_so_it_does_whatever_makes_the_mini_batches(make):
    class First(Module):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch["clips"] if isinstance(batch, dict) else batch, batch_idx)

    found = []
    for callbacks in ([], [MultigridCallback.baseline()]):
        module = First()
        fit(module, *callbacks, train=make(), max_epochs=1)
        found.append((module.seen, module.net[1].running_var.tolist()))
    assert found[0] == found[1]


def test_so_many_clips_share_statistics_and_those_of_a_smaller_last_mini_batch():
    """20 clips in two groups of ten, and at the end 9 in one."""
    seen = []

    class Looking(Deterministic):
        def training_step(self, batch, batch_idx):
            with torch.no_grad():
                x = self.net[0](batch[0])
                output = nn.functional.batch_norm(x, None, None, training=True)
                for part in (output[::2], output[1::2]) if len(x) == 20 else [output]:
                    assert_close(part.mean((0, 2, 3, 4)), torch.zeros(6), rtol=0, atol=1e-5)
            seen.append((len(x), shared_clips()))
            return super().training_step(batch, batch_idx)

    fit(Looking(), MultigridCallback.baseline(sub_batch=10), train=loader(20, number=109), max_epochs=1)
    assert seen == [(20, 10)] * 5 + [(9, 10)]


def test_what_ends_and_saves_is_the_scripts(tmp_path):
    class Constant(Module):
        def validation_step(self, batch, batch_idx):
            self.log("val", torch.tensor(1.0))

    found = []
    for number, callbacks in enumerate(([], [MultigridCallback.baseline()])):
        saver = ModelCheckpoint(tmp_path / str(number), save_top_k=-1, every_n_epochs=2)
        arguments = {"val": loader(shuffle=False, number=4), "enable_checkpointing": True, "max_epochs": 9}
        host = fit(Constant(), *callbacks, EarlyStopping("val", patience=4), saver, **arguments)
        found.append((host.current_epoch, sorted(path.name for path in (tmp_path / str(number)).iterdir())))
    assert found[0] == found[1]
    assert found[0][0] == 5


def test_running_statistics_are_re_estimated_as_in_multigrid_training():
    """The first layer's inputs depend on its weights alone, so its statistics are those of all clips."""
    module = Deterministic()
    callback = MultigridCallback.baseline(precise_bn_batches=25, seed=1)
    fit(module, callback, val=loader(shuffle=False, number=8), max_epochs=2)
    with torch.no_grad():
        values = module.net[0](clips().tensors[0]).transpose(0, 1).flatten(1)
    assert_close(module.net[1].running_mean, values.mean(dim=1), rtol=1e-4, atol=1e-4)
    assert_close(module.net[1].running_var, values.var(dim=1, correction=0), rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:Checkpoint directory", "ignore:You're resuming from a checkpoint that ended before")
def test_frozen_layers_keep_their_statistics_after_a_resume_within_an_epoch(tmp_path):
    class Frozen(Module):
        def on_train_batch_start(self, batch, batch_idx):
            self.net[1].eval()

    def run(**arguments):
        module, saver = Frozen(), ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, every_n_train_steps=10)
        callback = MultigridCallback.baseline(precise_bn_batches=2)
        fit(module, callback, saver, enable_checkpointing=True, max_epochs=1, **arguments)
        return module

    run()
    resumed = run(ckpt_path=tmp_path / "step=10.ckpt")
    assert 0 < len(resumed.seen) < 25
    assert_close(resumed.net[1].running_mean, torch.zeros(6), rtol=0, atol=0)
    assert_close(resumed.net[1].running_var, torch.ones(6), rtol=0, atol=0)


def test_precise_statistics_change_nothing_else():
    found = []
    for batches in (None, 3):
        module = Module()
        fit(module, MultigridCallback.baseline(precise_bn_batches=batches), val=loader(shuffle=False, number=8))
        found.append(module.seen)
    assert found[0] == found[1]


def test_a_stream_trains_and_its_clips_are_not_read_again():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(clips(22))

    module = Module()
    fit(module, MultigridCallback.baseline(), train=DataLoader(Stream(), 4), max_epochs=1)
    assert [clips for clips, *_ in module.shapes] == [4] * 5 + [2]
    callback = MultigridCallback.baseline(precise_bn_batches=2)
    with pytest.raises(MisconfigurationException, match="which an iterable dataset can't give"):
        fit(Module(), callback, train=DataLoader(Stream(), 4), limit_train_batches=4)


def test_refusals_and_copies():
    with pytest.raises(ValueError, match="`sub_batch` must be at least 1, got 0"):
        MultigridCallback.baseline(sub_batch=0)
    with pytest.raises(ValueError, match="`precise_bn_batches` must be at least 1, got 0"):
        MultigridCallback.baseline(precise_bn_batches=0)
    module = Module()
    module.sync = nn.SyncBatchNorm(3)
    with pytest.raises(MisconfigurationException, match="the model has SyncBatchNorm layers"):
        fit(module, MultigridCallback.baseline())
    callback = MultigridCallback.baseline(sub_batch=4)
    fit(Module(), callback)
    assert pickle.loads(pickle.dumps(callback)).sub_batch_of(32) == 4
