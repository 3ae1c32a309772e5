"""A training that starts from published weights."""

import pytest
import torch
from torch import nn

from lightning_multigrid import MultigridCallback, PretrainedWeights
from tests.helpers.tiny import Module, loader, trainer


@pytest.fixture
def weights(tmp_path):
    """Weights of the tests' module, all of one value."""
    path = tmp_path / "weights.pyth"
    torch.save({name: torch.full_like(tensor, 0.25) for name, tensor in Module().net.state_dict().items()}, path)
    return str(path)


def starting_weights(module, *callbacks, **arguments):
    """Weights of the first convolution when the training starts."""
    seen = []
    module.on_train_start = lambda: seen.append(module.net[0].weight.detach().clone())
    trainer(*callbacks, max_epochs=1).fit(module, loader(), **arguments)
    return seen[0]


@pytest.mark.parametrize("first", [True, False])
def test_training_starts_from_the_weights_wherever_the_callback_stands(first, weights):
    callbacks = [PretrainedWeights(weights, submodule="net"), MultigridCallback()]
    seen = starting_weights(Module(), *(callbacks if first else reversed(callbacks)))
    assert (seen == 0.25).all()


def test_a_resumed_training_does_not_need_them(weights, tmp_path):
    host, module = trainer(max_epochs=1, limit_train_batches=2), Module()
    host.fit(module, loader())
    host.save_checkpoint(tmp_path / "last.ckpt")
    missing = PretrainedWeights(str(tmp_path / "moved.pyth"), submodule="net")
    resumed = trainer(missing, max_epochs=2, limit_train_batches=2)
    other, seen = Module(), []
    nn.init.zeros_(other.net[0].weight)
    other.on_train_start = lambda: seen.append(other.net[0].weight.detach().clone())
    resumed.fit(other, loader(), ckpt_path=tmp_path / "last.ckpt")
    assert torch.equal(seen[0], module.net[0].weight)
    with pytest.raises(FileNotFoundError):  # a new training with the same callback does
        trainer(missing).fit(Module(), loader())


def test_a_missing_file_is_said_when_fit_starts_and_not_before(tmp_path):
    callback = PretrainedWeights(str(tmp_path / "none.pyth"), submodule="net")
    trainer(callback).validate(Module(), loader(shuffle=False), verbose=False)
    with pytest.raises(FileNotFoundError, match=r"No such file or directory: .*none\.pyth"):
        trainer(callback).fit(Module(), loader())


def test_a_path_may_begin_with_the_home_folder(weights, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert PretrainedWeights("~/w.pth").path == str(tmp_path / "w.pth")
