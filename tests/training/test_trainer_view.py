"""The view of the Trainer."""

import pytest

from lightning_multigrid.training.trainer.trainer_view import TrainerView
from tests.helpers.tiny import trainer


def test_a_view_answers_as_the_trainer_but_for_what_it_is_told():
    host = trainer(max_epochs=7)
    view = TrainerView(host, global_step=5)
    assert (view.global_step, view.max_epochs, view.callbacks) == (5, 7, host.callbacks)
    view.max_epochs = 9
    assert host.max_epochs == 7
    with pytest.raises(AttributeError, match="nothing_like_it"):
        view.nothing_like_it  # noqa: B018
