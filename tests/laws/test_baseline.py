"""The baseline of a comparison: the callback on the baseline's grid alone, with the steps and the LR of the script.

`test_scripts.py` compares it with each way to write a script.
"""

import pickle

import pytest
from jsonargparse import ArgumentParser
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, MultiStepLR, SequentialLR

from lightning_multigrid import MultigridCallback
from tests.helpers.tiny import Constant, Module, fit, loader

pytestmark = pytest.mark.usefixtures("_unrehearsed")


def steps(optimizer, _):
    """With a warm-up, as the paper's; its last stage is where a multigrid training holds the LR."""
    return SequentialLR(optimizer, [LinearLR(optimizer, 0.1, total_iters=2), MultiStepLR(optimizer, [1, 2])], [2])


class Updates(Module):
    """Notes the LR of each optimizer step, which may be of several mini-batches."""

    def note_lr(self, optimizer, *_):
        super().note_lr(optimizer)
        self.updates = [*getattr(self, "updates", []), self.lrs[-1]]


def cosine(optimizer, module):
    return {"scheduler": CosineAnnealingLR(optimizer, module.trainer.estimated_stepping_batches), "interval": "step"}


@pytest.mark.parametrize(("scheduler", "accumulate"), [(steps, 1), (cosine, 3)])
def test_it_has_the_steps_of_the_script_and_the_lr_of_each(scheduler, accumulate):
    """65 clips, so that the script's last mini-batch and update are smaller: then they are full."""
    found = []
    for callbacks in ([], [MultigridCallback.baseline()]):
        module = Updates(scheduler)
        host = fit(module, *callbacks, train=loader(number=65), max_epochs=5, accumulate_grad_batches=accumulate)
        found.append((host.current_epoch, module.updates))
    (ended, lrs), (our_end, our_lrs) = found
    assert our_end == ended
    assert our_lrs == pytest.approx(lrs, rel=1e-9)
    assert {*module.shapes} == {(4, 8, 32)}


@pytest.mark.rehearsed
def test_it_says_nothing_of_grids_and_of_a_speed_up(caplog):
    caplog.set_level("INFO")
    data = {"train": loader(number=40), "val": loader(shuffle=False, number=8)}
    fit(Module(steps), MultigridCallback.baseline(), EarlyStopping("val"), **data, max_epochs=6)
    assert "Schedule of the baseline, 4 x 8 x 32" in caplog.text
    assert "60 steps, 6 passes over the data in 6 epochs." in caplog.text
    for words in ("Multigrid", "faster", "fewer iterations", "instead of", "coarse", "times fewer", "more often"):
        assert words not in caplog.text, words


def test_what_ends_and_saves_is_the_scripts(tmp_path):
    found = []
    for number, callbacks in enumerate(([], [MultigridCallback.baseline()])):
        saver = ModelCheckpoint(tmp_path / str(number), save_top_k=-1, every_n_epochs=2)
        arguments = {"val": loader(shuffle=False, number=4), "enable_checkpointing": True, "max_epochs": 9}
        host = fit(
            Constant(steps), *callbacks, EarlyStopping("val", patience=4), saver, train=loader(number=24), **arguments
        )
        found.append((host.current_epoch, sorted(path.name for path in (tmp_path / str(number)).iterdir())))
    assert found[0] == found[1]
    assert found[0][0] == 5


def test_precise_statistics_change_nothing_else():
    found = []
    for batches in (None, 3):
        module = Module()
        data = {"train": loader(number=40), "val": loader(shuffle=False, number=8)}
        fit(module, MultigridCallback.baseline(precise_bn_batches=batches), **data)
        found.append(module.seen)
    assert found[0] == found[1]


def test_an_optimizer_that_is_hidden_moves_as_in_the_script():
    """A multigrid training refuses it, as it can't scale its LR."""

    class Hidden(Module):
        def configure_optimizers(self):
            self.other = Adam(self.net.parameters(), lr=1e-3)
            return SGD(self.net.parameters(), lr=0.1)

    assert fit(Hidden(), MultigridCallback.baseline(), max_epochs=1).global_step == 25


def test_arguments_are_those_of_the_class_but_for_the_schedules():
    with pytest.raises(ValueError, match="`sub_batch` must be at least 1, got 0"):
        MultigridCallback.baseline(sub_batch=0)
    with pytest.raises(TypeError, match="multiple values for keyword argument 'long_cycle'"):
        MultigridCallback.baseline(long_cycle=None)
    module = Module()
    module.sync = nn.SyncBatchNorm(3)
    with pytest.raises(Exception, match="the model has SyncBatchNorm layers"):
        fit(module, MultigridCallback.baseline())
    parser = ArgumentParser()
    parser.add_argument("--callback", type=Callback)
    config = {"class_path": "lightning_multigrid.MultigridCallback.baseline", "init_args": {"sub_batch": 4}}
    in_config = parser.instantiate_classes(parser.parse_object({"callback": config})).callback
    assert pickle.loads(pickle.dumps(in_config)).sub_batch == 4
    assert in_config.long_cycle == MultigridCallback.baseline().long_cycle
