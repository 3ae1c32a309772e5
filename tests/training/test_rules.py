"""What is judged of the loss and of state, on scripts; and what passes."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from lightning_multigrid import LongCycle, MultigridCallback, ShortCycle
from tests.helpers.tiny import CLASSES, Module, clips, fit


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


@pytest.mark.parametrize("step", [summed, lambda self, x, y: {"loss": summed(self, x, y)}, by_hand])
def test_a_sum_over_clips_is_refused(step):
    module = Script(step)
    module.automatic_optimization = step is not by_hand
    message = r"The loss of Script is a sum over the clips: 4 clips have .*, and the same clips twice .*the mean"
    with pytest.raises(ValueError, match=message):
        fit(module, MultigridCallback())


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
    with pytest.raises(ValueError, match=r"The loss of Script is inf on the grid of 4 x .*, and .* on the baseline's"):
        fitted(ctc, net=nn.Conv3d(3, 9, 1), train=DataLoader(Spoken(), 4))


# --- State that has a size for each clip ---


class Recurrent(Module):
    """Keeps something from step to step; how, a test says."""

    def __init__(self, keep):
        super().__init__()
        self.keep, self.kept = keep, None
        self.register_buffer("queue", torch.zeros(64, CLASSES))
        self.register_buffer("mask", torch.ones(4, 1))  # the baseline's clips
        self.place = 0

    def training_step(self, batch, batch_idx):
        return self.keep(self, self.net(batch[0]), batch[1])


def hidden(self, scores, y):
    before, self.kept = self.kept, scores.detach()
    return F.cross_entropy(scores if before is None else scores + before, y)


def read(self, scores, y):
    """As `hidden`, where values are read, which shapes don't have."""
    assert scores.sum().item() < 1e9
    return hidden(self, scores, y)


def masked(self, scores, y):
    return F.cross_entropy(scores * self.mask, y)


def queued(self, scores, y):
    """A queue with room for eight times the baseline's clips, not for the plan's sixteen times."""
    self.queue[:32][: len(scores)] = scores.detach()
    return F.cross_entropy(scores, y)


@pytest.mark.filterwarnings("ignore:The grids could not be rehearsed")  # a mask of four clips, with two
@pytest.mark.parametrize(("keep", "now", "last"), [(hidden, 64, 4), (read, 64, 4), (masked, 64, 4), (queued, 64, 4)])
def test_state_with_a_size_for_each_clip_is_refused_with_both_numbers(keep, now, last):
    message = rf"Recurrent cannot take another number of clips in each step.* has {now} clips of .* had {last} of"
    with pytest.raises(ValueError, match=message):
        fit(Recurrent(keep), MultigridCallback())


def of_one_size(self, scores, y):
    """A queue that takes any number of clips, and a mean over them."""
    self.queue = torch.cat([scores.detach(), self.queue])[: len(self.queue)]
    self.kept = scores.detach().mean(0) + (0 if self.kept is None else self.kept)
    return F.cross_entropy(scores + self.queue.mean(0) + self.kept, y)


def test_state_of_one_size_passes():
    fit(Recurrent(of_one_size), MultigridCallback(), max_epochs=1)
