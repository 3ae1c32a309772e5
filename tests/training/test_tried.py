"""A rehearsal is not repeated by a run that continues with the same grids and the same module."""

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from lightning_multigrid import MultigridCallback, ShortCycle
from lightning_multigrid.training import begin
from lightning_multigrid.training.rehearsal.tried import what_was_tried
from tests.helpers.tiny import Module, fit


@pytest.fixture
def rehearsals(monkeypatch):
    """Counts them."""
    calls, own = [], begin.check_grids
    monkeypatch.setattr(begin, "check_grids", lambda *given: calls.append(1) or own(*given))
    return calls


class Other(Module):
    def training_step(self, batch, batch_idx):
        return 2 * super().training_step(batch, batch_idx)


class Refused(Module):
    """Sums over clips."""

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1], reduction="sum")


def test_it_is_repeated_where_the_module_has_changed_alone(rehearsals, tmp_path):
    keep = ModelCheckpoint(tmp_path, filename="kept", every_n_train_steps=20)
    fit(Module(), MultigridCallback(), keep, enable_checkpointing=True)
    assert len(rehearsals) == 1
    fit(Module(), MultigridCallback(), ckpt_path=tmp_path / "kept.ckpt")
    assert len(rehearsals) == 1
    fit(Other(), MultigridCallback(), ckpt_path=tmp_path / "kept.ckpt")
    assert len(rehearsals) == 2


def test_the_key_changes_with_grids_parts_and_code():
    def key(module, **arguments):
        callback = MultigridCallback(rehearse=False, **arguments)
        fit(module, callback, max_epochs=1)
        return what_was_tried(callback.run.plan.schedule, module)

    wider = Module()
    wider.net[6] = nn.Linear(6, 9)
    keys = [key(Module()), key(Module(), short_cycle=ShortCycle((1,))), key(Other()), key(wider)]
    assert len({*keys}) == 4
    assert key(Module()) == keys[0]


def test_without_it_nothing_is_tried(rehearsals):
    module = Module()
    fit(module, MultigridCallback(rehearse=False), max_epochs=1)
    assert rehearsals == []
    assert torch.isfinite(torch.tensor(module.seen[-1][-1]))
    with pytest.raises(ValueError, match="Refused"):
        fit(Refused(), MultigridCallback(), max_epochs=1)
    fit(Refused(), MultigridCallback(rehearse=False), max_epochs=1)
