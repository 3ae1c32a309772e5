"""`MultigridCallback.plan`: the plan of a script before its `fit`."""

from dataclasses import replace

import lightning as L
import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, MultiStepLR, OneCycleLR
from torch.utils.data import DataLoader

from lightning_multigrid import MultigridCallback
from lightning_multigrid.host import MisconfigurationException
from tests.helpers.tiny import Module, clips, fit, loader, trainer


class Data(L.LightningDataModule):
    def setup(self, stage):
        self.clips = clips(40)

    def train_dataloader(self):
        return DataLoader(self.clips, 4, shuffle=True)


class WithLoader(Module):
    def train_dataloader(self):
        return loader(number=40)


def one_cycle(optimizer, module):
    total = int(module.trainer.estimated_stepping_batches)
    return {"scheduler": OneCycleLR(optimizer, 0.5, total), "interval": "step"}


@pytest.mark.parametrize(
    ("module", "data", "arguments"),
    [
        (lambda: Module(lambda one, _: MultiStepLR(one, [4, 6], 0.1)), loader, {"max_epochs": 8}),
        (lambda: Module(lambda one, _: CosineAnnealingLR(one, 8)), Data, {"max_epochs": 8}),
        (lambda: Module(one_cycle), loader, {"max_steps": 200, "max_epochs": -1}),
        (WithLoader, lambda: None, {"max_epochs": 6, "accumulate_grad_batches": 2}),
        (lambda: Module(one_cycle), loader, {"max_steps": 200, "max_epochs": None}),
        (lambda: Module(optimizer=torch.optim.AdamW), loader, {"max_epochs": 4, "limit_train_batches": 20}),
    ],
)
def test_it_is_the_plan_of_fit_which_it_does_not_change(module, data, arguments, caplog):
    torch.manual_seed(0)
    script, callback = module(), MultigridCallback(seed=3)
    host = trainer(callback, **arguments)
    ahead = callback.plan(host, script, data())
    [said] = [message for message in caplog.messages if message.startswith("Multigrid schedule")]
    assert f"{ahead}\nThe LR grows with" in said
    torch.manual_seed(0)
    host.fit(script, data())
    assert callback.run.plan == ahead
    other, again = module(), MultigridCallback(seed=3)
    torch.manual_seed(0)
    trainer(again, **arguments).fit(other, data())
    for mine, its in zip(script.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, its)


def test_a_trainer_without_the_callback_and_one_after_fit_have_a_plan_too():
    module = Module()
    plain = trainer(max_epochs=4)
    ahead = MultigridCallback().plan(plain, module, loader())
    callback = MultigridCallback()
    host = fit(module, callback, max_epochs=4)
    assert replace(callback.run.plan, seed=0) == ahead
    host.fit_loop.max_epochs = 6
    assert callback.plan(host, module, loader()).epochs == 6
    assert callback.run.plan.epochs == 4


@pytest.mark.filterwarnings("ignore:`max_epochs` was not set")
def test_a_training_of_no_given_length_has_1000_epochs_as_lightning_gives_it():
    class Stopping(L.Callback):
        def on_train_batch_end(self, trainer, *_):
            trainer.should_stop = True

    callback = MultigridCallback(seed=0, rehearse=False)
    host, module = trainer(callback, Stopping(), max_epochs=None), Module(one_cycle)
    ahead = callback.plan(host, module, loader())
    assert ahead.epochs == 1000
    assert host.max_epochs is None
    host.fit(module, loader())
    assert callback.run.plan == ahead


class Prepared(Module):
    """It makes its clips in `setup`."""

    def setup(self, stage):
        self.clips = clips(40)

    def train_dataloader(self):
        return DataLoader(self.clips, 4)


def test_what_the_setup_of_a_module_makes_is_made_before_or_named():
    module = Prepared()
    with pytest.raises(MisconfigurationException, match="no attribute 'clips'.* call `setup` of Prepared, .*before `p"):
        MultigridCallback().plan(trainer(), module)
    module.setup("fit")
    assert MultigridCallback().plan(trainer(), module).clips == 40


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
