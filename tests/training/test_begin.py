"""How a `fit` begins: each one rehearses its grids, but for `rehearse=False`."""

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from lightning_multigrid import MultigridCallback
from lightning_multigrid.training import begin
from tests.helpers.tiny import Module, fit


@pytest.fixture
def rehearsals(monkeypatch):
    calls, own = [], begin.check_grids
    monkeypatch.setattr(begin, "check_grids", lambda *given: calls.append(1) or own(*given))
    return calls


class Refused(Module):
    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1], reduction="sum")


def test_a_run_that_continues_is_rehearsed_like_any_other(rehearsals, tmp_path):
    keep = ModelCheckpoint(tmp_path, filename="kept", every_n_train_steps=5)
    fit(Module(), MultigridCallback(), keep, enable_checkpointing=True, max_epochs=1)
    fit(Module(), MultigridCallback(), ckpt_path=tmp_path / "kept.ckpt", max_epochs=1)
    assert len(rehearsals) == 2
    with pytest.raises(ValueError, match="The loss of Refused is a sum over the clips"):
        fit(Refused(), MultigridCallback(), ckpt_path=tmp_path / "kept.ckpt", max_epochs=1)


def test_without_it_nothing_is_tried(rehearsals):
    module = Module()
    fit(module, MultigridCallback(rehearse=False), max_epochs=1)
    assert rehearsals == []
    assert torch.isfinite(torch.tensor(module.seen[-1][-1]))
    with pytest.raises(ValueError, match="Refused"):
        fit(Refused(), MultigridCallback(), max_epochs=1)
    fit(Refused(), MultigridCallback(rehearse=False), max_epochs=1)
