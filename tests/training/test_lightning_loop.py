"""What a run refuses when Lightning does otherwise than planned, and what it leaves behind."""

from itertools import product

import lightning as L
import pytest
from lightning.pytorch.callbacks import LambdaCallback, ModelCheckpoint

from lightning_multigrid import MultigridCallback
from lightning_multigrid.host import MisconfigurationException
from tests.helpers.sampling import sampled
from tests.helpers.tiny import Module, fit, loader, trainer

pytestmark = pytest.mark.usefixtures("_unrehearsed")

# --- Lightning does otherwise ---


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (  # as if it no longer requested the loader when it is told to
            lambda host: setattr(host.fit_loop, "max_batches", 25),
            rf"Lightning {L.__version__} plans an epoch of this many mini-batches: 25, but Multi.* planned 9.*report",
        ),
        (
            lambda host: host.current_epoch and setattr(host.fit_loop._combined_loader, "seen", loader()),
            "iterates <.*, but .*Does a hook, or another callback, change the loaders",
        ),
        (
            lambda host: setattr(host, "accumulate_grad_batches", 2),
            "has `accumulate_grad_batches` = 2, but .* planned 1.* Does a hook, .* give the Trainer the setting",
        ),
    ],
)
def test_what_a_hook_changes_when_an_epoch_begins_is_refused(change, message):
    with pytest.raises(MisconfigurationException, match=message):
        fit(Module(), MultigridCallback(), LambdaCallback(on_train_epoch_start=lambda host, _: change(host)))


def test_another_place_than_the_checkpoints_is_refused(tmp_path):
    class Skips(L.Callback):
        def on_train_start(self, trainer, pl_module):
            trainer.fit_loop.epoch_progress.current.completed += 1

    saver = ModelCheckpoint(tmp_path, every_n_train_steps=5, filename="{step}", save_top_k=-1)
    fit(Module(), MultigridCallback(), saver, enable_checkpointing=True)
    said = "continues at Place.epoch=1, batch=5., but MultigridCallback has planned Place.epoch=0, b"
    with pytest.raises(MisconfigurationException, match=said):
        fit(Module(), MultigridCallback(), Skips(), ckpt_path=tmp_path / "step=5.ckpt")


def test_a_second_fit_goes_on_with_a_longer_training(caplog):
    """As without the callback: with other numbers of epochs, and no checkpoint."""
    module, host = Module(), trainer(MultigridCallback(), max_epochs=2)
    host.fit(module, loader())
    first = len(module.seen)
    host.fit_loop.max_epochs = 4
    host.fit(module, loader())
    assert {epoch for epoch, *_ in module.seen[first:]} == {2, 3}
    assert caplog.text.count("This `fit` goes on at epoch 2 of a plan of 4 epochs") == 1


@pytest.mark.parametrize("multigrid", [True, False])
def test_a_second_fit_goes_on_after_an_epoch_whose_end_failed(multigrid):
    """As without the callback, which counts that epoch."""

    class FailsOnce(L.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            if len({epoch for epoch, *_ in module.seen}) == 2 and not failed:
                failed.append(trainer.current_epoch)
                raise RuntimeError("on purpose")

    failed, module = [], Module()
    host = trainer(FailsOnce(), *[MultigridCallback()] * multigrid)
    with pytest.raises(RuntimeError, match="on purpose"):
        host.fit(module, loader())
    first = len(module.seen)
    host.fit(module, loader())
    assert failed == [1]
    assert {epoch for epoch, *_ in module.seen[first:]} == {2, 3}


# --- What is left behind ---

STARTS = "on_fit_start", "on_train_start"


@pytest.mark.parametrize(
    ("first", "hook"),
    sampled([*product([True, False], STARTS)], (True, STARTS[0]), (False, STARTS[1])),
)
def test_a_callback_that_another_one_appends_while_the_fit_starts_is_torn_down(first, hook):
    torn_down = []
    late = LambdaCallback(teardown=lambda *_, **__: torn_down.append(late))
    both = [LambdaCallback(**{hook: lambda host, _: host.callbacks.append(late)}), MultigridCallback()]
    both = both if first else both[::-1]
    host = fit(Module(), *both, max_epochs=2)
    assert torn_down == [late]
    assert [callback for callback in host.callbacks if callback in (*both, late)] == [*both, late]


@pytest.mark.parametrize("length", [{"max_epochs": 0}, {"max_steps": 0}, {"limit_train_batches": 0}])
def test_a_training_of_no_length_trains_nothing(length):
    module = Module()
    host = fit(module, MultigridCallback(), **length)
    assert (module.seen, host.global_step) == ([], 0)
