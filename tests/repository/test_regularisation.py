"""Regularisation in proportion to the grid, on a model whose blocks and classifier say what they got."""

import pytest
import regularisation
import torch
from regularisation import Regularisation
from torch import nn


class Model(nn.Module):
    """One block that adds one, then the sum of each clip, as it is."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Identity()])
        self.blocks[0].register_forward_hook(lambda block, args, output: output + 1)
        self.classifier = nn.Linear(1, 1, bias=False)
        nn.init.ones_(self.classifier.weight)

    def forward(self, clips):
        self.seen = clips
        self.passed = self.blocks[0](clips)
        return self.classifier(self.passed.flatten(1).sum(1, keepdim=True))


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def chances(monkeypatch, **given):
    for name in ("DROPOUT", "DEPTH", "ERASED"):
        monkeypatch.setattr(regularisation, name, given.get(name, 0.0))


def clips(frames, size, number=2000):
    return torch.ones(number, 1, frames, size, size)


@pytest.mark.parametrize(("grows", "strength"), [(True, 0.125), (False, 1.0)])
def test_it_is_as_strong_as_the_grid_is_large(grows, strength):
    model = Model()
    regularised = Regularisation(model, points=4 * 8 * 8, grows=grows)
    model(clips(2, 4, 2))
    assert regularised.strength == strength


def test_a_validation_is_not_regularised(monkeypatch):
    chances(monkeypatch, DROPOUT=0.9, DEPTH=0.9, ERASED=0.9)
    model = Model().eval()
    Regularisation(model, points=2 * 4 * 4, grows=False)
    assert torch.equal(model(clips(2, 4)), torch.full((2000, 1), 2 * 2.0 * 4 * 4))


def test_a_box_of_half_the_sides_is_grey_in_all_frames_of_some_clips(monkeypatch):
    chances(monkeypatch, ERASED=0.5)
    model = Model()
    Regularisation(model, points=2 * 2 * 4 * 4, grows=True)  # the clips have half of them
    model(clips(2, 4))
    first, second = model.seen[:, 0].unbind(1)
    assert torch.equal(first, second)
    grey = (first == 0).sum((1, 2))
    assert set(grey.tolist()) == {0, 2 * 2}
    assert (grey > 0).float().mean() == pytest.approx(0.25, abs=0.04)
    places = (first == 0).float().mean(0)
    assert (places > 0).all()  # a box may be anywhere


def test_skipped_blocks_keep_the_mean(monkeypatch):
    chances(monkeypatch, DEPTH=0.5)
    model = Model()
    Regularisation(model, points=2 * 4 * 4, grows=False)
    model(clips(2, 4))
    assert set(model.passed.unique().tolist()) == {1.0, 1 + 1 / 0.5}
    assert model.passed.mean() == pytest.approx(2, abs=0.1)


def test_what_the_classifier_gets_is_dropped(monkeypatch):
    chances(monkeypatch, DROPOUT=0.5)
    model = Model()
    Regularisation(model, points=2 * 4 * 4, grows=False)
    outputs = model(clips(2, 4))
    assert set(outputs.unique().tolist()) == {0.0, 2 * 2 * 2.0 * 4 * 4}
