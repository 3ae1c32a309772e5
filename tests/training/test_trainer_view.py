"""The view of the Trainer: what it is told, and who sees it."""

import lightning as L
import pytest
from torch import nn

from lightning_multigrid.training.trainer.trainer_view import TrainerView, lightning_modules, sees
from tests.helpers.tiny import Module, trainer


def test_a_view_answers_as_the_trainer_but_for_what_it_is_told():
    host = trainer(max_epochs=7)
    view = TrainerView(host, global_step=5)
    assert (view.global_step, view.max_epochs, view.callbacks) == (5, 7, host.callbacks)
    view.max_epochs = 9
    assert host.max_epochs == 7
    with pytest.raises(AttributeError, match="nothing_like_it"):
        view.nothing_like_it  # noqa: B018


def test_each_lightning_module_sees_it_for_the_time_of_the_block():
    class Outer(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList([Module(), nn.Linear(1, 1)])  # Lightning's own setter stops at this list

    module, host = Outer(), trainer()
    module.trainer = host
    view = TrainerView(host)
    with sees(lightning_modules(module), view):
        assert module.trainer is module.parts[0].trainer is view
    assert module.trainer is host
    with pytest.raises(RuntimeError, match="not attached"):
        module.parts[0].trainer  # noqa: B018
