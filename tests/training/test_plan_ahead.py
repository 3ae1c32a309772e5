"""`MultigridCallback.plan`: the plan of a script before its `fit`."""

import os
import random
import time
from dataclasses import replace

import lightning as L
import numpy as np
import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, MultiStepLR, OneCycleLR
from torch.utils.data import DataLoader, Dataset, IterableDataset, random_split

from lightning_multigrid import MultigridCallback
from lightning_multigrid.host import MisconfigurationException
from lightning_multigrid.training.plan_loader import clips_of, loading_of, plan_loader
from tests.helpers.fake_clock import Reading
from tests.helpers.tiny import Module, begin, clips, loader, stopping, trainer


class Data(L.LightningDataModule):
    def setup(self, stage):
        self.clips = clips(40)

    def train_dataloader(self):
        return DataLoader(self.clips, 4, shuffle=True)


class WithLoader(Module):
    def train_dataloader(self):
        return loader(number=40)


def few():
    return loader(number=40)


def one_cycle(optimizer, module):
    total = int(module.trainer.estimated_stepping_batches)
    return {"scheduler": OneCycleLR(optimizer, 0.5, total), "interval": "step"}


@pytest.mark.parametrize(
    ("module", "data", "arguments"),
    [
        (lambda: Module(lambda one, _: MultiStepLR(one, [4, 6], 0.1)), few, {"max_epochs": 8}),
        (lambda: Module(lambda one, _: CosineAnnealingLR(one, 8)), Data, {"max_epochs": 8}),
        (lambda: Module(one_cycle), few, {"max_steps": 80, "max_epochs": -1}),
        (WithLoader, lambda: None, {"max_epochs": 6, "accumulate_grad_batches": 2}),
        (lambda: Module(one_cycle), few, {"max_steps": 80, "max_epochs": None}),
        (lambda: Module(optimizer=torch.optim.AdamW), few, {"max_epochs": 4, "limit_train_batches": 8}),
    ],
)
def test_it_is_the_plan_of_fit_which_it_does_not_change(module, data, arguments, caplog):
    torch.manual_seed(0)
    script, callback = module(), MultigridCallback(seed=3)
    host = trainer(callback, **arguments)
    ahead = callback.plan(host, script, data())
    assert str(ahead) not in caplog.text  # it is returned, and a notebook shows it
    assert repr(ahead) == str(ahead)
    assert str(ahead).startswith("Multigrid schedule for a baseline of ")
    assert any(message.startswith("The LR grows with") for message in caplog.messages)
    torch.manual_seed(0)
    host.fit(script, data())
    assert callback.run.plan == ahead
    other, again = module(), MultigridCallback(seed=3)
    torch.manual_seed(0)
    trainer(again, **arguments).fit(other, data())
    for mine, its in zip(script.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, its)


def test_a_trainer_without_the_callback_and_one_after_fit_have_a_plan_too():
    module, plain = Module(), trainer(max_epochs=4)
    ahead = MultigridCallback().plan(plain, module, loader())
    callback = MultigridCallback()
    host = begin(module, callback, max_epochs=4)
    assert replace(callback.run.plan, seed=0) == ahead
    host.fit_loop.max_epochs = 6
    assert (callback.plan(host, module, loader()).epochs, callback.run.plan.epochs) == (6, 4)


@pytest.mark.filterwarnings("ignore:`max_epochs` was not set")
def test_a_training_of_no_given_length_has_1000_epochs_as_lightning_gives_it():
    callback = MultigridCallback(seed=0, rehearse=False)
    host, module = trainer(callback, stopping(lambda *_: True), max_epochs=None), Module(one_cycle)
    ahead = callback.plan(host, module, loader())
    assert ahead.epochs == 1000
    assert host.max_epochs is None
    host.fit(module, loader())
    assert callback.run.plan == ahead


@pytest.mark.parametrize(
    ("module", "data", "arguments", "match"),
    [
        (Module(), loader(), {"max_epochs": -1}, "max_epochs"),
        (Module(), [1, 2], {"max_epochs": 4}, "needs one `torch.utils.data.DataLoader`"),
        (Module(), loader(), {"max_epochs": None, "max_time": "00:00:01:00"}, "has no end"),
        (Module(), loader(batch_size=64, number=64), {"max_epochs": 4}, "steps"),
    ],
)
def test_what_fit_refuses_is_refused(module, data, arguments, match):
    with pytest.raises((MisconfigurationException, TypeError, ValueError), match=match):
        MultigridCallback().plan(trainer(**arguments), module, data)


# --- Measured ---


class Stepping(Module):
    """Steps of 3 s, in a training or out of it."""

    def __init__(self, clock):
        super().__init__()
        self.clock = clock

    def training_step(self, batch, batch_idx):
        self.clock.passes(3)
        return super().training_step(batch, batch_idx)


def states():
    return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()


def measured(caplog, module, data, **arguments):
    """What is said of the time, of 4 epochs with 25 steps of 4 clips."""
    callback = MultigridCallback(seed=0)
    plan = callback.plan(trainer(), module, data, measure=True, **arguments)
    return plan, [said for said in caplog.messages if said.startswith("The loader is")]


def test_what_loader_and_steps_take_is_measured_and_nothing_is_changed(clock, caplog):
    module, data = Stepping(clock), DataLoader(Reading(clock.passes, seconds=0.25), 4, shuffle=True)
    before = {name: value.clone() for name, value in module.state_dict().items()}, states()
    plan, [said] = measured(caplog, module, data)
    clips_read = sum(step.shape.clips for epoch in range(4) for step in plan.epoch(epoch))
    own = 3 * sum(plan.phase_steps) + 0.25 * clips_read
    minutes, seconds = said.partition("takes about ")[2].partition(" s with")[0].split(" min ")
    assert 60 * int(minutes) + int(seconds) == pytest.approx(own, rel=0.05)  # short cycles end early
    # Without workers, a step of 4 clips takes 3 s and a second.
    assert "and about 6 min 40 s without it. With 0 workers, a sample takes 250 ms, so 4 are read in a second" in said
    assert states() == before[1]
    assert all(torch.equal(value, before[0][name]) for name, value in module.state_dict().items())
    assert not module.seen


def test_a_loader_that_is_fast_enough_is_said_to_be(clock, caplog):
    _, [said] = measured(caplog, Stepping(clock), DataLoader(Reading(clock.passes), 4))
    assert said.startswith("The loader is fast enough. Without validations, the training takes about 1 min 48 s with")
    assert said.endswith("and about 5 min 0 s without it.")


def test_workers_are_timed_where_they_read(caplog):
    """They sleep: 20 ms for each clip are the least that they take."""
    slow = Reading(time.sleep, seconds=0.02)
    _, [said] = measured(caplog, Module(), DataLoader(slow, 4, num_workers=2))
    assert float(said.partition("a sample takes ")[2].partition(" ms")[0]) >= 20


def test_a_step_that_fails_out_of_a_training_is_named():
    class Logging(Module):
        def training_step(self, batch, batch_idx):
            raise RuntimeError("no logger")

    with pytest.raises(MisconfigurationException, match="a copy of Logging, which fails with RuntimeError: no logger"):
        MultigridCallback().plan(trainer(), Logging(), loader(), measure=True)


def test_a_stream_is_not_measured():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(clips(40))

    with pytest.raises(ValueError, match="Stream is a stream, .* Leave it out"):
        MultigridCallback(clips_per_epoch=40).plan(trainer(), Module(), DataLoader(Stream(), 4), measure=True)


# --- What helps ---


class Own(Dataset):
    """Reads what a grid needs."""

    frames, size, stride = 8, 32, 1

    def __len__(self):
        return 100

    def read_clip(self, request):
        return torch.zeros(3, request.frames, request.size, request.size), 0


@pytest.mark.parametrize(
    ("dataset", "arguments", "names"),
    [
        (lambda: random_split(Reading(None), [60, 40])[0], {}, ["instead of Reading, or", "num_workers=6", "33%"]),
        (lambda: Reading(None), {"epoch_factor": 1}, ["VideoClips", "num_workers=6"]),
        (Own, {"epoch_factor": 2}, ["num_workers=6", "50% fewer"]),
        (Own, {"epoch_factor": 1, "workers": 6}, ["more cores"]),
    ],
)
def test_what_helps_a_slow_loader_fits_the_script(dataset, arguments, names, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(13), raising=False)
    workers = arguments.pop("workers", 2)
    with monkeypatch.context() as patch:
        patch.setattr(Reading, "__getitem__", lambda self, index: self.clips[index])
        script = DataLoader(dataset(), 4, num_workers=workers)
        callback = MultigridCallback(**arguments)
        plan = callback.plan(trainer(), Module(), script)
        ways = loading_of(plan_loader(plan, clips_of(callback, script), trainer(), script), devices=2).ways_out
    assert len(ways) == len(names)
    assert all(name in way for name, way in zip(names, ways, strict=True))
