"""One test for each entry of `torch_internals`: each fails when torch changes."""

import inspect
import math
import re
import signal
import sys

import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import ChainedScheduler, ConstantLR, ExponentialLR, LinearLR, MultiStepLR, SequentialLR

from lightning_multigrid.training.trainer import torch_internals
from lightning_multigrid.training.trainer.torch_internals import (
    forget_hooks,
    graph_for_each_grid,
    scheduler_parts,
    version_of,
)
from tests.helpers.entries import entries


@pytest.fixture(autouse=True)
def _nothing_compiled():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def test_every_entry_names_its_place_and_has_a_test():
    assert "torch 2.6 to 2." in torch_internals.__doc__
    for name in entries(torch_internals):
        assert callable(globals()[f"test_{name}"])
        assert re.search(r"# `[\w/]+\.pyi?`", inspect.getsource(getattr(torch_internals, name)))


def test_version_of():
    tensor = torch.zeros(2)
    before = version_of(tensor)
    tensor + 1
    assert version_of(tensor) == before
    tensor.mul_(2)
    assert version_of(tensor) > before


def test_forget_hooks():
    called, net = [], torch.nn.Sequential(torch.nn.ReLU())
    for part in net.modules():
        part.register_forward_hook(lambda *_: called.append(1))
        part.register_forward_pre_hook(lambda *_: called.append(2))
        part.register_forward_hook(lambda *_, **__: called.append(3), with_kwargs=True, always_call=True)
    forget_hooks(net)
    net(torch.zeros(1))
    assert not called


def test_scheduler_parts():
    optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=1)
    warmup, steps = LinearLR(optimizer, 0.1, total_iters=5), MultiStepLR(optimizer, [3])
    both = ChainedScheduler([ConstantLR(optimizer, 0.5), ExponentialLR(optimizer, 0.9)])
    joined = SequentialLR(optimizer, [warmup, steps, both], milestones=[5, 20])
    parts = scheduler_parts(joined)
    assert [ticks for _, *ticks in parts] == [[0, 5], [5, 20], [20, math.inf], [20, math.inf]]
    assert [type(part) for part, *_ in parts] == [LinearLR, MultiStepLR, ConstantLR, ExponentialLR]
    assert parts[0][0] is warmup
    assert scheduler_parts(steps) == [(steps, 0, math.inf)]


def test_graph_for_each_grid():
    """Limits are raised, and put back."""
    config = torch._dynamo.config
    before, made = config.cache_size_limit, []

    @torch.compile(backend=lambda graph, inputs: made.append(graph) or graph.forward, dynamic=False)
    def double(x):
        return 2 * x

    with config.patch(cache_size_limit=8), graph_for_each_grid(10):  # timm's optimizers raise it when they are imported
        for size in range(1, 13):
            double(torch.ones(size))
    assert len(made) == 10
    assert config.cache_size_limit == before


def test_asks_for_mini_batch():
    asked = []
    sys.setprofile(lambda frame, event, _: asked.append(torch_internals.asks_for_mini_batch(frame)))
    try:
        list(range(3))
        torch.ones(1)
        before = any(asked)
        next(iter(torch.utils.data.DataLoader([1])))
    finally:
        sys.setprofile(None)
    assert (before, any(asked)) == (False, True)


def test_awaits_mini_batch():
    """A signal in the dataset comes within the loader's `next`; one outside of it doesn't."""
    found = []

    class Raises:
        def __len__(self):
            return 1

        def __getitem__(self, index):
            signal.raise_signal(signal.SIGUSR2)
            return index

    before = signal.signal(signal.SIGUSR2, lambda _, frame: found.append(torch_internals.awaits_mini_batch(frame)))
    try:
        signal.raise_signal(signal.SIGUSR2)
        list(torch.utils.data.DataLoader(Raises()))
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert found == [False, True]
