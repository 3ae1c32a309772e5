"""Classes that derive from BatchNorm have the statistics of sub-mini-batches, or are left alone and named."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from lightning_multigrid import MultigridCallback
from lightning_multigrid.norm import convert_sub_batchnorm, left_alone, restore_batchnorm, set_sub_batch
from lightning_multigrid.norm.sub_batchnorm import SubBatchNorm2d
from tests.helpers.tiny import Module, fit


class Named(nn.BatchNorm2d):
    """Torch's own but for its name."""


class Frozen(nn.BatchNorm2d):
    """Normalises by its running statistics, in training, too."""

    def forward(self, x):
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)


def timms():
    return pytest.importorskip("timm.layers").BatchNormAct2d


KINDS = [(lambda: Named, lambda x: x), (timms, F.relu)]


@pytest.mark.parametrize(("kind", "after"), KINDS, ids=["named", "timm"])
@pytest.mark.parametrize("clips", [2, 8, 12])
@pytest.mark.parametrize("momentum", [0.3, None])
def test_a_derived_layer_is_torchs_over_groups_and_then_its_own(kind, after, clips, momentum):
    layer = kind()(3, momentum=momentum).double()
    expected = convert_sub_batchnorm(nn.BatchNorm2d(3, momentum=momentum).double(), 4)
    assert convert_sub_batchnorm(layer, 4) is layer
    assert isinstance(layer, SubBatchNorm2d)
    for _ in range(2):
        x = torch.randn(clips, 3, 5, 5, dtype=torch.float64)
        mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        output, wanted = layer(mine), after(expected(theirs))
        assert_close(output, wanted)
        output.square().sum().backward()
        wanted.square().sum().backward()
        assert_close(mine.grad, theirs.grad)
    for name, value in expected.state_dict().items():  # the counter of mini-batches, too
        assert_close(layer.state_dict()[name], value)
    x = torch.randn(2, 3, 5, 5, dtype=torch.float64)
    assert_close(layer.eval()(x), after(expected.eval()(x)))


def test_it_is_as_it_was_afterwards_and_copies_follow():
    layer = convert_sub_batchnorm(Named(3), 2)
    set_sub_batch(layer, 4)
    copied = copy.deepcopy(layer)
    assert (type(copied), copied.sub_batch) == (type(layer), 4)
    again = pickle.loads(pickle.dumps(layer))
    assert (type(again), again.sub_batch) == (type(layer), 4)
    assert_close(again.state_dict(), layer.state_dict())
    assert type(restore_batchnorm(copied)) is Named
    assert type(restore_batchnorm(layer)) is Named
    assert vars(layer).keys() == vars(Named(3)).keys()


def test_classes_with_a_forward_of_their_own_are_left_alone_and_named():
    model = nn.Sequential(Frozen(3), nn.BatchNorm2d(3), nn.LazyBatchNorm2d())
    convert_sub_batchnorm(model, 4)
    assert [type(layer) for layer in model] == [Frozen, SubBatchNorm2d, nn.LazyBatchNorm2d]
    assert list(left_alone(model)) == ["0"]


class OfFrames(Module):
    """A 2D layer of a given class on frames."""

    kind = Named

    def make_net(self):
        layer = OnFrames(self.kind(6))
        return nn.Sequential(nn.Conv3d(3, 6, 3, 2, padding=1), layer, nn.Flatten(2), Mean(), nn.Linear(6, 4))


class OnFrames(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x.transpose(1, 2).flatten(0, 1)).unflatten(0, (len(x), -1)).transpose(1, 2)


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(dim=2)


class OfFrozenFrames(OfFrames):
    kind = Frozen


def test_a_training_converts_them_for_its_time_and_says_what_it_leaves(caplog):
    class Looking(OfFrames):
        def training_step(self, batch, batch_idx):
            self.__dict__.setdefault("kinds", set()).add(type(self.net[1].layer).__name__)
            self.__dict__.setdefault("copied", copy.deepcopy(self.net[1].layer))
            return super().training_step(batch, batch_idx)

    module = Looking()
    fit(module, MultigridCallback())
    assert module.kinds == {"SubBatchNamed"}
    assert type(module.net[1].layer) is type(module.copied) is Named
    assert pickle.loads(pickle.dumps(module.net[1].layer)).num_features == 6
    assert "derives from BatchNorm" not in caplog.text
    fit(OfFrozenFrames(), MultigridCallback())
    assert "Frozen (`net.1.layer`) derives from BatchNorm and has a `forward`" in caplog.text
