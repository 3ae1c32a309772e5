"""Trials of steps on scripts: what their losses tell, and what passes."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from lightning_multigrid import LongCycle, MultigridCallback, ShortCycle
from tests.helpers.tiny import Module, clips, fit


class Script(Module):
    """A module with a net of its own, and a loss that a test gives."""

    def __init__(self, loss, net=None, **arguments):
        super().__init__(**arguments)
        self.net = net or self.net
        self.loss = loss

    def training_step(self, batch, batch_idx):
        return self.loss(self, *batch)


def fitted(loss, net=None, train=None, **arguments):
    fit(Script(loss, net), MultigridCallback(**arguments), train=train, max_epochs=1)


def contrastive(self, x, y):
    """NT-Xent of the features and a second view of them."""
    features = F.normalize(torch.cat([self.net(x), self.net(x.flip(-1))]), dim=1)
    similar = features @ features.T / 0.5 - 1e9 * torch.eye(len(features))
    return F.cross_entropy(similar, torch.arange(len(features)).roll(len(x)))


def alike(self, x, y):
    """The same of features that are all alike, as those of a fresh network may be: the logarithm of the clips."""
    similar = 0 * self.net(x) @ self.net(x).T
    return F.cross_entropy(similar, torch.arange(len(x)))


# --- A sum over clips ---


def summed(self, x, y):
    return F.cross_entropy(self.net(x), y, reduction="sum")


def by_hand(self, x, y):
    optimizer = self.optimizers()
    optimizer.zero_grad()
    self.manual_backward(summed(self, x, y))
    optimizer.step()


def partly(self, x, y):
    """A mean and, as of a VAE, a small sum."""
    return F.cross_entropy(self.net(x), y) + 0.01 * self.net(x).square().sum()


@pytest.mark.parametrize("step", [summed, lambda self, x, y: {"loss": summed(self, x, y)}, by_hand, partly])
def test_a_sum_over_clips_is_refused(step):
    module = Script(step)
    module.automatic_optimization = step is not by_hand
    message = r"The loss of Script is a sum over the clips, or has one: 2 equal clips have .*, and 64 have .* the mean"
    with pytest.raises(ValueError, match=message):
        fit(module, MultigridCallback())


def test_a_sum_is_refused_of_a_step_that_takes_no_more_clips_than_the_plan_has():
    """Of a baseline of single clips, the rehearsal has two, and as many as each mini-batch of the plan."""

    def step(self, x, y):
        assert len(x) <= 16
        return summed(self, x, y)

    cycles = {"long_cycle": LongCycle(((0.25, 0.5), (1, 1))), "short_cycle": ShortCycle((1,))}
    with pytest.raises(ValueError, match="a sum over the clips, or has one: 2 equal clips .* and 16 have "):
        fitted(step, train=DataLoader(clips(), batch_size=1), **cycles)


def test_a_sum_is_no_matter_where_all_mini_batches_have_as_many_clips():
    fitted(summed, long_cycle=LongCycle(((1, 1),)), short_cycle=ShortCycle((1,)))


PASSING = {
    "contrastive": contrastive,
    "contrastive, all alike": alike,
    "mean": lambda self, x, y: F.cross_entropy(self.net(x), y),
    "regularised": lambda self, x, y: F.cross_entropy(self.net(x), y) + self.net[0].weight.square().sum(),
    "zero": lambda self, x, y: 0 * self.net(x).sum(),
}


@pytest.mark.parametrize("name", PASSING)
def test_other_losses_pass_without_a_word(name):
    fitted(PASSING[name])


# --- Values ---


class Spoken(Dataset):
    """Clips of 16 frames with seven symbols."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return clips(frames=16, size=16)[index][0], torch.arange(1, 8)


def ctc(self, x, y):
    scores = self.net(x).mean((3, 4)).permute(2, 0, 1).log_softmax(2)
    lengths = (torch.full((len(x),), n) for n in (len(scores), y.shape[1]))
    return F.ctc_loss(scores, y, *lengths)


def test_a_loss_that_is_finite_on_the_baselines_grid_only_is_refused():
    with pytest.raises(ValueError, match="Script cannot take clips of 4 x .* its loss is not finite"):
        fitted(ctc, net=nn.Conv3d(3, 9, 1), train=DataLoader(Spoken(), 4))
